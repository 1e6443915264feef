"""Axes by themselves, and designs of them."""

import jax.random as jr
import numpy as np
from jax.numpy import sin

import eqx_pipe as ep

from .common import key, ones

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


AXES = [
    ("nan", lambda: Line(0, np.nan, 3), ValueError, "Give finite ends"),
    ("too large", lambda: Line(0, 1e60, 3), ValueError, "wider dtype"),
    ("num 0", lambda: Line(0, 1, 0), ValueError, "integer of at least 1"),
    ("num 2.0", lambda: Line(0, 1, 2.0), TypeError, "integer of at least 1"),
    ("num 2**31", lambda: Line(0, 1, 2**31), ValueError, "a coarse one and a fi"),
    ("text", lambda: Line("a", 1, 2), TypeError, "another kind use `Values`"),
    ("complex", lambda: Line(0, 1j, 2), TypeError, "Give a real number"),
    ("shapes", lambda: ep.Uniform(ones(2), 1), ValueError, "of the same shape"),
    ("dim ''", lambda: Line(0, 1, 2, dim=""), ValueError, "non-empty name"),
    ("dim 3", lambda: ep.Random(jr.normal, 2, dim=3), TypeError, "or leave it out"),
    ("zero", lambda: ep.Geomspace(0, 1, 3), ValueError, "use `Linspace`"),
    ("signs", lambda: ep.LogUniform(-1, 1), ValueError, "two ends of the same sign"),
    ("no values", lambda: Values([]), ValueError, "Give a sequence .*at least one"),
    ("a scalar", lambda: Values(ones()), TypeError, "Give a sequence of numbers"),
    ("a text", lambda: Values("abc"), TypeError, "Give a sequence of numbers"),
    ("texts", lambda: Values(["a", "b"]), TypeError, "of numbers, of PRNG keys"),
    ("None in it", lambda: Values([None]), TypeError, "of numbers, of PRNG keys"),
    ("ragged", lambda: Values([[1], [1, 2]]), ValueError, "arrays of one shape"),
    ("ragged JAX", lambda: Values([ones(), [1]]), ValueError, "arrays of one shape"),
    ("2**40", lambda: Values([2**40]), ValueError, "64 bits need `jax.config"),
    ("1e-50", lambda: Values(np.array([1, 1e-50])), ValueError, r"`values\[1\]` is 1e"),
    ("from 1e-50", lambda: ep.Geomspace(1e-50, 1, 3), ValueError, "`start` is 1e-50"),
    ("rbg", lambda: Values(jr.split(jr.key(0, impl="rbg"))), ValueError, "threefry"),
    ("Static of none", lambda: ep.Static([]), ValueError, "Give at least one value"),
    ("Static of text", lambda: ep.Static("relu"), TypeError, "also if there is only"),
    ("Random of 3", lambda: ep.Random(3, 2), TypeError, "such as `jax.random.normal`"),
    ("Random of a class", lambda: ep.Random(Noise, 2), TypeError, "or an object with"),
    ("Seeds draws", lambda: ep.Seeds(2, draws="own"), ValueError, "`common`"),
    ("Mapped", lambda: ep.Mapped(Values([1]), sin), TypeError, "function comes fi"),
    ("Mapped to 3", lambda: ep.Mapped(sin, 3), TypeError, "Give a `Linspace`"),
    ("label 3", lambda: Line(0, 1, 2, label=3), TypeError, "Give a text"),
    ("unit 3", lambda: ep.Static([1], unit=3), TypeError, "`unit` is 3.*Give a text"),
    (
        "an own axis that draws",
        lambda: ep.sweep(sin, Noise()),
        ep.MissingKeyError,
        "draws its values.*Make the space with one",
    ),
    (
        "Mapped to a function",
        lambda: first(lambda x: {"f": sin}, Values([1])),
        TypeError,
        "`a` gives .* at `.f`.*use `Static`, or map one",
    ),
    ("a range", lambda: first(sin, BOX), ValueError, "for random draws"),
    ("sobol of nothing", lambda: ep.sobol({}, 4), ValueError, "in the place of a leaf"),
    ("sobol 0", lambda: ep.sobol(BOX, 0), ValueError, "integer of at least 1"),
    ("sobol 2**30 + 1", lambda: ep.sobol(BOX, 2**30 + 1), ValueError, "Give at most"),
    (
        "a key as seed",
        lambda: ep.latin_hypercube(BOX, 2, seed=key()),
        TypeError,
        "integer of at least 0",
    ),
    ("design dim", lambda: ep.sobol(BOX, 2, dim=""), ValueError, "non-empty name"),
]


def line():
    return ep.Space({"a": Line(0, 1, 3)})


def categories(*values):
    return ep.Space({"a": Values(values)})


UNIT = [
    ("flat", lambda: line().from_unit([0.5]), ValueError, r"shape \(points, 1\)"),
    ("text", lambda: line().from_unit("a"), ValueError, r"shape \(points, 1\)"),
    ("-0.1", lambda: line().from_unit([[-0.1]]), ValueError, "from 0 to 1"),
    ("nan", lambda: line().from_unit([[np.nan]]), ValueError, "from 0 to 1"),
    (
        "two that vary together",
        lambda: ep.Space([Values([1], dim="g")] * 2).from_unit([[0, 0]]),
        ValueError,
        "Give each its own dim",
    ),
    (
        "other axes",
        lambda: line().to_unit(ep.Space({"b": Values([1])})),
        ValueError,
        "Give a space with the same axes",
    ),
    (
        "beyond the end",
        lambda: line().to_unit(categories(0.5, 2.0)),
        ValueError,
        "point 1 has 2.0, outside of .* from one end to the other",
    ),
    (
        "another category",
        lambda: categories(1).to_unit(categories(2)),
        ValueError,
        "give points that have one of them",
    ),
    (
        "a mapped range",
        lambda: ep.Space({"a": ep.Mapped(sin, BOX)}).to_unit(categories(0.5)),
        TypeError,
        "made by `space.from_unit`",
    ),
]
