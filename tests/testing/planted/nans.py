"""Numbers that are not finite, of finite ones; and derivatives that are not.

Some are bugs that JAX and optax had and mended; the thread is named beside each.
"""

import jax
import jax.numpy as jnp

from .row import X, of_function


def where(condition, yes, no=0.0):
    return jnp.where(condition, yes, jnp.full_like(yes, no))


def _safe_norm(x):
    square = jnp.sum(x**2, keepdims=True)
    return jnp.where(square > 0, jnp.sqrt(where(square > 0, square, 1.0)), 0 * square)


def _xlogx(x):
    safe = where(x > 0, x, 1.0)
    return where(x > 0, safe * jnp.log(safe))


def _soft(x):
    return jnp.exp(x) / jnp.sum(jnp.exp(x))


def _one_pass_std(x):
    return jnp.sqrt(jnp.mean(x**2) - jnp.mean(x) ** 2)


def _attend(x, mask):
    return jax.nn.softmax(jnp.where(mask, x, jnp.full_like(x, -jnp.inf)))


def _attend_safe(x, mask):
    big = jnp.full_like(x, jnp.finfo(x.dtype).min)
    return jax.nn.softmax(jnp.where(mask, x, big)) * mask


def _interval(step):
    # Of optax's issue 1403: an interval without length.
    bounds = jnp.array([0.0, 0.0, 3.0], step.dtype)
    return jnp.sum((step - bounds[:-1]) / (bounds[1:] - bounds[:-1]))


def _interval_safe(step):
    bounds = jnp.array([0.0, 0.0, 3.0], step.dtype)
    sizes = bounds[1:] - bounds[:-1]
    return jnp.sum((step - bounds[:-1]) / where(sizes > 0, sizes, 1.0))


def _normalised(x):
    # Of optax's pull request 946: the norm is guarded only after the root.
    norm = jnp.linalg.norm(x)
    return x / jnp.where(norm == 0, jnp.ones_like(norm), norm)


def _normalised_safe(x):
    return x / _safe_norm(x + where(jnp.sum(x**2) == 0, jnp.ones_like(x)))


def _likelihood(x):
    return jnp.log(jax.nn.softmax(x))


_ZEROS = jnp.zeros(3)
_HIGH = jnp.array([90.0, 1.0, -3.0])
_SOME = jnp.array([0.0, 0.5, 2.0])

ROWS = [
    of_function("softmax by hand", _soft, jax.nn.softmax, _HIGH),
    of_function("p log p at 0", lambda p: p * jnp.log(p), _xlogx, _SOME),
    of_function(
        "a root behind a where",
        lambda x: where(x > 0, jnp.sqrt(x)),
        lambda x: where(x > 0, jnp.sqrt(where(x > 0, x, 1.0))),
        _ZEROS,
    ),
    of_function(
        "log-sum-exp by hand",
        lambda x: jnp.log(jnp.sum(jnp.exp(x))),
        jax.nn.logsumexp,
        jnp.array([-200.0, -150.0, -300.0]),
    ),
    of_function("a mask of nothing", _attend, _attend_safe, X, jnp.zeros(3, bool)),
    of_function(
        "the logarithm of a softmax",
        _likelihood,
        jax.nn.log_softmax,
        jnp.array([0.0, -200.0, 1.0]),
    ),
    of_function(
        "a variance in one pass", _one_pass_std, jnp.std, 1e4 + jnp.array([0.1, 0.2])
    ),
    of_function(
        "an empty interval",
        _interval,
        _interval_safe,
        jnp.float32(1.0),
    ),
    of_function(
        "a length that overflows",
        lambda x, y: jnp.sqrt(x**2 + y**2),
        jnp.hypot,
        jnp.float32(1e30),
        jnp.float32(1e30),
    ),
    of_function("a norm guarded too late", _normalised, _normalised_safe, _ZEROS),
]
