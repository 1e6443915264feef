"""Programs that are compiled again at each call, or hold what they should be given."""

import equinox as eqx
import jax
import jax.numpy as jnp
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
