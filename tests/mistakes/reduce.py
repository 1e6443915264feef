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


REDUCE = [
    ("a function", lambda: reduced(jnp.mean), TypeError, "or a pytree of reducers"),
    (
        "a class",
        lambda: reduced(ep.reduce.Mean),
        TypeError,
        r"instance of it: `Mean\(\.\.\.\)",
    ),
    ("nothing", lambda: reduced({}), TypeError, "or None to keep all values"),
    (
        "no output",
        lambda: reduced(ep.reduce.Mean("los"), record),
        ValueError,
        "mean `loss`",
    ),
    (
        "by 3",
        lambda: reduced(ep.reduce.Mean(3), record),
        TypeError,
        "function of the output",
    ),
    (
        "an array",
        lambda: reduced(ep.reduce.ArgMax("at"), record),
        ValueError,
        "Give `by=`",
    ),
    (
        "a record",
        lambda: reduced(ep.reduce.TopK(1), record),
        ValueError,
        "Known names: `at`",
    ),
    (
        "no order",
        lambda: reduced(ep.reduce.Max(), lambda x: jax.lax.complex(x, x)),
        TypeError,
        r"`lambda out: abs\(out\)`",
    ),
    (
        "no arithmetic",
        lambda: reduced(ep.reduce.Mean(), lambda x: key()),
        TypeError,
        "Choose what to reduce by `by=`",
    ),
    ("q 50", lambda: ep.reduce.Quantile(50), ValueError, "a number from 0 to 1"),
    ("q a text", lambda: ep.reduce.Quantile("all"), ValueError, r"Quantile\(0.5\)"),
    ("q nothing", lambda: ep.reduce.Quantile([]), ValueError, "or several of them"),
    (
        "quantile of keys",
        lambda: reduced(ep.reduce.Quantile(0.5), lambda x: key()),
        TypeError,
        "Choose what to reduce",
    ),
    (
        "over 3",
        lambda: ep.reduce.Mean(over=3),
        TypeError,
        'name of a dim, `over="seed"`',
    ),
    (
        "over none",
        lambda: ep.reduce.Histogram([0, 1], over=()),
        TypeError,
        "name of a dim",
    ),
    ("over a typo", lambda: cells("sead"), ValueError, "Did you mean `seed`"),
    ("over an axis", lambda: cells("rate"), ValueError, "give `over='r'`"),
    ("over all dims", lambda: cells(("seed", "r")), ValueError, "Leave `over` out"),
    ("over a dim twice", lambda: cells(("r", "r")), ValueError, "each dim once"),
    ("over a part", lambda: cells("seed", GRID[2:]), ValueError, "the whole grid"),
    (
        "over this and that",
        lambda: ep.sweep(
            record, GRID, reduce=[ep.reduce.Mean(over="seed"), ep.reduce.Max(over="r")]
        ),
        ValueError,
        "the same `over=`",
    ),
    (
        "over, of other forms",
        lambda: ep.sweep(
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
        ValueError,
        "the same structure, shapes and dtypes for every cell",
    ),
    (
        "over, of texts",
        lambda: ep.sweep(
            lambda p: p["rate"], GRID, reduce=reducer(finish=repr, over="seed")
        ),
        ep.StructureError,
        "give arrays of numbers",
    ),
    ("k 0", lambda: ep.reduce.TopK(0), ValueError, "integer of at least 1"),
    (
        "mode",
        lambda: ep.reduce.TopK(1, mode="top"),
        ValueError,
        "Known names: `max`, `min`",
    ),
    ("3 bins", lambda: ep.reduce.Histogram(3), ValueError, r"range=\(0, 1\)"),
    (
        "bins",
        lambda: ep.reduce.Histogram([0, 2, 1]),
        ValueError,
        "increasing finite edges",
    ),
    ("0 bins", lambda: ep.reduce.Histogram(0, range=(0, 1)), ValueError, "at least 1"),
    (
        "a range of 3",
        lambda: ep.reduce.Histogram(3, range=3),
        ValueError,
        "`range` is 3",
    ),
    (
        "a text",
        lambda: ep.reduce.Histogram(3, range="ab"),
        ValueError,
        "`range` is 'ab'",
    ),
    ("update 3", lambda: reducer(update=3), TypeError, "Give functions: `Reducer"),
    (
        "a state that grows",
        lambda: reduced(reducer(update=lambda s, x: jnp.zeros(2))),
        ep.StructureError,
        "cast in `update`",
    ),
]
