"""Compiled programs of a sweep: how points are laid out over devices and batches."""
