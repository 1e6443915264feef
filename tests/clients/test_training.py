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


def injected(p):
    make = optax.inject_hyperparams(optax.sgd)
    return train(make(learning_rate=p["rate"], momentum=0.9), jax.random.key(1))[0]


def accumulated(p):
    optimiser = optax.MultiSteps(optax.adam(p["rate"]), every_k_schedule=4)
    return train(optimiser, jax.random.key(1))[0]


def test_hyperparameters_that_are_injected_and_steps_that_are_accumulated():
    space = ep.Space({"rate": ep.Geomspace(1e-3, 1e-1, 3)})
    for fn in (injected, accumulated):
        values = ep.sweep(fn, space).values
        np.testing.assert_allclose(values, by_loop(fn, space), rtol=2e-4)


def test_the_parameters_of_a_pipeline_that_optax_trains():
    """A pipeline is an Equinox model: the same losses as the same layers by hand."""
    first, second = (eqx.nn.Linear(*n, key=jax.random.key(3)) for n in ((2, 8), (8, 1)))

    class ByHand(eqx.Module):
        first: eqx.nn.Linear
        second: eqx.nn.Linear

        def __call__(self, x):
            return self.second(jax.nn.tanh(self.first(x)))

    def losses(model):
        optimiser = optax.adamw(1e-2)
        state = optimiser.init(eqx.filter(model, eqx.is_inexact_array))
        found = []

        @eqx.filter_jit
        def step(model, state):
            loss, grads = eqx.filter_value_and_grad(loss_of)(model)
            updates, state = optimiser.update(
                grads, state, eqx.filter(model, eqx.is_inexact_array)
            )
            return eqx.apply_updates(model, updates), state, loss

        for _ in range(5):
            model, state, loss = step(model, state)
            found.append(float(loss))
        return found

    ours = losses(ep.chain(first, jax.nn.tanh, second))
    theirs = losses(ByHand(first, second))
    np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)
    assert ours[-1] < ours[0]
