"""Rules with wrong values, and derivatives that are cut off.

Some are bugs that JAX, diffrax and brax had and mended, planted again in functions of
our own; the thread is named beside each.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.lax import stop_gradient

from .row import MATRIX, X, Y, of_function, unary, with_jvp, with_vjp


def _two(fn, left, right):
    """A function of two arrays, with a rule for each argument."""
    return with_jvp(fn, lambda x, t: (fn(*x), left(*x) * t[0] + right(*x) * t[1]))


def _tangent(tangent):
    return with_jvp(jnp.sin, lambda x, t: (jnp.sin(x[0]), tangent(x[0], t[0])))


def _product(x, y):
    return x * y


def _sort(x):
    return jnp.sort(x)


def _sorted_back(args, ct):
    return (jnp.zeros_like(ct).at[jnp.argsort(args[0])].set(ct),)


def _square(x):
    return x**2


def _solve(a, b):
    return jnp.linalg.solve(a, b)


def _solved_back(transposed):
    def back(kept, ct):
        a, x = kept
        adjoint = jnp.linalg.solve(a.T if transposed else a, ct)
        return -jnp.outer(adjoint, x), adjoint

    return back


def _solving(transposed):
    def forward(a, b):
        x = _solve(a, b)
        return x, (a, x)

    return with_vjp(_solve, _solved_back(transposed), forward)


def _matvec(w, x):
    return w @ x


def _logsumexp(x):
    return jax.nn.logsumexp(x, axis=-1)


def _softmax_of(axis):
    return with_vjp(
        _logsumexp, lambda args, ct: (jax.nn.softmax(args[0], axis) * ct[..., None],)
    )


def _newton(x):
    return jax.lax.fori_loop(0, 30, lambda _, y: 0.5 * (y + x / y), jnp.ones_like(x))


def _scaled(x, s):
    return x * s


def _scale_back(reduce):
    return lambda args, ct: (ct * args[1], reduce(ct * args[0]))


def _clip(x, limit):
    return jnp.clip(x, -limit, limit)


def _clip_back(signed):
    def back(args, ct):
        x, limit = args
        out = jnp.where(jnp.abs(x) > limit, ct, jnp.zeros_like(ct))
        sign = jnp.sign(x) if signed else jnp.ones_like(x)
        return ct - out, jnp.sum(out * sign)

    return back


def _norm(x):
    return jnp.sqrt(jnp.sum(x**2))


def _times_i(z):
    return z * (0.6 + 0.8j)


def _symbolic(factor):
    """A rule that sees which arguments are differentiated."""
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


def _in_cond(fn):
    return lambda x: jax.lax.cond(x[0] > 0, fn, jnp.cos, x)


def _in_vmap(fn):
    return lambda x: jax.vmap(lambda v: fn(v) * v)(x)


def _in_remat(fn):
    return jax.checkpoint(lambda x: fn(x) + x)


def _smooth(x):
    return jnp.cumsum(x)


def _flow(back):
    """A loop that gives all states, with the derivative of a loop written by hand."""

    def loop(x, w):
        return jax.lax.scan(lambda c, _: (jnp.tanh(w * c), c), x, None, length=3)

    def forward(x, w):
        last, states = loop(x, w)
        return (last, states), (last, states, w)

    def backward(kept, cts):
        last, states, w = kept
        ct, of_states = cts

        def step(carry, inputs):
            ct, of_w = carry
            before, own = inputs
            slope = (1 - jnp.tanh(w * before) ** 2) * ct
            return (slope * w + back * own, of_w + slope * before), None

        start = (ct, jnp.zeros_like(w))
        (ct, of_w), _ = jax.lax.scan(step, start, (states, of_states), reverse=True)
        return ct, of_w

    return with_vjp(loop, backward, forward)


def _power(n_of):
    made = jax.custom_jvp(lambda x, n: x**n, nondiff_argnums=(1,))
    made.defjvp(lambda n, x, t: (x[0] ** n, n_of(n) * x[0] ** (n - 1) * t[0]))
    return lambda x: made(x, 3)


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


def _root(sign):
    """Solves y**3 + y = x."""

    def root(x):
        def newton(f, y):
            return jax.lax.fori_loop(
                0, 25, lambda _, v: v - f(v) / (3 * v**2 + 1), jnp.zeros_like(y)
            )

        def tangent_solve(g, y):
            return sign * y / g(jnp.ones_like(y))

        return jax.lax.custom_root(
            lambda y: y**3 + y - x, jnp.zeros_like(x), newton, tangent_solve
        )

    return root


def _filtered(factor):
    @eqx.filter_custom_vjp
    def fn(x, power):
        return x**power

    @fn.def_fwd
    def forward(perturbed, x, power):
        return x**power, None

    @fn.def_bwd
    def backward(kept, ct, perturbed, x, power):
        return factor * power * x ** (power - 1) * ct

    return lambda x: fn(x, 2)


def _filtered_forward(factor):
    @eqx.filter_custom_jvp
    def fn(x, by):
        return jnp.sin(x) * by

    @fn.def_jvp
    def rule(primals, tangents):
        (x, by), (t, _) = primals, tangents
        return fn(x, by), factor * jnp.cos(x) * by * t

    return lambda x: fn(x, 2.0)


def _gradient(flipped):
    @jax.custom_gradient
    def fn(x):
        by = jnp.array([0.2, 0.5, 0.3], x.dtype)
        smooth = jnp.convolve(x, by, mode="same")
        by = by[::-1] if flipped else by
        return smooth, lambda ct: jnp.convolve(ct, by, mode="same")

    return fn


def _each(*rules):
    made = jax.custom_jvp(_product)
    made.defjvps(*rules)
    return made


def _interpolated(cut):
    table = stop_gradient if cut else (lambda v: v)
    return lambda x, ys: jnp.interp(x, jnp.arange(3, dtype=x.dtype), table(ys))


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


def _arcsine(slope):
    return unary(jnp.arcsin, slope)


def _segments(slope):
    """Products of segments; of JAX's issue 9296."""

    def prod(x):
        return jax.ops.segment_prod(x, jnp.array([0, 0, 1]), 2)

    def back(args, ct):
        (x,) = args
        own = prod(x)[jnp.array([0, 0, 1])]
        return (ct[jnp.array([0, 0, 1])] * slope(own, x),)

    return with_vjp(prod, back)


