"""The laws of functions, stages, axes, reducers, loaders and search methods."""
