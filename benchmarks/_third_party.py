"""Functions to sweep that are mostly code of other packages: each of a point and a key.

`a` goes from 0.01 to 1, `b` from 0.1 to 0.9.
"""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import lineax as lx
import optax
import optimistix as optx


def lotka(p, key):
    """Hunters and prey, by an explicit solver with adaptive steps."""

    def slope(t, y, args):
        pairs = (p["b"] + 0.2) * y[0] * y[1]
        return jnp.stack([(p["a"] + 0.5) * y[0] - pairs, pairs - y[1]])

    return diffrax.diffeqsolve(
        diffrax.ODETerm(slope),
        diffrax.Tsit5(),
        0.0,
        10.0,
        None,
        jnp.asarray([2.0, 1.0]),
        stepsize_controller=diffrax.PIDController(rtol=1e-4, atol=1e-6),
        saveat=diffrax.SaveAt(t1=True),
    ).ys[0]


def langevin(p, key):
    """A stochastic equation driven by a virtual Brownian tree."""
    noise = diffrax.VirtualBrownianTree(0.0, 1.0, tol=1e-2, shape=(), key=key)
    drift = diffrax.ODETerm(lambda t, y, args: -p["a"] * y)
    terms = diffrax.MultiTerm(
        drift, diffrax.ControlTerm(lambda t, y, args: p["b"], noise)
    )
    solution = diffrax.diffeqsolve(
        terms, diffrax.Euler(), 0.0, 1.0, 0.02, jnp.asarray(1.0)
    )
    return solution.ys[0]


def newton(p, key):
    """Three coupled equations, by Newton's method."""

    def residual(y, args):
        first = y[0] + p["a"] * jnp.sin(y[1]) - 1
        second = y[1] - p["b"] * jnp.cos(y[0])
        return jnp.stack([first, second, y[2] + y[0] * y[1] - p["a"]])

    solver = optx.Newton(rtol=1e-5, atol=1e-5)
    return optx.root_find(residual, solver, jnp.ones(3), throw=False).value


def rosenbrock(p, key):
    """A minimum in a bent valley, by BFGS."""

    def height(y, args):
        return (1 - y[0]) ** 2 + (5 + 20 * p["a"]) * (y[1] - y[0] ** 2) ** 2

    start = jnp.stack([p["b"] - 1, p["a"]])
    solver = optx.BFGS(rtol=1e-4, atol=1e-4)
    return optx.minimise(height, solver, start, throw=False).value


def conjugate(p, key):
    """A linear system of 32 unknowns, by conjugate gradients."""
    waves = jnp.arange(1024.0).reshape(32, 32)
    matrix = jnp.eye(32) * (3 + p["a"]) + 0.05 * jnp.cos(waves + waves.T)
    operator = lx.MatrixLinearOperator(matrix, lx.positive_semidefinite_tag)
    right = jnp.sin(jnp.arange(32.0) * p["b"])
    solver = lx.CG(rtol=1e-5, atol=1e-5)
    return lx.linear_solve(operator, right, solver, throw=False).value[:4]


def perceptron(p, key):
    """Fifty steps of Adam on an `equinox.nn.MLP`."""
    params, rest = eqx.partition(eqx.nn.MLP(2, 1, 16, 2, key=key), eqx.is_inexact_array)
    x = jr.normal(jr.key(3), (32, 2))
    y = jnp.sin(x[:, :1] * x[:, 1:])
    optimizer = optax.adam(1.0)

    def loss(params):
        return jnp.mean((jax.vmap(eqx.combine(params, rest))(x) - y) ** 2)

    def step(carry, _):
        params, state = carry
        value, slopes = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(slopes, state)
        updates = jax.tree.map(lambda u: 0.05 * p["a"] * u, updates)
        return (eqx.apply_updates(params, updates), state), value

    start = (params, optimizer.init(params))
    return p["b"] * jax.lax.scan(step, start, length=50)[1][-1]


POINTS = {
    lotka: 2**14,
    langevin: 2**13,
    newton: 2**16,
    rosenbrock: 2**16,
    conjugate: 2**16,
    perceptron: 2**12,
}
"""How many points of each to sweep, about."""
