"""Axes and spaces."""

import dataclasses

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax import ShapeDtypeStruct as Struct
from jax.numpy import sin

import eqx_pipe as ep

from .common import key, ones


def table(package):
    """Two rows of `a`, in a data frame of pandas or a dataset of xarray."""
    if package == "pandas":
        import pandas

        return pandas.DataFrame({"a": [1.0, 2.0]})
    import xarray

    return xarray.Dataset({"a": ("row", [1.0, 2.0])})


@dataclasses.dataclass
class Settings:
    rate: object


class Plain:
    def __init__(self, rate):
        self.rate = rate


class Gamma:
    def sample(self, key, shape):
        return jr.gamma(key, 1.0, shape)


class Noise(ep.Axis):
    """An axis that draws its values, and does not say so by `needs_key`."""

    dim: str | None = None

    def __len__(self):
        return 2

    def value(self, i, key):
        return jr.normal(jr.fold_in(key, i))


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
        lambda: ep.Space(table("pandas")),
        ValueError,
        r"is a DataFrame, .*`ep.table\(df\)`",
    ),
    (
        "a dataset",
        lambda: ep.Space(table("xarray")),
        ValueError,
        r"is a Dataset, .*`ep.table\(ds.to_dataframe\(\)\)`",
    ),
    (
        "a dataset with labels",
        lambda: ep.Space(table("xarray").assign_coords(row=["a", "b"])),
        ValueError,
        r"is a Dataset, .*`ep.table\(ds.to_dataframe\(\).reset_index\(\)\)`",
    ),
    (
        "a list of points",
        lambda: ep.Space([{"a": 1, "b": 2}, {"a": 3, "b": 4}]),
        ValueError,
        r"list of 2 points, .*`ep.table\(points\)`",
    ),
    (
        "arrays",
        lambda: ep.Space({"a": np.zeros(3), "b": 1.0}),
        ValueError,
        r"float64\[3\] at `\['a'\]` is handed .* made an axis by `ep.Values",
    ),
    (
        "a list",
        lambda: ep.Space([1, 2, 3]),
        ValueError,
        "made an axis by `ep.Values",
    ),
    (
        "a dataclass",
        lambda: ep.Space({"a": ep.Values([1]), "c": Settings(ep.Values([1]))}),
        TypeError,
        r"`rate` is in a `Settings` at `c`.*register_dataclass\(Settings\)`",
    ),
    (
        "an object, in a sweep",
        lambda: ep.sweep(sin, Plain(ep.Values([1]))),
        TypeError,
        "`rate` is in a `Plain`, .*make it an `equinox.Module`",
    ),
    (
        "dim of a space",
        lambda: ep.Space(ep.Values([1]), dim="x"),
        TypeError,
        "Dims are named on the axes",
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
        "`dim='a'` too if they shall vary together, or rename",
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
        "where a mask",
        lambda: ep.Space(ep.Values([1])).where([True]),
        TypeError,
        r"`space\[mask\]`",
    ),
    (
        "where a number",
        lambda: ep.Space(ep.Values([1])).where(sin),
        TypeError,
        "Return one bool",
    ),
    (
        "where of too many",
        lambda: ep.Space(dict.fromkeys("ab", ep.Linspace(0, 1, 2**16))).where(sin),
        ValueError,
        r"`space\[a:b\].where",
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

AXES = [
    ("log", lambda: ep.Linspace(1, 9, 3, log=True), TypeError, "are a `Geomspace"),
    ("num", lambda: ep.Linspace(1, 9, num=3), TypeError, "is called `n`"),
    ("base", lambda: ep.Geomspace(1, 9, 3, base=2), TypeError, "ends are given as va"),
    ("dmi", lambda: ep.Values([1], dmi="x"), TypeError, "Did you mean `dim`"),
    ("name", lambda: ep.Static([1], name="x"), TypeError, "`dim=` names the dimension"),
    ("seed", lambda: ep.Random(jr.normal, 2, seed=0), TypeError, "that of the space"),
    (
        "Mapped dim",
        lambda: ep.Mapped(sin, ep.Values([1]), dim="x"),
        TypeError,
        "Give `dim=` to the axis inside",
    ),
    (
        "sobol log",
        lambda: ep.sobol((0, 1), 2, log=True),
        TypeError,
        "Give a `Geomspace",
    ),
    ("nan", lambda: ep.Linspace(0, np.nan, 3), ValueError, "Give finite ends"),
    ("too large", lambda: ep.Linspace(0, 1e60, 3), ValueError, "wider dtype"),
    ("n 0", lambda: ep.Linspace(0, 1, 0), ValueError, "integer of at least 1"),
    ("n 2.0", lambda: ep.Linspace(0, 1, 2.0), TypeError, "integer of at least 1"),
    ("n 2**31", lambda: ep.Linspace(0, 1, 2**31), ValueError, "a coarse one and a fi"),
    ("text", lambda: ep.Linspace("a", 1, 2), TypeError, "another kind use `Values`"),
    ("complex", lambda: ep.Linspace(0, 1j, 2), TypeError, "Give a real number"),
    ("shapes", lambda: ep.Linspace(np.ones(2), 1, 2), ValueError, "of the same shape"),
    ("dim ''", lambda: ep.Linspace(0, 1, 2, dim=""), ValueError, "non-empty name"),
    ("dim 3", lambda: ep.Linspace(0, 1, 2, dim=3), TypeError, "or leave it out"),
    ("zero", lambda: ep.Geomspace(0, 1, 3), ValueError, "use `Linspace`, or `Values`"),
    ("signs", lambda: ep.Geomspace(-1, 1, 3), ValueError, "two ends of the same sign"),
    ("no values", lambda: ep.Values([]), ValueError, "Give a sequence .*at least one"),
    ("no rows", lambda: ep.Values(np.zeros((0, 3))), ValueError, "at least one"),
    ("one value", lambda: ep.Values(3.0), TypeError, "Give a sequence of numbers"),
    ("a scalar", lambda: ep.Values(ones()), TypeError, "Give a sequence of numbers"),
    ("a text", lambda: ep.Values("abc"), TypeError, "Give a sequence of numbers"),
    ("texts", lambda: ep.Values(["a", "b"]), TypeError, "of numbers, of PRNG keys"),
    ("None in it", lambda: ep.Values([None]), TypeError, "of numbers, of PRNG keys"),
    ("ragged", lambda: ep.Values([[1], [1, 2]]), ValueError, "arrays of one shape"),
    ("2**40", lambda: ep.Values([2**40]), ValueError, "64 bits need `jax.config"),
    (
        "1e-50",
        lambda: ep.Values(np.array([1, 1e-50])),
        ValueError,
        r"`values\[1\]` is 1e-50, which becomes 0 in float32. .*jax_enable_x64', True",
    ),
    (
        "from 1e-50",
        lambda: ep.Geomspace(1e-50, 1, 3),
        ValueError,
        "`lo` is 1e-50, which becomes 0 in float32. Use a wider dtype",
    ),
    (
        "bounds to 1e-50",
        lambda: ep.sobol({"a": (0, 1e-50)}, 4),
        ValueError,
        "in the bounds of `a`, `hi` is 1e-50, .* Use a wider dtype",
    ),
    (
        "Static of an axis",
        lambda: ep.Static([1, ep.Linspace(0, 1, 3)]),
        TypeError,
        r"`values\[1\]` is an axis, .*Put the axis in the space itself",
    ),
    (
        "Static of a dict with an axis",
        lambda: ep.Static([{"a": ep.Values([1])}]),
        TypeError,
        r"`values\[0\]` holds an axis, .*Put the axis in the space itself",
    ),
    (
        "2**40 beside a JAX array",
        lambda: ep.Values([jnp.int32(1), 2**40]),
        ValueError,
        "64 bits need `jax_enable_x64`",
    ),
    (
        "text beside a JAX array",
        lambda: ep.Values([ones(), "a"]),
        TypeError,
        "Give a sequence of numbers",
    ),
    ("a key and 1.0", lambda: ep.Values([key(), 1.0]), TypeError, "of PRNG keys, or"),
    (
        "rbg keys",
        lambda: ep.Values(jr.split(jr.key(0, impl="rbg"))),
        ValueError,
        "threefry2x32",
    ),
    ("Static of none", lambda: ep.Static([]), ValueError, "Give at least one value"),
    ("Static of text", lambda: ep.Static("relu"), TypeError, "also if there is only"),
    ("Static of 3", lambda: ep.Static(3), TypeError, "Give a list of the values"),
    ("Static dim", lambda: ep.Static([1], dim=""), ValueError, "non-empty name"),
    ("Random of 3", lambda: ep.Random(3, 2), TypeError, "such as `jax.random.normal`"),
    ("Random of a class", lambda: ep.Random(Gamma, 2), TypeError, "or an object with"),
    ("Random 2.0", lambda: ep.Random(jr.normal, 2.0), TypeError, "Give an integer"),
    ("Mapped", lambda: ep.Mapped(ep.Values([1]), sin), TypeError, "function comes fi"),
    ("Mapped to 3", lambda: ep.Mapped(sin, 3), TypeError, "Give a `Linspace`"),
    ("label 3", lambda: ep.Linspace(0, 1, 2, label=3), TypeError, "Give a text"),
    ("unit 3", lambda: ep.Static([1], unit=3), TypeError, "`unit` is 3.*Give a text"),
    (
        "an own axis that draws",
        lambda: ep.Space({"a": Noise()})[0],
        ep.MissingKeyError,
        "`a` draws its values.*Make the space with one",
    ),
    (
        "an own axis that draws, in a sweep",
        lambda: ep.sweep(sin, Noise()),
        ep.MissingKeyError,
        "Make the space with one",
    ),
    (
        "Mapped to a function",
        lambda: ep.Space({"a": ep.Mapped(lambda x: {"f": sin}, ep.Values([1]))})[0],
        TypeError,
        "`a` gives .* at `.f`.*use `Static`",
    ),
    (
        "Mapped to text, in a sweep",
        lambda: ep.sweep(lambda p: 1, ep.Mapped(lambda x: "relu", ep.Values([1]))),
        TypeError,
        "use `Static`, or map one",
    ),
    ("sobol of 3", lambda: ep.sobol({"a": 3}, 4), TypeError, "leaves are pairs"),
    ("sobol of nothing", lambda: ep.sobol({}, 4), ValueError, "'rate': \\(0.0, 1.0\\)"),
    ("sobol of inf", lambda: ep.sobol((0, np.inf), 4), ValueError, "Give finite ends"),
    (
        "sobol label",
        lambda: ep.sobol({"a": (0, 1), "b": (0, 1)}, 4, label="size"),
        TypeError,
        "there are 2 pairs.*Give a dict: `label={'a': ...}`",
    ),
    (
        "sobol unit",
        lambda: ep.latin_hypercube({"rate": (0, 1)}, 4, unit={"raet": "Hz"}),
        ValueError,
        "`unit` names 'raet'.*Did you mean `rate`",
    ),
    ("sobol 0", lambda: ep.sobol((0, 1), 0), ValueError, "integer of at least 1"),
    (
        "sobol 2**30 + 1",
        lambda: ep.sobol((0, 1), 2**30 + 1),
        ValueError,
        "Give at most",
    ),
    (
        "a key as seed",
        lambda: ep.latin_hypercube((0, 1), 2, seed=key()),
        TypeError,
        "integer of at least 0",
    ),
    (
        "seed -1",
        lambda: ep.latin_hypercube((0, 1), 2, seed=-1),
        ValueError,
        "integer of at least 0",
    ),
    (
        "bounds of two shapes",
        lambda: ep.latin_hypercube({"a": (np.zeros(2), 1)}, 2),
        ValueError,
        "two arrays of the same shape",
    ),
]

TABLE = [
    ("a number", lambda: ep.table(3), TypeError, "Give a dict of columns"),
    ("nothing", lambda: ep.table({}), ValueError, "Give a dict of columns"),
    ("no rows", lambda: ep.table([]), ValueError, "Give a dict of columns"),
    ("no names", lambda: ep.table(np.ones((2, 2))), TypeError, "Name its 2 columns"),
    (
        "one name",
        lambda: ep.table(np.ones((2, 2)), ["a"]),
        ValueError,
        "Give each column a name",
    ),
    ("names", lambda: ep.table({"a": [1]}, ["a"]), TypeError, "dict .* has its own"),
    ("dim", lambda: ep.table({"a": [1]}, dim=None), TypeError, "Give a name"),
    (
        "lengths",
        lambda: ep.table({"a": [1], "b": [1, 2]}),
        ValueError,
        "`a` has 1, `b` has 2. Give each column",
    ),
    ("a constant", lambda: ep.table({"a": [1], "b": 2}), TypeError, "stands beside"),
    (
        "other keys",
        lambda: ep.table([{"a": 1}, {"b": 1}]),
        ValueError,
        "differ in a, b. Give each row the same keys",
    ),
    ("a row of 1", lambda: ep.table([{"a": 1}, 1]), TypeError, "list of dicts"),
    (
        "a number that is missing",
        lambda: ep.table({"a": [1, None, 3]}),
        ValueError,
        r"in the rows 1. Fill them, .*`df.dropna\(\)`",
    ),
    (
        "no texts",
        lambda: ep.table({"a": np.array([], object)}),
        ValueError,
        r"take a part of it, `ep.table\(df\)\[mask\]`",
    ),
    (
        "times",
        lambda: ep.table({"a": np.array(["2020-01-01"], "M8[s]")}),
        TypeError,
        "seconds since",
    ),
    ("too large", lambda: ep.table({"a": [1e60]}), ValueError, "Use a wider dtype"),
    ("data=", lambda: ep.table(data={}), TypeError, "comes first"),
]


def line(n=3):
    return ep.Space({"a": ep.Linspace(0, 1, n)})


UNIT = [
    (
        "no n",
        lambda: ep.Space(ep.Linspace(0, 1)),
        ValueError,
        r"`Linspace\(lo, hi, n\)`",
    ),
    ("flat", lambda: line().from_unit([0.5]), ValueError, r"shape \(points, 1\)"),
    ("text", lambda: line().from_unit("a"), ValueError, r"shape \(points, 1\)"),
    (
        "two that vary together",
        lambda: ep.Space([ep.Values([1], dim="g")] * 2).from_unit([[0, 0]]),
        ValueError,
        "Give each its own dim",
    ),
    (
        "other axes",
        lambda: line().to_unit(ep.Space({"b": ep.Values([1])})),
        ValueError,
        "Give a space with the same axes",
    ),
    (
        "beyond the end",
        lambda: line().to_unit(ep.Space({"a": ep.Values([0.5, 2.0])})),
        ValueError,
        "point 1 lies at 2 of the way .* from one end to the other",
    ),
    (
        "another category",
        lambda: ep.Space(ep.Values([1])).to_unit(ep.Space(ep.Values([2]))),
        ValueError,
        "give points that have one of them",
    ),
    (
        "a mapped range",
        lambda: ep.Space(ep.Mapped(sin, ep.Linspace(0, 1, 2))).to_unit(
            ep.Space(ep.Values([0.5]))
        ),
        TypeError,
        "made by `space.from_unit`",
    ),
    (
        "traced ends",
        lambda: jax.eval_shape(
            lambda hi: ep.Space(ep.Linspace(0, hi, 2)).from_unit([[0.5]])[0], ones()
        ),
        TypeError,
        "Do so outside of `jit`",
    ),
]

SEEDS = [
    ("0", lambda: ep.Seeds(0), ValueError, "Give an integer of at least 1"),
    ("draws", lambda: ep.Seeds(2, draws="shared"), ValueError, "`common`"),
    ("key=", lambda: ep.Seeds(2, key=key()), TypeError, "the key of the sweep"),
    ("common=", lambda: ep.Seeds(2, common=True), TypeError, '`draws="common"`'),
]
