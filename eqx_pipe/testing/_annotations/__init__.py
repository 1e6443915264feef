"""Values that satisfy jaxtyping annotations."""
