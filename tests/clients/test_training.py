"""Trainings by optax, swept over what one usually tries."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import eqx_pipe as ep
import eqx_pipe.testing as ept

STEPS = 20
X = jnp.linspace(-1, 1, 32).reshape(16, 2)
Y = jnp.sin(3 * X[:, :1])


def loss_of(model):
    return jnp.mean((jax.vmap(model)(X) - Y) ** 2)


def train(optimiser, key):
    """Return the losses of a training, step by step, and the trained model."""
    model = eqx.nn.MLP(2, 1, 8, 1, key=key)
    parameters, static = eqx.partition(model, eqx.is_inexact_array)

    def step(carry, _):
        parameters, state = carry
        loss, grads = eqx.filter_value_and_grad(
            lambda p: loss_of(eqx.combine(p, static))
        )(parameters)
        updates, state = optimiser.update(grads, state, parameters)
        return (optax.apply_updates(parameters, updates), state), loss

    carry = parameters, optimiser.init(parameters)
    (parameters, _), losses = jax.lax.scan(step, carry, length=STEPS)
    return losses, eqx.combine(parameters, static)


def scheduled(p):
    schedule = optax.join_schedules(
        [
            optax.linear_schedule(0.0, p["peak"], 5),
            optax.cosine_decay_schedule(p["peak"], STEPS - 5),
        ],
        [5],
    )
    optimiser = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=p["decay"])
    )
    return train(optimiser, p["seed"])[0]


def by_loop(fn, space):
    """Evaluate the function at each point by itself, as its package would run it."""
    one = eqx.filter_jit(fn)
    return np.stack([one(space.point(i)) for i in range(space.size)])


def test_schedules_decay_and_seeds():
    space = ep.Space(
        {
            "peak": ep.Geomspace(1e-3, 1e-1, 3),
            "decay": ep.Values([0.0, 0.1]),
            "seed": ep.Values(jax.random.split(jax.random.key(0), 2)),
        }
    )
    result = ep.sweep(scheduled, space)
    np.testing.assert_allclose(result.values, by_loop(scheduled, space), rtol=2e-4)
    assert result.grid().shape == (3, 2, 2, STEPS)
    with ept.assert_compiles(0):
        ep.sweep(lambda p: scheduled(p), space)
