"""Reducers, and sweeps that reduce."""

import jax
import jax.numpy as jnp

import eqx_pipe as ep

from .common import key, record


def reduced(reduce, fn=lambda x: x):
    return ep.sweep(fn, ep.Linspace(0, 1, 3), reduce=reduce)


def reducer(**changes):
    return ep.reduce.Reducer(
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


def cells(over, space=GRID):
    return ep.sweep(lambda p: p["rate"], space, reduce=ep.reduce.Mean(over=over))


REDUCE = {
    TypeError: {
        r"instance of it: `Mean\(\.\.\.\)": lambda: reduced(ep.reduce.Mean),
        "or None to keep all values": lambda: reduced({}),
        "function of the output": lambda: reduced(ep.reduce.Mean(3), record),
        r"`lambda out: abs\(out\)`": lambda: reduced(
            ep.reduce.Max(), lambda x: jax.lax.complex(x, x)
        ),
        "Choose what to reduce by `by=`": lambda: reduced(
            ep.reduce.Mean(), lambda x: key()
        ),
        "Choose what to reduce": lambda: reduced(
            ep.reduce.Quantile(0.5), lambda x: key()
        ),
        "name of a dim": lambda: ep.reduce.Histogram([0, 1], over=()),
    },
    ValueError: {
        "mean `loss`": lambda: reduced(ep.reduce.Mean("los"), record),
        "Give `by=`": lambda: reduced(ep.reduce.ArgMax("at"), record),
        "Known names: `at`": lambda: reduced(ep.reduce.TopK(1), record),
        "a number from 0 to 1": lambda: ep.reduce.Quantile(50),
        "or several of them": lambda: ep.reduce.Quantile([]),
        "Did you mean `seed`": lambda: cells("sead"),
        "give `over='r'`": lambda: cells("rate"),
        "Leave `over` out": lambda: cells(("seed", "r")),
        "each dim once": lambda: cells(("r", "r")),
        "the whole grid": lambda: cells("seed", GRID[2:]),
        "the same `over=`": lambda: ep.sweep(
            record, GRID, reduce=[ep.reduce.Mean(over="seed"), ep.reduce.Max(over="r")]
        ),
        "the same structure, shapes and dtypes for every cell": lambda: ep.sweep(
            lambda p: p["rate"],
            GRID,
            reduce=reducer(
                init=lambda struct: jnp.zeros(()),
                update=lambda state, x: x,
                merge=lambda a, b: b,
                finish=lambda state: jnp.zeros(1 + int(state)),
                over="seed",
            ),
        ),
        r"range=\(0, 1\)": lambda: ep.reduce.Histogram(3),
        "increasing finite edges": lambda: ep.reduce.Histogram([0, 2, 1]),
        "`range` is 'ab'": lambda: ep.reduce.Histogram(3, range="ab"),
    },
    ep.StructureError: {
        "give arrays of numbers": lambda: ep.sweep(
            lambda p: p["rate"], GRID, reduce=reducer(finish=repr, over="seed")
        ),
        "cast in `update`": lambda: reduced(reducer(update=lambda s, x: jnp.zeros(2))),
    },
}
