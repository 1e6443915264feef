"""Sinks, which keep chunks: arrays, a reduction, a store of either."""
