"""Trainers that are not ours: each gets in with a few lines, and keeps its values."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqx_pipe as ep

KEY = jr.key(5)


class Net(eqx.Module):
    first: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    drop: eqx.nn.Dropout
    act: object

    def __init__(self, key):
        self.first = eqx.nn.Linear(3, 4, key=key)
        self.norm = eqx.nn.BatchNorm(4, "batch", mode="batch")
        self.drop, self.act = eqx.nn.Dropout(0.1), jax.nn.relu

    def __call__(self, x, state, key):
        x, state = self.norm(self.act(self.first(x)), state)
        return self.drop(x, key=key).sum(), state


@pytest.mark.slow
def test_a_train_step_of_equinox_with_state():
    optax = pytest.importorskip("optax")
    x, y = jr.normal(KEY, (64, 3)), jnp.ones(64)

    def loss_of(model, state, batch, key):
        keys = jr.split(key, len(batch[0]))
        axes = {"in_axes": (0, None, 0), "out_axes": (0, None)}
        run = jax.vmap(model, axis_name="batch", **axes)
        out, state = run(batch[0], state, keys)
        return jnp.mean((out - batch[1]) ** 2), state

    @eqx.filter_jit
    def train_step(model, state, opt_state, batch, key, optimiser):
        grad = eqx.filter_value_and_grad(loss_of, has_aux=True)
        (loss, state), grads = grad(model, state, batch, key)
        params = eqx.filter(model, eqx.is_inexact_array)
        updates, opt_state = optimiser.update(grads, opt_state, params)
        return eqx.apply_updates(model, updates), state, opt_state, loss

    def init(p, key):
        model, state = eqx.nn.make_with_state(Net)(key)
        opt_state = optax.adam(p["lr"]).init(eqx.filter(model, eqx.is_inexact_array))
        return model, state, opt_state

    def step(p, carry, key):
        rows = jr.randint(key, (32,), 0, len(x))
        batch = x[rows], y[rows]
        *carry, loss = train_step(*carry, batch, key, optax.adam(p["lr"]))
        return tuple(carry), {"loss": loss}

    space = ep.Space({"lr": ep.Geomspace(1e-4, 1e-1, 3)})
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        result = ep.train(ep.Training(init, step), space, 20, log_every=1, key=KEY)
        own, losses = space.point_key(2, key=KEY), []
        carry = init(space.point(2), key=jr.fold_in(own, 0))
        once = eqx.filter_jit(lambda carry, key: step(space.point(2), carry, key))
        for k in range(1, 21):
            carry, metrics = once(carry, jr.fold_in(own, k))
            losses.append(float(metrics["loss"]))
        np.testing.assert_allclose(result.curves.values["loss"][2], losses, rtol=1e-3)
        model, state, _ = result.carry(2)
        out, _ = eqx.nn.inference_mode(model)(x[0], state, KEY)  # it can be used
    assert model.act is jax.nn.relu and jnp.isfinite(out)


def test_static_fields_of_a_carry_may_hold_numbers_of_the_point():
    train_state = pytest.importorskip("flax.training.train_state")
    optax = pytest.importorskip("optax")

    def init(p):
        return train_state.TrainState.create(
            apply_fn=None, params={"x": jnp.float32(4)}, tx=optax.sgd(p["rate"])
        )

    def step(p, state):
        x = state.params["x"]
        return state.apply_gradients(grads={"x": 2 * x}), {"loss": x**2}

    space = {"rate": ep.Geomspace(1e-3, 0.3, 6)}
    result = ep.train(ep.Training(init, step), space, 3)
    best = result.best("loss")
    x = 4 * (1 - 2 * best.point["rate"]) ** 2
    np.testing.assert_allclose(best.value, x**2, rtol=1e-4)
    state = result.carry(best.index)
    after = state.apply_gradients(grads={"x": jnp.float32(1.0)})
    moved = state.params["x"] - after.params["x"]
    np.testing.assert_allclose(moved, best.point["rate"], rtol=1e-5)


def test_the_cursor_of_a_loader_is_part_of_the_carry():
    source = ep.data.ArraySource(jnp.arange(10.0))
    loader = ep.data.Loader(source, batch_size=4)

    def step(p, cursor):
        batch, cursor = loader.next(cursor)
        return cursor, {"batch": batch}

    training = ep.Training(lambda p, key: loader.init(key), step)
    space = ep.Space({"seed": ep.Seeds(2)})
    result = ep.train(training, space, 5, log_every=1, key=KEY)
    cursor = loader.init(jr.fold_in(space.point_key(1, key=KEY), 0))
    for k in range(5):
        batch, cursor = loader.next(cursor)
        assert (result.curves.values["batch"][1, k] == batch).all()


def test_a_runner_state_of_reinforcement_learning():
    # As in PureJaxRL: `update_step(runner_state, None)` returns it, and metrics.
    def make_runner(p, key):
        params = {"w": jnp.zeros(2), "lr": p["lr"]}
        return params, {"time": jnp.int32(0), "x": jnp.float32(0)}, key

    def update_step(runner, _):
        def rollout(state, key):
            params, env = state
            action = jr.categorical(key, params["w"])
            env = {"time": env["time"] + 1, "x": action.astype(jnp.float32)}
            return (params, env), (action, env["x"])

        params, env, key = runner
        key, own = jr.split(key)
        (_, env), (action, reward) = jax.lax.scan(
            rollout, (params, env), jr.split(own, 16)
        )

        def loss(w):
            return -jnp.mean(jax.nn.log_softmax(w)[action] * (reward - reward.mean()))

        w = params["w"] - params["lr"] * jax.grad(loss)(params["w"])
        return ({**params, "w": w}, env, key), {"return": reward.sum()}

    training = ep.Training(make_runner, lambda p, runner: update_step(runner, None))
    space = ep.Space({"lr": ep.Values([0.0, 2.0]), "seed": ep.Seeds(3)})
    result = ep.train(training, space, 60, key=KEY)
    best = result.best("return", "max", over="seed")
    assert best.point["lr"] == 2 and best.value > 12
    params, env, _ = result.carry(int(best.index[0]))
    assert env["time"] == 60 * 16 and params["w"][1] > params["w"][0]


def test_molecular_dynamics():
    def step(p, state):  # leapfrog, whose energy does not drift
        q, v = state
        v = v - 0.5 * p["dt"] * q
        q = q + p["dt"] * v
        v = v - 0.5 * p["dt"] * q
        return (q, v), {"energy": 0.5 * jnp.sum(q**2 + v**2)}

    training = ep.Training(lambda p: (jnp.ones(3), jnp.zeros(3)), step)
    space = {"dt": ep.Geomspace(1e-3, 1e-1, 3)}
    result = ep.train(training, space, 200, log_every=1)
    error = np.abs(result.curves.values["energy"] - 1.5).max(1)
    assert (error < np.array([1e-5, 1e-3, 1e-2])).all() and error[2] > error[1]
