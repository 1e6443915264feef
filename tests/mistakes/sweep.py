"""`sweep`, `vmap_space`, `use_cpu_devices`."""

import jax
import jax.numpy as jnp
import jax.random as jr
from jax.numpy import sin

import eqx_pipe as ep

from .common import ones
from .spaces import table

DEFAULT = object()


def sweep(fn=sin, space=DEFAULT, **settings):
    return ep.sweep(fn, ep.Linspace(0, 1, 3) if space is DEFAULT else space, **settings)


def vmap_space(fn=sin, space=DEFAULT, **settings):
    space = ep.Linspace(0, 1, 3) if space is DEFAULT else space
    return ep.vmap_space(fn, space, **settings)


SWEEP = [
    ("fn 3", lambda: sweep(3), TypeError, "first argument is the function"),
    ("no axis", lambda: sweep(space={"a": 1}), ValueError, "Put a `Linspace`"),
    (
        "a data frame",
        lambda: sweep(space=table("pandas")),
        ValueError,
        r"`space` is a DataFrame, .*for name in df.columns\}, mode=\"zip\"",
    ),
    ("key 3", lambda: sweep(key=3), TypeError, "jax.random.key"),
    ("rbg", lambda: sweep(key=jr.key(0, impl="rbg")), ValueError, "threefry2x32"),
    ("batch 0", lambda: sweep(batch_size=0), ValueError, "at least 1"),
    ("batch atuo", lambda: sweep(batch_size="atuo"), ValueError, "`auto`"),
    ("batch None", lambda: sweep(batch_size=None), TypeError, "integer of at least 1"),
    ("mesh 4", lambda: sweep(mesh=4), TypeError, "jax.make_mesh"),
    ("progress", lambda: sweep(progress="yes"), TypeError, "True, False, or None"),
    ("on_error", lambda: sweep(on_error="rais"), ValueError, "Did you mean `raise`"),
    ("no key", lambda: sweep(lambda x, key: x), ep.MissingKeyError, "random.key"),
    (
        "a hidden need of a key",
        lambda: sweep(lambda x, key=None: jr.normal(key)),
        ep.MissingKeyError,
        "random.key",
    ),
    ("text", lambda: sweep(lambda x: {"a": "no"}), TypeError, "`.a`. .*leave other"),
    ("forgotten return", lambda: sweep(lambda x: None), TypeError, "`return` missing"),
    ("an empty dict", lambda: sweep(lambda x: {}), TypeError, "`return` missing"),
    ("Nones", lambda: sweep(lambda x: (None, [])), TypeError, "`return` missing"),
    (
        "forgotten return, with a key",
        lambda: sweep(lambda x, key=None: None),
        TypeError,
        "`return` missing",
    ),
    (
        "forgotten return in a reduction",
        lambda: sweep(lambda x: None, reduce=ep.Mean()),
        TypeError,
        "`return` missing",
    ),
    (
        "order_by of nothing",
        lambda: sweep(order_by=lambda x: None),
        TypeError,
        "`return` missing",
    ),
    ("functions", lambda: sweep(lambda x: [sin]), TypeError, "return a number that"),
    (
        "inside jit",
        lambda: jax.eval_shape(lambda w: sweep(lambda x: w * x).values, ones()),
        TypeError,
        "Use `eqx_pipe.vmap_space`",
    ),
    ("part alone", lambda: sweep(part=(0, 2)), ValueError, "store='runs.zarr'"),
    ("part of 3", lambda: sweep(part=3), TypeError, "with 0 <= rank < size"),
    ("resume alone", lambda: sweep(resume="force"), ValueError, "path of the store"),
    ("resume", lambda: sweep(resume="forc"), ValueError, "Did you mean `force`"),
    ("order_by", lambda: sweep(order_by=[1.0]), ValueError, "one number for each po"),
    (
        "batch 2^31",
        lambda: sweep(space=ep.Linspace(0, 1, 2**31 - 1), batch_size=2**31 - 1),
        ValueError,
        "give at most",
    ),
    (
        "Static values that disagree",
        lambda: sweep(lambda p: jnp.zeros(p), ep.Static([1, 2])),
        ep.StructureError,
        "Return the same structure, shapes and dtypes for all of them",
    ),
    ("vmap fn 1", lambda: vmap_space(1), TypeError, "first argument is the function"),
    ("vmap no axis", lambda: vmap_space(space=1), ValueError, "Put a `Linspace`"),
    (
        "vmap key",
        lambda: vmap_space(lambda x, key: x),
        ep.MissingKeyError,
        "random.key",
    ),
    ("vmap rbg", lambda: vmap_space(key=jr.key(0, impl="rbg")), ValueError, "threefry"),
    ("vmap batch 0", lambda: vmap_space(batch_size=0), ValueError, "at least 1"),
    ("vmap mesh", lambda: vmap_space(mesh="x"), TypeError, "jax.make_mesh"),
    ("vmap None", lambda: vmap_space(lambda x: None), TypeError, "`return` missing"),
    ("vmap text", lambda: vmap_space(lambda x: "a"), TypeError, "pytrees of arrays"),
    (
        "vmap too large",
        lambda: vmap_space(space=[ep.Linspace(0, 1, 2**31 - 1), ep.Values([1, 2])]),
        ValueError,
        r"take a slice, `space\[a:b\]`",
    ),
    ("cores 0", lambda: ep.use_cpu_devices(0), ValueError, "integer of at least 1"),
    ("cores 'all'", lambda: ep.use_cpu_devices("all"), TypeError, "Give an integer"),
]
