"""Spaces: from an index to a point, without computing the others."""
