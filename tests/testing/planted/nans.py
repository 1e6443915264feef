"""Numbers that are not finite, of finite ones; and derivatives that are not.

Some are bugs that JAX and optax had and mended; the thread is named beside each.
"""

import jax
import jax.numpy as jnp

from .row import X, of_function


def where(condition, yes, no=0.0):
    return jnp.where(condition, yes, jnp.full_like(yes, no))


def _unit(x):
    return x / jnp.linalg.norm(x)


def _safe_norm(x):
    square = jnp.sum(x**2, keepdims=True)
    return jnp.where(square > 0, jnp.sqrt(where(square > 0, square, 1.0)), 0 * square)


def _xlogx(x):
    safe = where(x > 0, x, 1.0)
    return where(x > 0, safe * jnp.log(safe))


def _soft(x):
    return jnp.exp(x) / jnp.sum(jnp.exp(x))


def _distances(x):
    return jnp.sqrt(jnp.sum((x[:, None] - x[None]) ** 2, axis=-1))


def _safe_distances(x):
    square = jnp.sum((x[:, None] - x[None]) ** 2, axis=-1)
    return where(square > 0, jnp.sqrt(where(square > 0, square, 1.0)))


def _masked_mean(x, mask):
    return jnp.sum(x * mask) / jnp.sum(mask)


def _masked_mean_safe(x, mask):
    return jnp.sum(x * mask) / jnp.maximum(jnp.sum(mask), jnp.ones_like(mask[0]))


def _one_pass_std(x):
    return jnp.sqrt(jnp.mean(x**2) - jnp.mean(x) ** 2)


def _attend(x, mask):
    return jax.nn.softmax(jnp.where(mask, x, jnp.full_like(x, -jnp.inf)))


def _attend_safe(x, mask):
    big = jnp.full_like(x, jnp.finfo(x.dtype).min)
    return jax.nn.softmax(jnp.where(mask, x, big)) * mask


def _cosine(x, y):
    return jnp.sum(x * y) / (jnp.linalg.norm(x) * jnp.linalg.norm(y))


def _cosine_safe(x, y):
    def norm(v):
        return jnp.sqrt(jnp.maximum(jnp.sum(v**2), 1e-12).astype(v.dtype))

    return jnp.sum(x * y) / (norm(x) * norm(y))


def _angle(x, y):
    return jnp.arccos(jnp.sum(x * y) / (jnp.linalg.norm(x) * jnp.linalg.norm(y)))


def _angle_safe(x, y):
    cosine = jnp.sum(x * y) / (jnp.linalg.norm(x) * jnp.linalg.norm(y))
    return jnp.arccos(jnp.clip(cosine, -1 + 1e-5, 1 - 1e-5))


def _masked_logsumexp(x, mask):
    # Of JAX's issue 23842: what is masked overflows behind the mask.
    high = jnp.max(where(mask, x, -1e30))
    return high + jnp.log(jnp.sum(where(mask, jnp.exp(x - high))))


def _masked_logsumexp_safe(x, mask):
    high = jnp.max(where(mask, x, -1e30))
    return high + jnp.log(jnp.sum(where(mask, jnp.exp(where(mask, x - high)))))


def _interval(step):
    # Of optax's issue 1403: an interval without length.
    bounds = jnp.array([0.0, 0.0, 3.0], step.dtype)
    return jnp.sum((step - bounds[:-1]) / (bounds[1:] - bounds[:-1]))


def _interval_safe(step):
    bounds = jnp.array([0.0, 0.0, 3.0], step.dtype)
    sizes = bounds[1:] - bounds[:-1]
    return jnp.sum((step - bounds[:-1]) / where(sizes > 0, sizes, 1.0))


def _i0(x):
    # Of JAX's issue 11479: by the absolute value, which has a kink at 0.
    size = jnp.sqrt(x**2)
    return jnp.exp(size) * jax.scipy.special.i0e(x)


def _sigmoid(x):
    return 1 / (1 + jnp.exp(-x))


def _tanh(x):
    # Of JAX's issue 764.
    return (jnp.exp(x) - jnp.exp(-x)) / (jnp.exp(x) + jnp.exp(-x))


def _gelu(x):
    inner = 0.7978846 * (x + 0.044715 * x**3)
    return 0.5 * x * (1 + jnp.tanh(inner))


def _gelu_safe(x):
    near = jnp.clip(x, -10, 10)
    return 0.5 * x * (1 + jnp.tanh(0.7978846 * (near + 0.044715 * near**3)))


def _norm_layer(eps):
    def layer(x):
        centred = x - jnp.mean(x)
        return centred / jnp.sqrt(jnp.mean(centred**2) + eps)

    return layer


def _normalised(x):
    # Of optax's pull request 946: the norm is guarded only behind the root.
    norm = jnp.linalg.norm(x)
    return x / jnp.where(norm == 0, jnp.ones_like(norm), norm)


def _normalised_safe(x):
    return x / _safe_norm(x + where(jnp.sum(x**2) == 0, jnp.ones_like(x)))


def _power_of(k):
    # Of JAX's issue 18450: the slope is k times 0 to a negative power.
    return lambda x: jnp.exp(k * jnp.log(x))


def _likelihood(x):
    return jnp.log(jax.nn.softmax(x))


