"""Reducers, and sweeps that reduce."""

import jax
import jax.numpy as jnp

import eqx_pipe as ep
from eqx_pipe.reduce import ArgMax, Histogram, Max, Mean, Quantile, Reducer

from .common import key, record


def reduced(reduce, fn=lambda x: x):
    return ep.sweep(fn, ep.Linspace(0, 1, 3), reduce=reduce)


def reducer(**changes):
    return Reducer(
        **{
            "init": lambda struct: jnp.zeros(1),
            "update": lambda state, x: state,
            "merge": lambda a, b: a,
            "finish": lambda state: state,
        }
        | changes
    )


GRID = ep.Space(
    {"rate": ep.Linspace(0, 1, 3, dim="r"), "seed": ep.Values(jnp.arange(2))}
)


def over_seeds(reduce, space=GRID):
    return ep.sweep(lambda p: p["rate"], space, reduce=reduce)


def cells(over, space=GRID):
    return over_seeds(Mean(over=over), space)


REDUCE = {
    TypeError: {
        r"instance of it: `Mean\(\.\.\.\)": lambda: reduced(Mean),
        "or None to keep all values": lambda: reduced({}),
        "function of the output": lambda: reduced(Mean(3), record),
        r"`lambda out: abs\(out\)`": lambda: reduced(
            Max(), lambda x: jax.lax.complex(x, x)
        ),
        "Choose what to reduce by `by=`": lambda: reduced(Mean(), lambda x: key()),
        "Choose what to reduce": lambda: reduced(Quantile(0.5), lambda x: key()),
        "name of a dim": lambda: Histogram([0, 1], over=()),
    },
    ValueError: {
        "mean `loss`": lambda: reduced(Mean("los"), record),
        "Give `by=`": lambda: reduced(ArgMax("at"), record),
        "or several of them": lambda: Quantile([]),
        "Did you mean `seed`": lambda: cells("sead"),
        "give `over='r'`": lambda: cells("rate"),
        "Leave `over` out": lambda: cells(("seed", "r")),
        "each dim once": lambda: cells(("r", "r")),
        "the whole grid": lambda: cells("seed", GRID[2:]),
        "the same `over=`": lambda: ep.sweep(
            record, GRID, reduce=[Mean(over="seed"), Max(over="r")]
        ),
        "the same structure, shapes and dtypes for every cell": lambda: over_seeds(
            reducer(
                update=jnp.add,
                merge=jnp.add,
                finish=lambda state: jnp.zeros(1 + int(state[0])),
                over="seed",
            )
        ),
        "numpy.linspace": lambda: Histogram(3),
        "increasing finite edges": lambda: Histogram([0, 2, 1]),
    },
    ep.StructureError: {
        "return arrays of numbers": lambda: over_seeds(
            reducer(finish=repr, over="seed")
        ),
        "cast in `update`": lambda: reduced(reducer(update=lambda s, x: jnp.zeros(2))),
    },
}
