"""Reducers: states of blocks of values, and how two of them are merged."""
