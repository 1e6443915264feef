"""A residual block trained on data x model devices has the losses of one device."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import eqx_pipe as ep

RULES = ep.sharding.AxisRules({"batch": "data", "hidden": "model"})


class Block(eqx.Module):
    up: eqx.nn.Linear
    down: eqx.nn.Linear
    norm: eqx.nn.LayerNorm

    def __init__(self, size, key):
        one, two = jr.split(key)
        self.up = eqx.nn.Linear(size, 4 * size, key=one)
        self.down = eqx.nn.Linear(4 * size, size, key=two)
        self.norm = eqx.nn.LayerNorm(size)

    def __call__(self, x):
        h = jax.vmap(self.norm)(x)
        hidden = ep.sharding.constrain(
            jax.nn.gelu(jax.vmap(self.up)(h)), None, "hidden"
        )
        return x + jax.vmap(self.down)(hidden)


SPECS = {"up": P("hidden"), "down.weight": P(None, "hidden")}


def batches():
    for _ in range(4):
        x = jr.normal(jr.key(1), (8, 5, 8))
        yield {"x": x, "y": jnp.roll(x, 1, axis=1)}


def train(model, place):
    optim = optax.sgd(1e-1)
    state = optim.init(eqx.filter(model, eqx.is_array))

    def loss(model, batch):
        return jnp.mean((jax.vmap(model)(batch["x"]) - batch["y"]) ** 2)

    @eqx.filter_jit
    def step(model, state, batch):
        value, grads = eqx.filter_value_and_grad(loss)(model, batch)
        updates, state = optim.update(grads, state)
        return eqx.apply_updates(model, updates), state, value

    losses = []
    for batch in batches():
        model, state, value = step(model, state, place(batch))
        losses.append(float(value))
    return model, losses


def test_losses_are_those_of_one_device():
    def make(key):
        return Block(8, key)

    kinds = (AxisType.Auto,) * 2
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=kinds)
    one, want = train(make(jr.key(0)), lambda batch: batch)
    model = ep.sharding.init_sharded(make, jr.key(0), mesh, SPECS, RULES)
    with ep.sharding.AxisRules(RULES).on(mesh):
        many, got = train(
            model, lambda b: ep.sharding.shard(b, mesh, P("batch"), RULES)
        )
    assert np.allclose(got, want, rtol=1e-4) and want[-1] < want[0]
    part = many.up.weight.addressable_shards[0].data
    assert part.nbytes == one.up.weight.nbytes // 2
    assert np.allclose(many.up.weight, one.up.weight, atol=1e-3)
