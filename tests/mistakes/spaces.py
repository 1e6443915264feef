"""Axes and spaces."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax import ShapeDtypeStruct as Struct
from jax.numpy import sin

import eqx_pipe as ep

from .common import ones


def table():
    """Two rows of `a` in a data frame."""
    import pandas

    return pandas.DataFrame({"a": [1.0, 2.0]})


class Plain:
    def __init__(self, rate):
        self.rate = rate


class Empty(ep.Axis):
    dim: None = None

    def __len__(self):
        return 0

    def value(self, i, key):
        return i


def wide():
    with jax.enable_x64(True):
        return ep.Linspace(0, 1, 2)


SPACE = [
    ("no axis", lambda: ep.Space({"a": 1}), ValueError, "in the place of a leaf"),
    (
        "a data frame",
        lambda: ep.Space(table()),
        ValueError,
        "`ep.Space.from_table` a space of a",
    ),
    ("a list", lambda: ep.Space([1, 2, 3]), ValueError, "`ep.Values` makes an axis"),
    (
        "an object, in a sweep",
        lambda: ep.sweep(sin, Plain(ep.Values([1]))),
        ValueError,
        "does not look into `Plain`: make it an `equinox.Module`",
    ),
    ("a space", lambda: ep.Space(ep.Space(ep.Values([1]))), TypeError, "its `.tree`"),
    ("zap", lambda: ep.Space(ep.Values([1]), "zap"), ValueError, "mean `zip`"),
    ("key 3", lambda: ep.Space(ep.Values([1]), key=3), TypeError, "jax.random.key"),
    ("point", lambda: ep.Space({"point": ep.Values([1])}), ValueError, "Rename it"),
    (
        "lengths",
        lambda: ep.Space({"a": ep.Values([1]), "b": ep.Values([1, 2])}, "zip"),
        ValueError,
        "`a` has 1, `b` has 2. Give",
    ),
    (
        "two of one path",
        lambda: ep.Space({"a.b": ep.Values([1]), "a": {"b": ep.Values([1])}}),
        ValueError,
        "Rename one of the dict keys",
    ),
    (
        "dim point",
        lambda: ep.Space(ep.Values([1], dim="point")),
        ValueError,
        "Rename the dim",
    ),
    (
        "a dim that is a path",
        lambda: ep.Space({"a": ep.Values([1]), "b": ep.Values([1], dim="a")}),
        ValueError,
        "`dim='a'` too if they are to vary together, or rename",
    ),
    (
        "a shared dim",
        lambda: ep.Space(
            {"a": ep.Values([1], dim="g"), "b": ep.Values([1, 2], dim="g")}
        ),
        ValueError,
        "`a` has 1, `b` has 2. Give",
    ),
    ("empty", lambda: ep.Space({"a": Empty()}), ValueError, "Give it at least one"),
    (
        "2 of 2",
        lambda: ep.Space(ep.Values([1, 2]))[2],
        IndexError,
        "of the 2 points, 0",
    ),
    ("-1", lambda: ep.Space(ep.Values([1])).point(-1), IndexError, "Give one of the"),
    ("['a']", lambda: ep.Space(ep.Values([1]))["a"], TypeError, "an integer, a slice"),
    (
        "[True]",
        lambda: ep.Space(ep.Values([1]))[True],
        TypeError,
        "an integer, a slice",
    ),
    ("[[3]]", lambda: ep.Space(ep.Values([1]))[[3]], IndexError, "of the 1 points, 0"),
    ("[[0.5]]", lambda: ep.Space(ep.Values([1]))[[0.5]], TypeError, "list of indices"),
    (
        "a mask of 2",
        lambda: ep.Space(ep.Values([1, 2, 3]))[[True, False]],
        ValueError,
        r"one bool for each point, shape \(3,\)",
    ),
    (
        "a traced mask",
        lambda: jax.eval_shape(
            lambda mask: ep.Space(ep.Values([1]))[mask].dims, Struct((1,), bool)
        ),
        TypeError,
        "choose them outside of `jit`",
    ),
    (
        "a traced float",
        lambda: jax.eval_shape(ep.Space(ep.Values([1])).point, ones()),
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
        lambda: ep.Space(ep.Values([1]), key=jr.key(0, impl="rbg")),
        ValueError,
        "threefry2x32",
    ),
    (
        "a dict that cannot be sorted",
        lambda: ep.Space({1: ep.Values([1]), "1": ep.Values([2])}),
        TypeError,
        r"1 \(int\) and '1' \(str\).*keys of one type that can be sorted",
    ),
    (
        "64 bits switched off",
        lambda: ep.sweep(sin, wide()),
        ValueError,
        "`x` .*float64.*Switch `jax_enable_x64` on before this call too",
    ),
    (
        "no key",
        lambda: ep.Space({"a": ep.Random(jr.normal, 2)}),
        ep.MissingKeyError,
        r"`a` .*Space\(tree, key=jax.random.key\(0\)\)",
    ),
]


TABLE = [
    ("a number", lambda: ep.Space.from_table(3), TypeError, "Give a dict of columns"),
    ("nothing", lambda: ep.Space.from_table({}), ValueError, "Give a dict of columns"),
    ("no rows", lambda: ep.Space.from_table([]), ValueError, "Give a dict of columns"),
    (
        "no names",
        lambda: ep.Space.from_table(np.ones((2, 2))),
        TypeError,
        "Name its 2 columns",
    ),
    (
        "one name",
        lambda: ep.Space.from_table(np.ones((2, 2)), ["a"]),
        ValueError,
        "Give each column a name",
    ),
    (
        "names",
        lambda: ep.Space.from_table({"a": [1]}, ["a"]),
        TypeError,
        "dict .* has its own",
    ),
    (
        "dim",
        lambda: ep.Space.from_table({"a": [1]}, dim=None),
        TypeError,
        "Give a name",
    ),
    (
        "lengths",
        lambda: ep.Space.from_table({"a": [1], "b": [1, 2]}),
        ValueError,
        "`a` has 1, `b` has 2. Give each column",
    ),
    (
        "a constant",
        lambda: ep.Space.from_table({"a": [1], "b": 2}),
        TypeError,
        "stands beside",
    ),
    (
        "other keys",
        lambda: ep.Space.from_table([{"a": 1}, {"b": 1}]),
        ValueError,
        "differ in a, b. Give each row the same keys",
    ),
    (
        "a row of 1",
        lambda: ep.Space.from_table([{"a": 1}, 1]),
        TypeError,
        "list of dicts",
    ),
    (
        "a number that is missing",
        lambda: ep.Space.from_table({"a": [1, None, 3]}),
        ValueError,
        r"in the rows 1. Fill them, .*`df.dropna\(\)`",
    ),
    (
        "no texts",
        lambda: ep.Space.from_table({"a": np.array([], object)}),
        ValueError,
        r"take a part of it, `ep.Space.from_table\(df\)\[mask\]`",
    ),
    (
        "times",
        lambda: ep.Space.from_table({"a": np.array(["2020-01-01"], "M8[s]")}),
        TypeError,
        "seconds since",
    ),
    (
        "too large",
        lambda: ep.Space.from_table({"a": [1e60]}),
        ValueError,
        "Use a wider dtype",
    ),
]


SEEDS = [
    ("0", lambda: ep.Seeds(0), ValueError, "Give an integer of at least 1"),
    ("draws", lambda: ep.Seeds(2, draws="shared"), ValueError, "`common`"),
]
