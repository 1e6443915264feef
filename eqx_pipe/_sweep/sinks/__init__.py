"""Sinks, which keep chunks: in arrays, as a reduction, or in a store."""
