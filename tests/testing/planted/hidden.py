"""Functions that are not pure, or another function when they are traced."""

import functools as ft
import itertools as it

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .row import X, of_function

_count = it.count()
_log, _table, _seen = [], {"scale": 1.0}, {}


def _counts(x):
    return x + next(_count)


def _adapts(x):
    _table["scale"] = _table["scale"] * 1.5
    return x * _table["scale"]


def _knows_shapes(x):
    """Remember a sum by shape, as if the numbers did not matter."""
    if x.shape not in _seen:
        _seen[x.shape] = np.asarray(x).sum()
    return x + _seen[x.shape]


class _Layer(eqx.Module):
    cache: dict

    def __call__(self, x, *, key=None):
        self.cache["last"] = x.shape
        return 2 * x


class _Keeps:
    """Holds on to what it was given last, tracers too."""

    last = None

    def __call__(self, x):
        self.last = x
        return 2 * x


def _writes_a_dict(x):
    x["a"] = 2 * x["a"]
    return x["a"]


def _sorts_in_place(x):
    x.sort()
    return jnp.asarray(x)


def _branches(x):
    return x if x[0] > 0 else -x


def _is_traced(x):
    return isinstance(x, jax.core.Tracer)


def _numpy(x):
    return jnp.asarray(np.sin(np.asarray(x)))


def _twice(x):
    return 2 * x


def _doubled(x):
    return 2 * x["a"]


def _plus(x, by=1.0):
    return x * by


def _fresh():
    return np.array([0.7, -1.3, 2.1], np.float32)


def _given(name, bug, sound, make):
    """Return a row whose arguments are made anew, as they may be written into."""
    row = of_function(name, bug, sound)

    def check(fn, **options):
        of_function("", fn, fn, make()).check(fn, **options)

    return row._replace(check=check)


def of_pytree(name, bug, sound):
    """Return a row for an argument of a type that JAX does not know."""
    row = of_function(name, bug, sound)

    def check(pair, **options):
        of_function("", _difference, None, pair).check(_difference, **options)

    return row._replace(check=check)


@ft.lru_cache
def _leaks(size):
    return jnp.hanning(size)


@ft.lru_cache
def _window(size):
    return np.hanning(size).astype(np.float32)


class _Pair:
    """Two arrays; flattening may swap them."""

    def __init__(self, first, second):
        self.first, self.second = first, second


class _Swapped(_Pair):
    pass


jtu.register_pytree_node(
    _Pair, lambda p: ((p.first, p.second), None), lambda _, c: _Pair(*c)
)
jtu.register_pytree_node(
    _Swapped, lambda p: ((p.first, p.second), None), lambda _, c: _Swapped(*c[::-1])
)


def _difference(pair):
    return pair.first - 2 * pair.second


def _configures(x):
    # Of a library that sets the precision for its users.
    now = jax.config.jax_default_matmul_precision
    jax.config.update(
        "jax_default_matmul_precision", "highest" if now is None else None
    )
    return x @ x


ROWS = [
    of_function("counts its calls", _counts, lambda x: x + 1, X),
    of_function("a global that adapts", _adapts, _plus, X),
    of_function("a memo by shape", _knows_shapes, lambda x: x + x.sum(), X),
    of_function("a module's own dict", _Layer({}), eqx.nn.Identity(), X),
    of_function("keeps a tracer", _Keeps(), _twice, X),
    _given("writes into its dict", _writes_a_dict, _doubled, lambda: {"a": X}),
    of_pytree("swaps its fields", _Swapped(X, 2 * X), _Pair(X, 2 * X)),
    _given("sorts its array", _sorts_in_place, jnp.sort, _fresh),
    of_function(
        "gives its input away",
        jax.jit(lambda x: x * 2, donate_argnums=0),
        jax.jit(lambda x: x * 2),
        2 * X,
    ),
    of_function(
        "a tracer in a cache",
        lambda x: x * _leaks(3),
        lambda x: x * _window(3).astype(x.dtype),
        X,
    ),
    of_function("changes the configuration", _configures, lambda x: x @ x, X),
    of_function("branches in Python", _branches, jnp.abs, X),
    of_function("computes in NumPy", _numpy, jnp.sin, X),
    of_function(
        "another dtype when traced",
        lambda x: x.astype(jnp.bfloat16) if _is_traced(x) else x,
        _twice,
        X,
    ),
    of_function(
        "another tree when traced",
        lambda x: {"a": x} if _is_traced(x) else [x],
        lambda x: {"a": x},
        X,
    ),
]
