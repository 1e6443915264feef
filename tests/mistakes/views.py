"""What people look at: descriptions, drawings, results of sweeps."""

import jax
import numpy as np
from equinox import nn

import eqx_pipe as ep

from .common import Counter, ones, record


def swept(fn=record):
    """The result of a sweep, by the plain loop, which compiles nothing."""
    with jax.disable_jit():
        return ep.sweep(lambda p: fn(p["x"]), {"x": ep.Linspace(0, 1, 3)})


def beside(**tree):
    """The same over other spaces."""
    with jax.disable_jit():
        return ep.sweep(lambda p: 0.0, {"x": ep.Values([1.0]), **tree})


VIEWS = [
    ("a class", lambda: ep.summary(nn.MLP), TypeError, "Make an instance"),
    (
        "save as png",
        lambda: ep.draw(len).save("pipe.png"),
        ValueError,
        "Give a path that ends in `.md` or `.mmd`",
    ),
    ("draw 3", lambda: ep.draw(3), TypeError, "A stage is a callable"),
    (
        "draw without state",
        lambda: ep.draw(nn.make_with_state(lambda: ep.chain(Counter()))()[0], ones(2)),
        ValueError,
        r"Call `draw\(pipe, x, state=state\)`",
    ),
    ("point 9", lambda: swept()[9], IndexError, "3 points, 0 to 2"),
    ("point 'a'", lambda: swept()["a"], TypeError, r"`result.values\['a'\]`.*a slice"),
    ("points [9]", lambda: swept()[[9]], IndexError, "Give indices of the"),
    ("sel of 'b'", lambda: swept().sel(b=1), ValueError, "Known names: `x`"),
    ("sel of 0.3", lambda: swept().sel(x=0.3), ValueError, r"A range is `sel\(x=slice"),
    ("sel by 2", lambda: swept().sel(x=slice(0, 1, 2)), TypeError, "without a step"),
    (
        "concat nothing",
        lambda: ep.SweepResult.concat([]),
        ValueError,
        "Give at least one result",
    ),
    (
        "concat 3",
        lambda: ep.SweepResult.concat([3]),
        TypeError,
        "Give a list of results of `sweep`",
    ),
    (
        "concat outputs",
        lambda: ep.SweepResult.concat([swept(), beside()]),
        ValueError,
        "functions that return the same structure",
    ),
    (
        "concat axes",
        lambda: ep.SweepResult.concat([beside(), beside(y=ep.Values([1.0]))]),
        ValueError,
        "the same axes at the same places",
    ),
    (
        "concat constants",
        lambda: ep.SweepResult.concat([beside(y=1.0), beside(y=2.0)]),
        ValueError,
        "make what differs an axis with one value",
    ),
    (
        "concat dtypes",
        lambda: ep.SweepResult.concat([beside(), beside(x=ep.Values([1]))]),
        ValueError,
        "the same structure, shape and dtype",
    ),
    ("best 'max'", lambda: swept().best("max"), ValueError, '`mode="max"`.*`loss`'),
    ("best of two", lambda: swept().best(), ValueError, "Known names: `at`, `loss`"),
    ("best by los", lambda: swept().best("los"), ValueError, "Did you mean `loss`"),
    ("mode 'mn'", lambda: swept().best("loss", mode="mn"), ValueError, "`min`"),
    (
        "best by an array",
        lambda: swept().best(lambda y: y["at"]),
        ValueError,
        "Compare by a real scalar",
    ),
    (
        "sel x as a text",
        lambda: swept().plot("loss", sel={"x": "1"}),
        ValueError,
        "`x` goes from 0 to 1. Give a value in this range",
    ),
    ("best array", lambda: swept().best("at"), ValueError, "Compare by a real scalar"),
    (
        "best of nan",
        lambda: swept(lambda x: x * np.float32("nan")).best(),
        ValueError,
        "Look at `result.values` and `result.ok`",
    ),
    ("plot of two", lambda: swept().plot(), ValueError, "Known names: `at`, `loss`"),
    (
        "sel x far away",
        lambda: swept().plot("loss", sel={"x": 100.0}),
        ValueError,
        "`x` goes from 0 to 1. Give a value in this range",
    ),
    (
        "pkl",
        lambda: swept().save("r.pkl"),
        ValueError,
        r"ends in `\.zarr`.*to_netcdf",
    ),
    ("a URL", lambda: swept().save("s3://b/r.zarr"), ValueError, "path on a disk"),
    ("a path", lambda: swept().save(3), TypeError, "as a text or a `pathlib.Path`"),
]
