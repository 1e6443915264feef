"""Measurements, one question a file: `python -m benchmarks` lists them."""
