"""Labelled chunks of values in a folder, in the format of Zarr; and its lock."""
