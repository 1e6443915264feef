"""Summaries, drawings and results of sweeps."""

import jax
import numpy as np
from equinox import nn

import eqx_pipe as ep

from .common import Counter, ones, record


def swept(fn=record):
    """Return the result of a sweep by the plain loop, which compiles nothing."""
    with jax.disable_jit():
        return ep.sweep(lambda p: fn(p["x"]), {"x": ep.Linspace(0, 1, 3)})


L = ep.Linspace(0, 1, 2)
ABC = {"a": L, "b": L, "c": L}


def plot(space=ABC, fn=lambda p: sum(p.values()), **options):
    """Plot a sweep by the plain loop."""
    with jax.disable_jit():
        return ep.sweep(fn, space).plot(**options)


def reduced():
    return ep.sweep(jax.numpy.sin, L, reduce=ep.reduce.Mean())


VIEWS = {
    ValueError: {
        r"y, state = pipe\(x, state\)": lambda: ep.summary(
            nn.make_with_state(lambda: ep.chain(Counter()))()[0], ones(2)
        ),
        '`mode="max"`.*`loss`': lambda: swept().best("max"),
        "Known names: `at`, `loss`": lambda: swept().best(),
        "Did you mean `loss`": lambda: swept().best("los"),
        "Compare by a real scalar": lambda: swept().best("at"),
        "`by` is a float32.2. per point": lambda: swept().best(lambda y: y["at"]),
        "names 'seed', which is not a dim": lambda: swept().best("loss", over="seed"),
        "`over` names all dims of the space: x. Name": lambda: swept().best(
            "loss", over="x"
        ),
        "`mode` is 'mn'.*`min`": lambda: swept().best("loss", mode="mn"),
        "`sel` has '1', but `x` goes": lambda: swept().plot("loss", sel={"x": "1"}),
        "Look at `result.ok` and `result.values`": lambda: swept(
            lambda x: x * np.float32("nan")
        ).best(),
        "2 outputs.*chooses none. Known names: `at`, `loss`": lambda: swept().plot(),
        "`x` goes from 0 to 1. Give": lambda: swept().plot("loss", sel={"x": 100.0}),
        "`sel` names 'z'.*Known names: `a`, `b`": lambda: plot(sel={"z": 1}),
        "a single number, .*an output that is an array": lambda: reduced().plot(),
        "Leave a dim out": lambda: plot(sel={"a": 0, "b": 1, "c": 1}),
        "`x` is 'z'.*Known names: `a`, `b`": lambda: plot(x="z"),
        "names one dim twice": lambda: plot(x="a", y="a"),
        "each of another dim": lambda: plot(hue="a", y="b"),
        "leaves no dim for x": lambda: plot(hue="a", row="b", col="c"),
        "5 dims.*`sel={'e': 0}`": lambda: plot(dict.fromkeys("abcde", L)),
        "complex64.*absolute value": lambda: plot(
            ABC, lambda p: jax.lax.complex(p["a"], p["b"])
        ),
        "3 coordinates.*x='a', y='b'": lambda: plot(ep.Space(ABC, "zip")),
        r"ends in `\.zarr`.*to_netcdf": lambda: swept().save("r.pkl"),
    },
    IndexError: {
        "3 points, 0 to 2": lambda: swept()[9],
    },
    TypeError: {
        r"`result.values\['a'\]`.*a slice": lambda: swept()["a"],
        "Give a dict": lambda: plot(sel=["a"]),
        'over="seed"': lambda: swept().best("loss", over=3),
        "as a text or a `pathlib.Path`": lambda: swept().save(3),
    },
}
