"""Programs that are compiled again at each call, or hold what they should be given."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .row import X, of_function

_BIG = np.linspace(0, 1, 2**19, dtype=np.float32)
_BIG_JAX = jnp.asarray(_BIG)
_inner = jax.jit(lambda x: jnp.sin(x) + 1)


class Table(eqx.Module):
    table: jax.Array

    def __call__(self, x, *, key=None):
        return x * self.table[:3] + self.table.sum()


class Anew:
    """Another static argument at each call."""

    def __init__(self):
        self.step = jax.jit(lambda x, i: x * 2, static_argnums=1)

    def __call__(self, x):
        return self.step(x, object())


class Meta:
    """Metadata that is equal to nothing, or to other metadata."""


class Vector:
    def __init__(self, x, meta):
        self.x, self.meta = x, meta


jtu.register_pytree_node(
    Vector,
    lambda v: ((v.x,), Meta() if v.meta else None),
    lambda meta, c: Vector(*c, meta),
)
_of_vector = jax.jit(lambda v: v.x * 2)


def of_argument(name, bug, sound, make):
    """Return a row for an argument that is made of a bug or its twin."""
    row = of_function(name, bug, sound)

    def check(value, **options):
        fn, *args = make(value)
        of_function("", fn, fn, *args).check(fn, **options)

    return row._replace(check=check)


def _step(x, step):
    return x * (1 - 0.1 * step)


def _sum(x):
    return x * 2


_small = jnp.linspace(0.0, 1.0, 2**10)

ROWS = [
    of_function(
        "a function jitted at each call",
        lambda x: jax.jit(lambda v: jnp.sin(v) + 1)(x),
        _inner,
        X,
    ),
    of_function("a static argument made anew", Anew(), jax.jit(_sum), X),
    of_argument(
        "metadata without __eq__", True, None, lambda m: (_of_vector, Vector(X, m))
    ),
    of_argument(
        "a program for each step",
        jax.jit(_step, static_argnums=1),
        jax.jit(_step),
        lambda fn: (fn, X, 3),
    ),
    of_argument(
        "a program for each rate",
        jax.jit(_step, static_argnums=1),
        jax.jit(_step),
        lambda fn: (fn, X, 0.5),
    ),
    of_function(
        "a big table of NumPy",
        lambda x: x + jnp.sum(jnp.asarray(_BIG)),
        Table(_small),
        X,
    ),
    of_function(
        "a big table in a loop",
        lambda x: jax.lax.fori_loop(0, 2, lambda i, v: v + _BIG_JAX[i], x),
        Table(_small),
        X,
    ),
]
