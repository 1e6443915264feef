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


def concat(*results):
    return ep.SweepResult.concat(results)


def beside(**tree):
    """The same over other spaces."""
    with jax.disable_jit():
        return ep.sweep(lambda p: 0.0, {"x": ep.Values([1.0]), **tree})


VIEWS = {
    ValueError: {
        "ends in `.md` or `.mmd`": lambda: ep.draw(len).save("pipe.png"),
        r"Call `draw\(pipe, x, state=state\)`": lambda: ep.draw(
            nn.make_with_state(lambda: ep.chain(Counter()))()[0], ones(2)
        ),
        "Known names: `x`": lambda: swept().sel(b=1),
        r"A range is `sel\(x=slice": lambda: swept().sel(x=0.3),
        "Give at least one result": lambda: concat(),
        "that return the same structure": lambda: concat(swept(), beside()),
        "the same axes at the same places": lambda: concat(
            beside(), beside(y=ep.Values([1.0]))
        ),
        "an axis with one value": lambda: concat(beside(y=1.0), beside(y=2.0)),
        "the same structure, shape and dtype": lambda: concat(
            beside(), beside(x=ep.Values([1]))
        ),
        '`mode="max"`.*`loss`': lambda: swept().best("max"),
        "Known names: `at`, `loss`": lambda: swept().best(),
        "Did you mean `loss`": lambda: swept().best("los"),
        "Compare by a real scalar": lambda: swept().best("at"),
        "Look at `result.values`": lambda: swept(
            lambda x: x * np.float32("nan")
        ).best(),
        "outputs. Known names: `at`, `loss`": lambda: swept().plot(),
        "`x` goes from 0 to 1. Give": lambda: swept().plot("loss", sel={"x": 100.0}),
        r"ends in `\.zarr`.*to_netcdf": lambda: swept().save("r.pkl"),
    },
    IndexError: {
        "3 points, 0 to 2": lambda: swept()[9],
        "Give indices of the": lambda: swept()[[9]],
    },
    TypeError: {
        r"`result.values\['a'\]`.*a slice": lambda: swept()["a"],
        "without a step": lambda: swept().sel(x=slice(0, 1, 2)),
        "Give a list of results of `sweep`": lambda: concat(3),
        "as a text or a `pathlib.Path`": lambda: swept().save(3),
    },
}
