"""Bugs that were planted without looking at the laws, each with a sound twin."""

from . import batches, dtypes, hidden, keys, nans, others, params, programs, rules

TABLES = {
    "Rules and derivatives": (rules.ROWS, ("derivative",)),
    "Numbers that are not finite": (nans.ROWS, ("finite",)),
    "Batches": (batches.ROWS, ("vmap",)),
    "Purity and tracing": (hidden.ROWS, ("pure", "jit")),
    "Parameters": (params.ROWS, ("params", "dtype", "jit", "derivative")),
    "Dtypes": (dtypes.ROWS, ("dtype",)),
    "Programs": (programs.ROWS, ("recompiles",)),
    "Keys": (keys.ROWS, ("key",)),
    "Axes, reducers, loaders, references": (others.ROWS, None),
}
"""The tables by their subject, each with the laws that report its bugs."""
