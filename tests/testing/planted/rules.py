"""Rules with wrong values, and derivatives that are cut off.

Some are bugs that JAX had and mended, planted again in functions of our own; the
thread is named beside each.
"""

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient

from .row import MATRIX, X, Y, of_function, unary, with_jvp, with_vjp


def _tangent(tangent):
    return with_jvp(jnp.sin, lambda x, t: (jnp.sin(x[0]), tangent(x[0], t[0])))


def _product(x, y):
    return x * y


def _square(x):
    return x**2


def _times_i(z):
    return z * (0.6 + 0.8j)


def _symbolic(factor):
    """Return a product whose rule sees which arguments are differentiated."""
    made = jax.custom_vjp(_product)

    def forward(x, y):
        alone = not (x.perturbed and y.perturbed)
        return x.value * y.value, (x.value, y.value, factor if alone else 1.0)

    def back(kept, ct):
        x, y, by = kept
        return by * ct * y, by * ct * x

    made.defvjp(forward, back, symbolic_zeros=True)
    return made


wrong_sine = unary(jnp.sin, lambda x: -jnp.cos(x))
right_sine = unary(jnp.sin, jnp.cos)


def _in_scan(fn):
    return lambda x: jax.lax.scan(lambda c, _: (fn(c), None), x, None, length=3)[0]


def _linear_solve(transposed):
    def solve(a, b):
        return jax.lax.custom_linear_solve(
            lambda v: a @ v,
            b,
            solve=lambda _, b: jnp.linalg.solve(stop_gradient(a), b),
            transpose_solve=lambda _, b: jnp.linalg.solve(
                stop_gradient(a.T if transposed else a), b
            ),
        )

    return solve


def _masked_solve(symmetric):
    """Return a solve beside a masked number; the matrix is not symmetric."""

    def solve(a, b):
        x = jax.lax.custom_linear_solve(
            lambda v: a @ v,
            b,
            solve=lambda matvec, b: jnp.linalg.solve(jax.jacobian(matvec)(0 * b), b),
            transpose_solve=None
            if symmetric
            else lambda matvec, b: jnp.linalg.solve(jax.jacobian(matvec)(0 * b), b),
            symmetric=symmetric,
        )
        return jnp.append(x, -jnp.inf)

    return solve


def _scales(x):
    return x * jnp.array([1e6, 1.0, 2.0], x.dtype)


def _softplus_at_zero(x):
    # Of JAX's issue 2107: the derivatives of both `abs` and `max` are lost at a tie.
    zero = jnp.zeros_like(x)
    return jax.lax.max(x, zero) + jnp.log1p(jnp.exp(-jnp.abs(x)))


def _sinc(x):
    # Of JAX's issue 5054: the second derivative is 0 at 0.
    safe = jnp.where(x == 0, jnp.ones_like(x), x)
    return jnp.where(x == 0, jnp.ones_like(x), jnp.sin(safe) / safe)


def _sinc_by_series(x):
    safe = jnp.where(jnp.abs(x) < 0.05, jnp.ones_like(x), x)
    series = 1 - x**2 / 6 + x**4 / 120 - x**6 / 5040
    return jnp.where(jnp.abs(x) < 0.05, series, jnp.sin(safe) / safe)


def _bent(fn, slope):
    """Return a function whose second derivative is cut off."""
    return unary(fn, lambda x: slope(stop_gradient(x)))


_cube = _bent(lambda x: x**3, lambda x: 3 * x**2)
_right_cube = unary(lambda x: x**3, lambda x: 3 * x**2)
_ZEROS = jnp.array([0.0, 0.4, -0.9])
_Z = jnp.array([0.5 + 0.2j, -1.1 + 0.7j], "complex64")

ROWS = [
    of_function("the sign of a jvp", wrong_sine, right_sine, X),
    of_function(
        "cotangents swapped",
        with_vjp(_product, lambda args, ct: (ct * args[0], ct * args[1])),
        with_vjp(_product, lambda args, ct: (ct * args[1], ct * args[0])),
        X,
        Y,
    ),
    of_function(
        "a complex number conjugated",
        with_vjp(_times_i, lambda args, ct: (ct * (0.6 - 0.8j),)),
        with_vjp(_times_i, lambda args, ct: (ct * (0.6 + 0.8j),)),
        _Z,
    ),
    of_function(
        "another value in the rule",
        with_jvp(_square, lambda x, t: (x[0] ** 2 + 1, 2 * x[0] * t[0])),
        with_jvp(_square, lambda x, t: (x[0] ** 2, 2 * x[0] * t[0])),
        X,
    ),
    of_function(
        "another value in the forward pass",
        with_vjp(
            _square,
            lambda args, ct: (2 * ct * args[0],),
            lambda x: (1.01 * x**2, (x,)),
        ),
        with_vjp(_square, lambda args, ct: (2 * ct * args[0],)),
        X,
    ),
    of_function("a wrong second derivative", _cube, _right_cube, X),
    of_function(
        "symbolic zeros",
        _symbolic(2.0),
        _symbolic(1.0),
        X,
        Y,
    ),
    of_function("inside a scan", _in_scan(wrong_sine), _in_scan(right_sine), X),
    of_function(
        "the transpose of a linear solve",
        _linear_solve(False),
        _linear_solve(True),
        MATRIX,
        X,
    ),
    of_function(
        "a tangent that is not linear",
        _tangent(lambda x, t: jnp.cos(x) * jnp.abs(t)),
        _tangent(lambda x, t: jnp.cos(x) * t),
        X,
    ),
    of_function(
        "a transpose beside an infinite number",
        _masked_solve(True),
        _masked_solve(False),
        MATRIX,
        X,
    ),
    of_function(
        "a gradient that is not summed over a broadcast axis",
        with_vjp(_product, lambda args, ct: (ct * args[1], ct * args[0])),
        with_vjp(_product, lambda args, ct: (ct * args[1], jnp.sum(ct * args[0]))),
        X,
        jnp.float32(1.5),
    ),
    of_function(
        "a small number beside a large one",
        with_vjp(
            _scales, lambda args, ct: (ct * jnp.array([1e6, 2.0, 2.0], ct.dtype),)
        ),
        with_vjp(
            _scales, lambda args, ct: (ct * jnp.array([1e6, 1.0, 2.0], ct.dtype),)
        ),
        X,
    ),
    of_function("softplus at 0", _softplus_at_zero, jax.nn.softplus, _ZEROS),
    of_function("sinc at 0, twice", _sinc, _sinc_by_series, _ZEROS),
    of_function(
        "a stop_gradient on an argument",
        lambda x, y: x * stop_gradient(y),
        _product,
        X,
        Y,
    ),
]
