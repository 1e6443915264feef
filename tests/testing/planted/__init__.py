"""Bugs that were planted without looking at the laws, each with a sound twin."""

from . import batches, dtypes, hidden, keys, nans, others, params, programs, rules

ROOMS = {
    "Rules and derivatives": rules.ROWS,
    "Numbers that are not finite": nans.ROWS,
    "Batches": batches.ROWS,
    "Purity and tracing": hidden.ROWS,
    "Parameters": params.ROWS,
    "Dtypes": dtypes.ROWS,
    "Programs": programs.ROWS,
    "Keys": keys.ROWS,
    "Axes, reducers, loaders, references": others.ROWS,
}
"""The tables by what they are about."""
