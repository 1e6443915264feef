"""Where arrays live: logical axes, placement, submeshes, derived shardings."""
