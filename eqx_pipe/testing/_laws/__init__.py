"""The laws that stages, axes, spaces, reducers and sweeps keep."""
