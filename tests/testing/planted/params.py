"""Parameters that do not reach the output, or not as leaves."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import stop_gradient

from .row import X, Y, of_function, quiet

_W = np.array([0.4, -0.7, 1.2], np.float32)


class Scale(eqx.Module):
    w: jax.Array

    def __call__(self, x, *, key=None):
        return x * self.w


class Called(eqx.Module):
    """A parameter, and a function that computes with one."""

    w: jax.Array
    fn: object = eqx.field(static=True)

    def __call__(self, x, *, key=None):
        return self.fn(self, x)


class Static(eqx.Module):
    w: object = eqx.field(static=True)
    b: jax.Array

    def __call__(self, x, *, key=None):
        return x * self.w + self.b


class Affine(eqx.Module):
    w: jax.Array
    b: jax.Array

    def __call__(self, x, *, key=None):
        return x * self.w + self.b


class Gated(eqx.Module):
    w: jax.Array
    v: jax.Array
    gate: float = eqx.field(static=True)

    def __call__(self, x, *, key=None):
        return x * self.w + self.gate * (x * self.v)


_old = jnp.asarray(_W)


ROWS = [
    of_function(
        "a lambda over old weights",
        Called(_old, lambda self, x: x * _old),
        Called(_old, lambda self, x: x * self.w),
        X,
    ),
    of_function("weights in a static field", quiet(Static, _W, Y), Affine(_old, Y), X),
    of_function(
        "a bias without use",
        Called((_old, Y), lambda self, x: x * self.w[0]),
        Called((_old, Y), lambda self, x: x * self.w[0] + self.w[1]),
        X,
    ),
    of_function(
        "weights cut off from gradients",
        Called(_old, lambda self, x: x * stop_gradient(self.w)),
        Scale(_old),
        X,
    ),
    of_function(
        "a gate of 0",
        Gated(_old, Y, 0.0),
        Gated(_old, Y, 0.5),
        X,
        missed="it reaches the output, and a derivative of 0 may be meant, as at the "
        "start of a gate",
    ),
]
