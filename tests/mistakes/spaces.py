"""Spaces and tables."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax import ShapeDtypeStruct as Struct
from jax.numpy import sin

import eqx_pipe as ep

from .common import ones

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


def frame():
    """Two rows of `a` in a data frame."""
    import pandas

    return pandas.DataFrame({"a": [1.0, 2.0]})


def shared(dim, other=None):
    return ep.Space({"a": ep.Values([1], dim=other), "b": ep.Values([1, 2], dim=dim)})


SPACE = [
    ("no axis", lambda: ep.Space({"a": 1}), ValueError, "in the place of a leaf"),
    ("a frame", lambda: ep.Space(frame()), ValueError, "`ep.Space.from_table` a space"),
    (
        "an object, in a sweep",
        lambda: ep.sweep(sin, Plain(ONE)),
        ValueError,
        "does not look into `Plain`: make it an `equinox.Module`",
    ),
    ("a space", lambda: ep.Space(ep.Space(ONE)), TypeError, "its `.tree`"),
    ("zap", lambda: ep.Space(ONE, "zap"), ValueError, "mean `zip`"),
    ("key 3", lambda: ep.Space(ONE, key=3), TypeError, "jax.random.key"),
    ("point", lambda: ep.Space({"point": ONE}), ValueError, "Rename it"),
    (
        "lengths",
        lambda: ep.Space({"a": ONE, "b": TWO}, "zip"),
        ValueError,
        "`a` has 1, `b` has 2. Give",
    ),
    (
        "two of one path",
        lambda: ep.Space({"a.b": ONE, "a": {"b": ONE}}),
        ValueError,
        "Rename one of the dict keys",
    ),
    ("dim point", lambda: shared("point"), ValueError, "Rename it"),
    ("a dim that is a path", lambda: shared("a"), ValueError, "`dim='a'` too if they"),
    ("a shared dim", lambda: shared("g", "g"), ValueError, "`a` has 1, `b` has 2. G"),
    ("empty", lambda: ep.Space({"a": Empty()}), ValueError, "Give it at least one"),
    ("2 of 2", lambda: ep.Space(TWO)[2], IndexError, "of the 2 points, 0"),
    ("-1", lambda: ep.Space(ONE).point(-1), IndexError, "Give indices of"),
    ("['a']", lambda: ep.Space(ONE)["a"], TypeError, "an integer, a slice"),
    ("[True]", lambda: ep.Space(ONE)[True], TypeError, "an integer, a slice"),
    ("[[3]]", lambda: ep.Space(ONE)[[3]], IndexError, "of the 1 points, 0"),
    ("[[0.5]]", lambda: ep.Space(ONE)[[0.5]], TypeError, "list of indices"),
    ("a mask", lambda: ep.Space(TWO)[[True]], ValueError, r"each point, shape \(2,\)"),
    (
        "a step",
        lambda: ep.Space([ep.Linspace(0, 1, 2**20)] * 2)[::2],
        ValueError,
        "without a step",
    ),
    (
        "a traced float",
        lambda: jax.eval_shape(ep.Space(ONE).point, ones()),
        TypeError,
        "Give a scalar integer; for many points at once use `jax.vmap`",
    ),
    (
        "a traced index",
        lambda: jax.eval_shape(
            ep.Space(ep.Static([1])).point, Struct((), jnp.dtype("int32"))
        ),
        TypeError,
        "Use a plain integer, or `sweep` and `vmap_space`",
    ),
    (
        "rbg",
        lambda: ep.Space(ONE, key=jr.key(0, impl="rbg")),
        ValueError,
        "threefry2x32",
    ),
    (
        "no key",
        lambda: ep.Space({"a": ep.Random(jr.normal, 2)}),
        ep.MissingKeyError,
        r"`a` .*Space\(tree, key=jax.random.key\(0\)\)",
    ),
]

TABLE = [
    ("a number", lambda: table(3), TypeError, "Give a dict of columns"),
    ("nothing", lambda: table({}), ValueError, "Give a dict of columns"),
    ("no names", lambda: table(np.ones((2, 2))), ValueError, "Give each column a name"),
    ("names", lambda: table({"a": [1]}, ["a"]), TypeError, "dict .* has its own"),
    ("dim", lambda: table({"a": [1]}, dim=None), TypeError, "Give a name"),
    ("lengths", lambda: table({"a": [1], "b": [1, 2]}), ValueError, "`b` has 2. Give"),
    ("a constant", lambda: table({"a": [1], "b": 2}), TypeError, "stands beside"),
    ("other keys", lambda: table([{"a": 1}, {"b": 1}]), ValueError, "the same keys"),
    ("a row of 1", lambda: table([{"a": 1}, 1]), TypeError, "list of dicts"),
    (
        "a number that is missing",
        lambda: table({"a": [1, None, 3]}),
        ValueError,
        r"none in 1 rows. Fill them, .*`df.dropna\(\)`",
    ),
    (
        "no texts",
        lambda: table({"a": np.array([], object)}),
        TypeError,
        r"take a part of it, `ep.Space.from_table\(df\)\[mask\]`",
    ),
    (
        "times",
        lambda: table({"a": np.array(["2020-01-01"], "M8[s]")}),
        TypeError,
        "such as seconds",
    ),
    ("too large", lambda: table({"a": [1e60]}), ValueError, "Use a wider dtype"),
]