def _bent(fn, slope):
    """A derivative whose own derivative is cut off."""
    return unary(fn, lambda x: slope(stop_gradient(x)))


_cube = _bent(lambda x: x**3, lambda x: 3 * x**2)
_right_cube = unary(lambda x: x**3, lambda x: 3 * x**2)
_ZEROS = jnp.array([0.0, 0.4, -0.9])
_IMAGE = jnp.array([[0.3, -0.6, 1.1], [0.9, 0.2, -0.4]])
_Z = jnp.array([0.5 + 0.2j, -1.1 + 0.7j], "complex64")

ROWS = [
    of_function("the sign of a jvp", wrong_sine, right_sine, X),
    of_function(
        "a factor of the chain rule",
        unary(lambda x: jnp.sin(2 * x), lambda x: jnp.cos(2 * x)),
        unary(lambda x: jnp.sin(2 * x), lambda x: 2 * jnp.cos(2 * x)),
        X,
    ),
    of_function(
        "an inner derivative forgotten",
        unary(lambda x: jnp.exp(-(x**2)), lambda x: jnp.exp(-(x**2))),
        unary(lambda x: jnp.exp(-(x**2)), lambda x: -2 * x * jnp.exp(-(x**2))),
        X,
    ),
    of_function(
        "half of a vjp",
        with_vjp(_square, lambda args, ct: (ct * args[0],)),
        with_vjp(_square, lambda args, ct: (2 * ct * args[0],)),
        X,
    ),
    of_function(
        "cotangents swapped",
        with_vjp(_product, lambda args, ct: (ct * args[0], ct * args[1])),
        with_vjp(_product, lambda args, ct: (ct * args[1], ct * args[0])),
        X,
        Y,
    ),
    of_function(
        "the vjp of a sort without its order",
        with_vjp(_sort, lambda args, ct: (ct,)),
        with_vjp(_sort, _sorted_back),
        X,
    ),
    of_function(
        "an argument forgotten",
        _two(_product, lambda x, y: y, lambda x, y: jnp.zeros_like(x)),
        _two(_product, lambda x, y: y, lambda x, y: x),
        X,
        Y,
    ),
    of_function(
        "the sign of a quotient",
        _two(jnp.divide, lambda x, y: 1 / y, lambda x, y: x / y**2),
        _two(jnp.divide, lambda x, y: 1 / y, lambda x, y: -x / y**2),
        X,
        Y,
    ),
    of_function(
        "sigmoid by its output",
        unary(jax.nn.sigmoid, lambda x: jax.nn.sigmoid(x) * (1 + jax.nn.sigmoid(x))),
        unary(jax.nn.sigmoid, lambda x: jax.nn.sigmoid(x) * (1 - jax.nn.sigmoid(x))),
        X,
    ),
    of_function(
        "tanh without a square",
        unary(jnp.tanh, lambda x: 1 - jnp.tanh(x)),
        unary(jnp.tanh, lambda x: 1 - jnp.tanh(x) ** 2),
        X,
    ),
    of_function(
        "a mean for a sum over what was broadcast",
        with_vjp(_scaled, _scale_back(jnp.mean)),
        with_vjp(_scaled, _scale_back(jnp.sum)),
        X,
        jnp.float32(1.5),
    ),
    of_function("a solve not transposed", _solving(False), _solving(True), MATRIX, X),
    of_function(
        "a matrix not transposed",
        with_vjp(_matvec, lambda a, ct: (jnp.outer(ct, a[1]), a[0] @ ct)),
        with_vjp(_matvec, lambda a, ct: (jnp.outer(ct, a[1]), a[0].T @ ct)),
        MATRIX,
        X,
    ),
    of_function("softmax over another axis", _softmax_of(0), _softmax_of(-1), _IMAGE),
    of_function(
        "a root found by iteration",
        unary(_newton, lambda x: 1 / _newton(x)),
        unary(_newton, lambda x: 0.5 / _newton(x)),
        jnp.abs(X),
    ),
    of_function(
        "a limit whose sign is lost",
        with_vjp(_clip, _clip_back(False)),
        with_vjp(_clip, _clip_back(True)),
        X,
        jnp.float32(1.0),
    ),
    of_function(
        "a norm squared",
        with_vjp(_norm, lambda args, ct: (ct * args[0] / _norm(args[0]) ** 2,)),
        with_vjp(_norm, lambda args, ct: (ct * args[0] / _norm(args[0]),)),
        X,
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
        missed="all arguments are differentiated, so no rule meets a symbolic zero",
    ),
    of_function("inside a scan", _in_scan(wrong_sine), _in_scan(right_sine), X),
    of_function("inside a branch", _in_cond(wrong_sine), _in_cond(right_sine), X),
    of_function("inside a vmap", _in_vmap(wrong_sine), _in_vmap(right_sine), X),
    of_function("inside a remat", _in_remat(wrong_sine), _in_remat(right_sine), X),
    of_function(
        "a running sum not reversed",
        with_vjp(_smooth, lambda args, ct: (jnp.cumsum(ct),)),
        with_vjp(_smooth, lambda args, ct: (jnp.cumsum(ct[::-1])[::-1],)),
        X,
    ),
    of_function("a kernel not flipped", _gradient(False), _gradient(True), X),
    # Of diffrax's issue 64: what the states on the way contribute.
    of_function("states on the way", _flow(0.0), _flow(1.0), X[0], jnp.float32(0.8)),
    of_function("an exponent", _power(lambda n: n - 1), _power(lambda n: n), X),
    of_function(
        "the transpose of a linear solve",
        _linear_solve(False),
        _linear_solve(True),
        MATRIX,
        X,
    ),
    of_function("the tangent of a root", _root(-1.0), _root(1.0), X),
    of_function("Equinox's custom_vjp", _filtered(0.5), _filtered(1.0), X),
    of_function(
        "Equinox's custom_jvp", _filtered_forward(-1.0), _filtered_forward(1.0), X
    ),
    of_function(
        "a tangent that is not linear",
        _tangent(lambda x, t: jnp.cos(x) * jnp.abs(t)),
        _tangent(lambda x, t: jnp.cos(x) * t),
        X,
    ),
    of_function(
        "a rule that is None",
        _each(lambda t, out, x, y: t * y, None),
        _each(lambda t, out, x, y: t * y, lambda t, out, x, y: t * x),
        X,
        Y,
    ),
    # Of JAX's issue 3213, an example of its documentation.
    of_function(
        "the sign of a second argument",
        _two(
            lambda x, y: jnp.sin(x) * y,
            lambda x, y: jnp.cos(x) * y,
            lambda x, y: -jnp.sin(x),
        ),
        _two(
            lambda x, y: jnp.sin(x) * y,
            lambda x, y: jnp.cos(x) * y,
            lambda x, y: jnp.sin(x),
        ),
        X,
        Y,
    ),
    of_function("softplus at 0", _softplus_at_zero, jax.nn.softplus, _ZEROS),
    of_function("sinc at 0, twice", _sinc, _sinc_by_series, _ZEROS),
    # Of brax's pull request 484.
    of_function(
        "a safe arcsine",
        _arcsine(lambda x: 1 / (1 - x**2)),
        _arcsine(lambda x: 1 / jnp.sqrt(1 - x**2)),
        jnp.array([0.2, -0.6]),
    ),
    of_function(
        "products of segments",
        _segments(lambda own, x: own),
        _segments(lambda own, x: own / x),
        X,
    ),
    of_function(
        "a stop_gradient in a normaliser",
        lambda x: x**2 / stop_gradient(jnp.sum(x**2)),
        lambda x: x**2 / jnp.sum(x**2),
        X,
    ),
    of_function(
        "a stop_gradient on an argument",
        lambda x, y: x * stop_gradient(y),
        _product,
        X,
        Y,
    ),
    of_function(
        "a table that is cut off",
        _interpolated(True),
        _interpolated(False),
        jnp.array([0.3, 1.6]),
        Y,
    ),
    of_function(
        "a rounded value for a smooth one",
        lambda x: jnp.tanh(stop_gradient(x) + 0 * x),
        jnp.tanh,
        X,
    ),
]
