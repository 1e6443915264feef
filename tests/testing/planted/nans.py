"""Numbers that are not finite, of finite ones; and derivatives that are not.

Some are bugs that JAX and optax had and mended; the thread is named beside each.
"""

import jax
import jax.numpy as jnp

from .row import of_function


def where(condition, yes, no=0.0):
    return jnp.where(condition, yes, jnp.full_like(yes, no))


def _xlogx(x):
    safe = where(x > 0, x, 1.0)
    return where(x > 0, safe * jnp.log(safe))


def _soft(x):
    return jnp.exp(x) / jnp.sum(jnp.exp(x))


def _one_pass_std(x):
    return jnp.sqrt(jnp.mean(x**2) - jnp.mean(x) ** 2)


def _interval(step):
    # Of optax's issue 1403: an interval without length.
    bounds = jnp.array([0.0, 0.0, 3.0], step.dtype)
    return jnp.sum((step - bounds[:-1]) / (bounds[1:] - bounds[:-1]))


def _interval_safe(step):
    bounds = jnp.array([0.0, 0.0, 3.0], step.dtype)
    sizes = bounds[1:] - bounds[:-1]
    return jnp.sum((step - bounds[:-1]) / where(sizes > 0, sizes, 1.0))


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
        "a root behind a where, beside an infinite number",
        lambda x: jnp.append(where(x > 0, jnp.sqrt(x)), -jnp.inf),
        lambda x: jnp.append(where(x > 0, jnp.sqrt(where(x > 0, x, 1.0))), -jnp.inf),
        _SOME,
    ),
    of_function(
        "a length that overflows",
        lambda x, y: jnp.sqrt(x**2 + y**2),
        jnp.hypot,
        jnp.float32(1e30),
        jnp.float32(1e30),
    ),
]
