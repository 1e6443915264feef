"""Sweeps: `run.py` is the entry, `tracing` the lowest room, `chunks` the highest."""
