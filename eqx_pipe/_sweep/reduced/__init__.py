"""Sweeps that are reduced as they run: states of blocks in place of values."""
