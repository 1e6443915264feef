"""Spaces and tables."""

import datetime

import jax
import jax.numpy as jnp
import numpy as np
from jax import ShapeDtypeStruct as Struct
from jax.numpy import sin

import eqx_pipe as ep

from .common import key, ones

ONE, TWO = ep.Values([1]), ep.Values([1, 2])
table = ep.Space.from_table


class Plain:
    def __init__(self, rate):
        self.rate = rate


class Empty(ep.Axis):
    dim: None = None

    def __len__(self):
        return 0

    def value(self, i, key):
        return i


def shared(dim, other=None):
    return ep.Space({"a": ep.Values([1], dim=other), "b": ep.Values([1, 2], dim=dim)})


SPACE = {
    ValueError: {
        "`Plain`: make it an `equinox.Module`": lambda: ep.sweep(sin, Plain(ONE)),
        "axis `point`.*Rename it": lambda: ep.Space({"point": ONE}),
        "Rename one of the dict keys": lambda: ep.Space({"a.b": ONE, "a": {"b": ONE}}),
        "`dim='a'` too if they": lambda: shared("a"),
        "`a` has 1, `b` has 2. G": lambda: shared("g", "g"),
        "Give it at least one": lambda: ep.Space({"a": Empty()}),
        r"each point, shape \(2,\)": lambda: ep.Space(TWO)[[True]],
        "same random numbers. Rename": lambda: ep.Space(
            {"plumless": ONE, "buckeroo": ONE}, key=key()
        ),
        "point 2 has 9 for `0`.*one of the values": lambda: ep.Space(
            [TWO, TWO]
        ).to_unit(ep.Space([ep.Values([1, 9]), TWO])),
        "0 has 5.0 for `x`, outside .*one end of": lambda: ep.Space(
            ep.Linspace(0, 1, 2)
        ).to_unit(ep.Space(ep.Values([5.0]))),
        "without a step": lambda: ep.Space([ep.Linspace(0, 1, 2**20)] * 2)[::2],
    },
    TypeError: {
        "for a dict `list": lambda: ep.Static({"relu": sin}),
        "list of the values.*": lambda: ep.Static({"relu", "tanh"}),
        "Give a sequence of numbers": lambda: ep.Values({1: 2, 3: 4}),
        "Give a sequence of numbers.*": lambda: ep.Values({1, 2}),
        "list of the values": lambda: ep.Static(np.array(1)),
        "its `.tree`": lambda: ep.Space(ep.Space(ONE)),
        "True .bool.. Give an integer": lambda: ep.Space(ONE)[True],
        "list of indices": lambda: ep.Space(ONE)[[0.5]],
        "at once use `jax.vmap`": lambda: jax.eval_shape(ep.Space(ONE).point, ones()),
        "Use a plain integer, or `sweep`": lambda: jax.eval_shape(
            ep.Space(ep.Static([1])).point, Struct((), jnp.dtype("int32"))
        ),
    },
    IndexError: {
        "Give indices of the 2 points, 0": lambda: ep.Space(TWO)[2],
        "of the 1 points, 0": lambda: ep.Space(ONE)[[3]],
    },
}

TABLE = {
    TypeError: {
        r"for an array `dict\(zip\(names, array.T": lambda: table(np.ones((2, 2))),
        "no columns. Give a dict of columns": lambda: table({}),
        "stands beside": lambda: table({"a": [1], "b": 2}),
        r"`pandas.DataFrame\(rows\)`": lambda: table([{"a": 1}, 1]),
        r"`ep.Space.from_table\(df\)\[mask\]`": lambda: table(
            {"a": np.array([], object)}
        ),
        "such as seconds": lambda: table({"a": np.array(["2020-01-01"], "M8[s]")}),
        "date.*or texts, `df": lambda: table({"a": [datetime.date(2020, 1, 1)]}),
    },
    ValueError: {
        "`b` has 2. Give": lambda: table({"a": [1], "b": [1, 2]}),
        r"1 missing values. .*`df.dropna\(": lambda: table({"a": [1, None, 3]}),
    },
}
