"""Searches: methods that propose points, the loop that computes them; sensitivities."""
