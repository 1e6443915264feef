"""Keys that are used twice, not at all, or not the ones that were given."""

import jax
import jax.random as jr

from .row import X, of_function

_KEY = jr.key(7)


def _noise(key, x):
    return jr.normal(key, x.shape, x.dtype)


def _constant(x, *, key):
    return x + _noise(jr.key(0), x)


def _once(x, *, key):
    return x + _noise(key, x)


def _twice(x, *, key):
    return x + _noise(key, x) * jr.uniform(key, x.shape, x.dtype)


def _split(x, *, key):
    first, second = jr.split(key)
    return x + _noise(first, x) * jr.uniform(second, x.shape, x.dtype)


def _parent_too(x, *, key):
    child, _ = jr.split(key)
    return x + _noise(key, x) + _noise(child, x)


def _in_scan(x, *, key):
    def step(c, _):
        return c + _noise(key, c), None

    return jax.lax.scan(step, x, None, length=3)[0]


def _in_scan_right(x, *, key):
    def step(c, k):
        return c + _noise(k, c), None

    return jax.lax.scan(step, x, jr.split(key, 3))[0]


def _in_vmap(x, *, key):
    return x + jax.vmap(lambda v: jr.normal(key, (), v.dtype))(x)


def _in_vmap_right(x, *, key):
    return x + jax.vmap(lambda k: jr.normal(k, (), x.dtype))(jr.split(key, 3))


def _folded_alike(x, *, key):
    first, second = jr.fold_in(key, 1), jr.fold_in(key, 1)
    return x + _noise(first, x) * jr.uniform(second, x.shape, x.dtype)


def _folded(x, *, key):
    first, second = jr.fold_in(key, 1), jr.fold_in(key, 2)
    return x + _noise(first, x) * jr.uniform(second, x.shape, x.dtype)


def _bits_again(x, *, key):
    again = jr.wrap_key_data(jr.key_data(key))
    return x + _noise(key, x) * jr.uniform(again, x.shape, x.dtype)


def _carry_not_split(x, *, key):
    """Draws from the key, and then goes on with what comes of it."""

    def step(carry, _):
        x, key = carry
        return (x + _noise(key, x), jr.split(key)[0]), None

    return jax.lax.scan(step, (x, key), None, length=3)[0][0]


def _carry_split(x, *, key):
    def step(carry, _):
        x, key = carry
        key, own = jr.split(key)
        return (x + _noise(own, x), key), None

    return jax.lax.scan(step, (x, key), None, length=3)[0][0]


def _branch_twice(x, *, key):
    def drawn(x):
        return x + _noise(key, x)

    y = jax.lax.cond(x[0] > 0, drawn, lambda x: x, x)
    return y * jr.uniform(key, x.shape, x.dtype)


ROWS = [
    of_function("a key of its own", _constant, _once, X, key=_KEY),
    of_function("one key twice", _twice, _split, X, key=_KEY),
    of_function("the parent beside its child", _parent_too, _split, X, key=_KEY),
    of_function("one key in a scan", _in_scan, _in_scan_right, X, key=_KEY),
    of_function(
        "one key for all lanes",
        _in_vmap,
        _in_vmap_right,
        X,
        key=_KEY,
        missed="its program is that of one draw which is meant for all lanes",
    ),
    of_function("folded in alike", _folded_alike, _folded, X, key=_KEY),
    of_function("a raw key twice", _twice, _split, X, key=jr.key_data(_KEY)),
    of_function("the same bits again", _bits_again, _split, X, key=_KEY),
    of_function(
        "a carry that is not split", _carry_not_split, _carry_split, X, key=_KEY
    ),
    of_function("again after a branch", _branch_twice, _split, X, key=_KEY),
]
