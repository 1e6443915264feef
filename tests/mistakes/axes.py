"""Axes by themselves."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.numpy import sin

import eqx_pipe as ep

from .common import key, ones


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


AXES = [
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