_ZEROS = jnp.zeros(3)
_FAR = jnp.array([-100.0, 2.0, 100.0])
_HIGH = jnp.array([90.0, 1.0, -3.0])
_SOME = jnp.array([0.0, 0.5, 2.0])
_NO, _FEW = jnp.zeros(3), jnp.array([True, False, True])
_POINTS = jnp.array([[0.1, 0.2], [1.0, -0.3], [0.5, 0.9]])

ROWS = [
    of_function("softmax by hand", _soft, jax.nn.softmax, _HIGH),
    of_function("p log p at 0", lambda p: p * jnp.log(p), _xlogx, _SOME),
    of_function("a unit vector of nothing", _unit, _normalised_safe, _ZEROS),
    of_function(
        "the deviation of equal numbers",
        jnp.std,
        lambda x: jnp.sum(_safe_norm(x - jnp.mean(x))) / 3**0.5,
        jnp.ones(3),
    ),
    of_function(
        "a root behind a where",
        lambda x: where(x > 0, jnp.sqrt(x)),
        lambda x: where(x > 0, jnp.sqrt(where(x > 0, x, 1.0))),
        _ZEROS,
    ),
    of_function(
        "a logarithm behind a where",
        lambda x: where(x > 0, jnp.log(x)),
        lambda x: where(x > 0, jnp.log(where(x > 0, x, 1.0))),
        jnp.array([-1.0, 0.0, 2.0]),
    ),
    of_function(
        "a quotient behind a where",
        lambda x: where(x != 0, jnp.sin(x) / x, 1.0),
        lambda x: jnp.sinc(x / jnp.pi),
        _SOME,
    ),
    of_function(
        "log-sum-exp by hand",
        lambda x: jnp.log(jnp.sum(jnp.exp(x))),
        jax.nn.logsumexp,
        jnp.array([-200.0, -150.0, -300.0]),
    ),
    of_function("sigmoid by hand", _sigmoid, jax.nn.sigmoid, _FAR),
    of_function("tanh by hand", _tanh, jnp.tanh, _FAR),
    of_function(
        "softplus by hand",
        lambda x: jnp.log(1 + jnp.exp(x)),
        jax.nn.softplus,
        _FAR,
    ),
    of_function("a power of 0", _power_of(0.0), lambda x: x**0, _SOME),
    of_function(
        "an angle at the origin",
        lambda x, y: jnp.arctan2(y, x),
        lambda x, y: jnp.arctan2(y, where((x == 0) & (y == 0), 1.0 + 0 * x) + x),
        _ZEROS,
        _ZEROS,
    ),
    of_function("cosine similarity", _cosine, _cosine_safe, X, _ZEROS),
    of_function("a mask of nothing", _attend, _attend_safe, X, jnp.zeros(3, bool)),
    of_function("a mean of nothing", _masked_mean, _masked_mean_safe, X, _NO),
    of_function(
        "the logarithm of a softmax",
        _likelihood,
        jax.nn.log_softmax,
        jnp.array([0.0, -200.0, 1.0]),
    ),
    of_function(
        "a variance in one pass", _one_pass_std, jnp.std, 1e4 + jnp.array([0.1, 0.2])
    ),
    of_function("an angle beyond 0", _angle, _angle_safe, 3 * X, 3 * X),
    of_function(
        "divergence from 0",
        lambda p, q: p * jnp.log(p / q),
        lambda p, q: _xlogx(p) - p * jnp.log(q),
        _SOME,
        jnp.ones(3),
    ),
    of_function("distances between points", _distances, _safe_distances, _POINTS),
    of_function("gelu far away", _gelu, _gelu_safe, jnp.array([1e20, 1.0])),
    of_function(
        "an empty interval",
        _interval,
        _interval_safe,
        jnp.float32(1.0),
    ),
    of_function(
        "a masked log-sum-exp",
        _masked_logsumexp,
        _masked_logsumexp_safe,
        jnp.array([0.0, 200.0, 1.0]),
        _FEW,
    ),
    of_function(
        "a geometric mean",
        lambda x: jnp.exp(jnp.mean(jnp.log(x))),
        jnp.prod,
        _SOME,
    ),
    of_function(
        "a product by logarithms",
        lambda x: jnp.exp(jnp.sum(jnp.log(x))),
        jnp.prod,
        X,
    ),
    of_function(
        "a length that overflows",
        lambda x, y: jnp.sqrt(x**2 + y**2),
        jnp.hypot,
        jnp.float32(1e30),
        jnp.float32(1e30),
    ),
    of_function("a Bessel function at 0", _i0, jnp.i0, _SOME - 0.5),
    of_function(
        "a norm layer without epsilon", _norm_layer(0.0), _norm_layer(1e-3), jnp.ones(3)
    ),
    of_function("a norm guarded too late", _normalised, _normalised_safe, _ZEROS),
    of_function(
        "the root of a variance",
        lambda x: jnp.sqrt(jnp.var(x)),
        lambda x: jnp.sqrt(jnp.var(x) + 1e-6),
        jnp.ones(3),
    ),
    of_function(
        "an arcsine at its end",
        lambda x: jnp.arcsin(x * 1.0000002),
        lambda x: jnp.arcsin(jnp.clip(x, -1, 1) * 0.9999),
        jnp.array([1.0, 0.2]),
    ),
]
