"""Arguments that axes and spaces do not have, and what to write instead."""

_NAME = (
    'An axis is called by its place in the space, `{"rate": axis}`; `dim=` names the '
    "dimension that it varies along."
)
_DTYPE = "Give the numbers in that dtype: `jnp.asarray(x, jnp.float16)`."
_ENDS = "The ends come first: `(lo, hi, n)`."
_N = "The number of values is called `n`, and comes third: `(lo, hi, n)`."
_ENDPOINT = (
    "Both ends are included: move `hi` by one step, or give `Values` the numbers that "
    "you want."
)
_SPACED = {
    "name": _NAME,
    "dtype": _DTYPE,
    "start": _ENDS,
    "stop": _ENDS,
    "low": _ENDS,
    "high": _ENDS,
    "min": _ENDS,
    "max": _ENDS,
    "num": _N,
    "size": _N,
    "count": _N,
    "steps": _N,
    "endpoint": _ENDPOINT,
}

_LOG = "Values evenly spaced in the logarithm are a `Geomspace(lo, hi, n)`."
LINSPACE = {**_SPACED, "log": _LOG, "scale": _LOG, "logscale": _LOG, "base": _LOG}

_IS_LOG = "It is evenly spaced in the logarithm as it is; its ends are given as values."
GEOMSPACE = {**_SPACED, "log": _IS_LOG, "base": _IS_LOG, "scale": _IS_LOG}

VALUES = {"name": _NAME, "dtype": _DTYPE, "log": _LOG}

STATIC = {"name": _NAME}

_KEY_OF_SPACE = "The key is that of the space: `Space(tree, key=jax.random.key(0))`."
_SAMPLER = (
    "Give it to the sampler: `functools.partial(jax.random.uniform, minval=-1.0)`."
)
RANDOM = {
    "name": _NAME,
    "key": _KEY_OF_SPACE,
    "seed": _KEY_OF_SPACE,
    "shape": "For arrays write the shape into the sampler: "
    "`lambda key, shape: jax.random.normal(key, (3,))`.",
    "num": "The number of values is called `n`.",
    "size": "The number of values is called `n`.",
    **dict.fromkeys(("low", "high", "minval", "maxval", "loc", "scale"), _SAMPLER),
}

MAPPED = {"name": _NAME, "dim": "Give `dim=` to the axis inside, whose dim is kept."}

_DIMS = (
    'Dims are named on the axes, `Linspace(0, 1, 5, dim="time")`; axes of one dim vary '
    "together."
)
_MODE = 'Say `mode="product"` or `mode="zip"`.'
SPACE = {
    "dim": _DIMS,
    "dims": _DIMS,
    "zip": _MODE,
    "product": _MODE,
    "name": "A space has no name.",
    "seed": "Give a key: `key=jax.random.key(seed)`.",
    "rng": "Give a key: `key=jax.random.key(seed)`.",
}

DESIGN = {
    "name": 'The design is called by its `dim="..."`.',
    "key": "Give `seed=` an integer: designs are drawn by SciPy.",
    "rng": "Give `seed=` an integer: designs are drawn by SciPy.",
    "log": "Map the exponent: `Mapped(lambda x: 10.0**x, axis)` over bounds such as "
    "(-3, 0).",
    "num": "The number of points is called `n`.",
}
