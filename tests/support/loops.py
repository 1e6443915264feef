"""Loops of different length, for tests of `refill`, and the plain loop."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import eqx_pipe as ep


def reference(init, cond, body, out):
    """Return a function of a point with one loop."""

    def fn(point):
        last = jax.lax.while_loop(
            lambda c: cond(point, c), lambda c: body(point, c), init(point)
        )
        return out(point, last)

    return fn


def refilled(*parts):
    return ep.refill(reference(*parts))


def points(sizes, seed=0, most=40):
    rng = np.random.default_rng(seed)
    n = np.minimum(rng.geometric(0.1, sizes) - 1, most).astype(np.int32)
    return {"n": jnp.asarray(n), "x": jnp.asarray(rng.random(sizes), jnp.float32)}


WEIGHTS = np.float32(np.random.default_rng(0).normal(size=(64, 64)) / 8)


def matrix_steps(make):
    return make(
        lambda p: (0, jnp.full(64, p["x"])),
        lambda p, c: c[0] < p["n"],
        lambda p, c: (c[0] + 1, jnp.tanh(WEIGHTS @ c[1])),
        lambda p, c: c[1].sum(),
    )


def counting(step):
    """Return a loop of `n` steps, in which `step` may do more than count."""
    return lambda make: make(lambda p: 0, lambda p, i: i < p["n"], step, lambda p, i: i)


def inner_while(p, i):  # which lanes without work must not prolong
    return i + 1 + 0 * jax.lax.while_loop(lambda k: k != i, lambda k: k + 1, i - i)


def draws(make):
    # JAX 0.12 has a primitive of its own for `searchsorted`, which `choice` uses.
    table = jnp.linspace(0, 1, 5)

    def step(point, carry):
        key, drawn = jr.split(carry[1])
        value = jr.choice(drawn, table, p=table / table.sum())
        return carry[0] + 1, key, carry[2] + jnp.searchsorted(table, value)

    return make(
        lambda p: (0, jr.fold_in(jr.key(0), p["n"]), 0),
        lambda p, c: c[0] < p["n"],
        step,
        lambda p, c: c,
    )


LOOPS = {
    "a matrix for all": matrix_steps,
    "a while loop": counting(inner_while),
    "a loop that is refilled": counting(
        lambda p, i: i + 1 + 0 * counting(inner_while)(refilled)({"n": i})
    ),
    "draws": draws,
    "numbers": lambda make: make(
        lambda p: 0, lambda p, c: c < 3, lambda p, c: c + p["x"] + 0.1, lambda p, c: c
    ),
}
