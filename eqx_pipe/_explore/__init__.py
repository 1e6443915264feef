"""Searches: methods that propose points, and the loop that computes them."""
