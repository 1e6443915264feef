"""Where chunks are computed: in this process, or by the workers of an executor."""
