"""What keeps chunks: arrays, a reduction, a store of either."""
