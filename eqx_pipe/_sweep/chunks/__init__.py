"""Sweeps chunk by chunk: kept in a store, shared by processes, sent to workers."""
