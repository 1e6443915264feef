"""Axes by themselves, and designs of them."""

import jax.random as jr
import numpy as np
from jax.numpy import sin

import eqx_pipe as ep

from .common import ones

Line, Values = ep.Linspace, ep.Values
BOX = ep.Uniform(0, 1)


class Noise(ep.Axis):
    """An axis that draws its values without `needs_key`."""

    dim: str | None = None

    def __len__(self):
        return 2

    def value(self, i, key):
        return jr.normal(jr.fold_in(key, i))


def first(fn, axis):
    return ep.Space({"a": ep.Mapped(fn, axis)})[0]


AXES = {
    ValueError: {
        "Give finite ends": lambda: Line(0, np.nan, 3),
        "a coarse one and a fi": lambda: Line(0, 1, 2**31),
        "of the same shape": lambda: ep.Uniform(ones(2), 1),
        "use `Linspace`": lambda: ep.Geomspace(0, 1, 3),
        "is empty. Give at least one": lambda: Values([]),
        r"differ in shape or kind: \[\[1\], \[1, 2\]\] .*one shape": lambda: Values(
            [[1], [1, 2]]
        ),
        r"`values\[1\]` is 1e": lambda: Values(np.array([1, 1e-50])),
        "Give at least one value": lambda: ep.Static([]),
    },
    TypeError: {
        "a single value. Give a sequence": lambda: Values(ones()),
        r"`num` is 5 .*For a grid give `Linspace\(": lambda: ep.Uniform(0, 1, 5),
        r"For a grid give `Geomspace\(": lambda: ep.LogUniform(0.1, 1, num=5),
        "other Python values use `eqx_pipe.Static`": lambda: Values(["a", "b"]),
        "at `.f`.*use `Static`": lambda: first(lambda x: {"f": sin}, Values([1])),
    },
    ep.MissingKeyError: {
        "draws its values.*Make the space with one": lambda: ep.sweep(sin, Noise())
    },
}


def line():
    return ep.Space({"a": Line(0, 1, 3)})


def categories(*values):
    return ep.Space({"a": Values(values)})


UNIT = {
    ValueError: {
        r"shape \(points, 1\)": lambda: line().from_unit([0.5]),
        "Give each its own dim": lambda: ep.Space([Values([1], dim="g")] * 2).from_unit(
            [[0, 0]]
        ),
        "a space with the same axes": lambda: line().to_unit(
            ep.Space({"b": Values([1])})
        ),
        "Give points with": lambda: categories(1).to_unit(categories(2)),
    },
    TypeError: {
        "made by `space.from_unit`": lambda: ep.Space(
            {"a": ep.Mapped(sin, BOX)}
        ).to_unit(categories(0.5))
    },
}
