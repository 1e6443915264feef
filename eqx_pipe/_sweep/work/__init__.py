"""Rows as work: points, and groups of points that are reduced to one row."""
