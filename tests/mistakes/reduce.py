"""Reducers, and sweeps that reduce."""

import jax
import jax.numpy as jnp

import eqx_pipe as ep

from .common import key, record


def reduced(reduce, fn=lambda x: x):
    return ep.sweep(fn, ep.Linspace(0, 1, 3), reduce=reduce)


def reducer(**changes):
    return ep.Reducer(
        **{
            "init": lambda struct: jnp.zeros(1),
            "update": lambda state, x: state,
            "merge": lambda a, b: a,
            "finish": lambda state: state,
        }
        | changes
    )


REDUCE = [
    ("a function", lambda: reduced(jnp.mean), TypeError, "or a pytree of reducers"),
    (
        "a class",
        lambda: reduced(ep.Mean),
        TypeError,
        r"instance of it: `Mean\(\.\.\.\)",
    ),
    ("nothing", lambda: reduced({}), TypeError, "or None to keep all values"),
    ("no output", lambda: reduced(ep.Mean("los"), record), ValueError, "mean `loss`"),
    ("by 3", lambda: reduced(ep.Mean(3), record), TypeError, "function of the output"),
    ("an array", lambda: reduced(ep.ArgMax("at"), record), ValueError, "Give `by=`"),
    ("a record", lambda: reduced(ep.TopK(1), record), ValueError, "Known names: `at`"),
    (
        "no order",
        lambda: reduced(ep.Max(), lambda x: jax.lax.complex(x, x)),
        TypeError,
        r"`lambda out: abs\(out\)`",
    ),
    (
        "no arithmetic",
        lambda: reduced(ep.Mean(), lambda x: key()),
        TypeError,
        "Choose what to reduce by `by=`",
    ),
    ("k 0", lambda: ep.TopK(0), ValueError, "integer of at least 1"),
    ("mode", lambda: ep.TopK(1, mode="top"), ValueError, "Known names: `max`, `min`"),
    ("3 bins", lambda: ep.Histogram(3), ValueError, r"range=\(0, 1\)"),
    ("bins", lambda: ep.Histogram([0, 2, 1]), ValueError, "from the lowest to the hi"),
    ("0 bins", lambda: ep.Histogram(0, range=(0, 1)), ValueError, "at least 1"),
    ("a range of 3", lambda: ep.Histogram(3, range=3), TypeError, r"`range=\(0, 1\)`"),
    ("a text", lambda: ep.Histogram(3, range="ab"), TypeError, r"`range=\(0, 1\)`"),
    ("update 3", lambda: reducer(update=3), TypeError, "Give functions: `Reducer"),
    (
        "a state that grows",
        lambda: reduced(reducer(update=lambda s, x: jnp.zeros(2))),
        ep.StructureError,
        "cast in `update`",
    ),
]
