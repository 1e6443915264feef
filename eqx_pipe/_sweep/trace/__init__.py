"""The function of a point as a jaxpr, one for each combination of `Static` values."""
