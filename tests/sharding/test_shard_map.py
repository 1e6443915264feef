"""shard_map and init_sharded."""

import functools as ft

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import eqx_pipe as ep

KINDS = (AxisType.Auto, AxisType.Explicit)


@pytest.fixture(params=KINDS, ids=str)
def mesh(request):
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(request.param,) * 2)


def rows(mlp):
    """Return a stage over a batch."""
    return ep.batched(mlp)


def test_rows_of_a_module_as_on_the_whole(mesh, getkey):
    mlp = eqx.nn.MLP(4, 4, 8, 1, key=getkey())
    x = jr.normal(getkey(), (8, 4))
    explicit = mesh.axis_types[0] == AxisType.Explicit
    given = ep.sharding.shard(x, mesh, P("data")) if explicit else x
    stage = ep.sharding.shard_map(rows(mlp), mesh, P("data"), P("data"))

    def loss(stage, x):
        return jnp.sum(stage(x) ** 2)

    run = eqx.filter_jit(eqx.filter_value_and_grad(loss))
    plain, got = run(rows(mlp), x), run(stage, given)
    assert np.allclose(got[0], plain[0], rtol=1e-5)
    grads = jtu.tree_leaves(got[1].stage)
    for a, b in zip(grads, jtu.tree_leaves(plain[1]), strict=True):
        assert np.allclose(a, b, atol=1e-4)
    y = eqx.filter_jit(stage)(given)
    assert np.allclose(y, rows(mlp)(x), atol=1e-5)
    assert y.sharding.spec[0] == "data"
    assert np.allclose(stage(given), rows(mlp)(x), atol=1e-5)  # outside jit


@pytest.mark.parametrize("which", ["cond", "one for all"])
def test_gradients_where_each_device_chooses(which, getkey):
    """A sum over devices inside of a branch would wait for those in another."""
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
    layer, x = eqx.nn.Linear(4, 4, key=getkey()), jr.normal(getkey(), (8, 4))
    stage = {
        "cond": ep.batched(ep.cond(lambda x: x[0] > 0, layer)),
        "one for all": ep.cond(lambda x: x[0, 0] > 0, ep.batched(layer)),
    }[which]
    parts = x.reshape(4, 2, 4) if which == "one for all" else x[None]

    def plain(stage):
        return sum(jnp.sum(stage(part) ** 2) for part in parts)

    def split(stage):
        return jnp.sum(ep.sharding.shard_map(stage, mesh, P("data"), P("data"))(x) ** 2)

    found = eqx.filter_jit(eqx.filter_grad(split))(stage)
    expected = eqx.filter_jit(eqx.filter_grad(plain))(stage)
    for a, b in zip(jtu.tree_leaves(found), jtu.tree_leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_collectives_pytrees_and_other_leaves(mesh):
    def stage(x):
        assert x["n"] == 3
        assert x["a"].shape == (2, 2) and x["s"] == "text"
        total = jax.lax.psum(jnp.sum(x["a"]), ("data", "model"))
        rest = {"s": x["s"], "n": x["n"], "host": np.ones(2, np.float32)}
        return {"total": total, "a": x["a"] + total} | rest

    specs = {"a": P("data", "model"), "s": None, "n": None, "none": None}
    out = dict.fromkeys(("total", "s", "host")) | {"a": P("data", "model")}
    out["n"] = P("data")
    x = {"a": jnp.arange(32.0).reshape(8, 4), "s": "text", "n": 3, "none": None}
    y = ep.sharding.shard_map(stage, mesh, specs, out)(x)
    assert y["s"] == "text" and y["n"] == 3 and y["host"].shape == (2,)
    assert y["total"] == 496
    assert np.array_equal(y["a"], np.asarray(x["a"]) + 496)


def test_parts_draw_differently_and_copies_alike(mesh):
    noise = ep.sharding.shard_map(
        lambda x, key: x + jr.normal(key, x.shape), mesh, P("data"), P("data")
    )
    y = np.asarray(noise(jnp.zeros((8, 2)), key=jr.key(0)))
    parts = y.reshape(4, -1)
    assert len({tuple(p) for p in parts.tolist()}) == 4
    with pytest.raises(ep.MissingKeyError):
        ep.sharding.shard_map(eqx.nn.Dropout(), mesh, P("data"), P("data"))(
            jnp.ones((8, 2))
        )


def norm(*axes):
    layer = eqx.nn.BatchNorm(4, axes, mode="batch")
    return ep.batched(layer, axis_name="batch")


def test_state(mesh):
    x = jr.normal(jr.key(0), (8, 4))
    plain, state = eqx.nn.make_with_state(norm)("batch")
    want, want_state = plain(x, state)
    inner, state = eqx.nn.make_with_state(norm)("data", "batch")
    stage = ep.sharding.shard_map(inner, mesh, P("data"), P("data"))
    got, got_state = eqx.filter_jit(stage)(x, state)
    assert np.allclose(got, want, atol=1e-5)
    for a, b in zip(*map(jtu.tree_leaves, (got_state, want_state)), strict=True):
        assert np.allclose(a, b, atol=1e-5)


def test_loops_that_begin_with_a_constant_and_checks_of_values(mesh):
    def total(x):
        x = eqx.error_if(x, jnp.any(x < 0), "negative")
        return jax.lax.fori_loop(0, x.shape[0], lambda i, s: s + x[i], jnp.zeros(()))

    run = ep.sharding.shard_map(lambda x: total(x)[None], mesh, P("data"), P("data"))
    assert np.allclose(run(jnp.arange(16.0)), np.arange(16).reshape(4, 4).sum(1))


def one(w, x):
    return jnp.sum(jnp.sin(w * x))


class Scale(eqx.Module):
    w: jax.Array

    def __call__(self, x):
        return jax.vmap(jax.grad(one), (None, 0))(self.w, x)


W = np.arange(1.0, 4.0, dtype=np.float32)
X = (np.arange(24, dtype=np.float32).reshape(8, 3) + 1) / 10


@pytest.mark.parametrize("which", ["parameter", "closed over", "made inside"])
def test_gradients_inside_are_those_of_one_part(mesh, which):
    w = jnp.asarray(W)
    stage = {
        "parameter": Scale(w),
        "closed over": lambda x: Scale(w)(x),
        "made inside": lambda x: Scale(jnp.arange(1.0, 4.0))(x),
    }[which]
    run = ep.sharding.shard_map(stage, mesh, P("data"), P("data"))
    assert np.allclose(run(jnp.asarray(X)), X * np.cos(W * X), atol=1e-6)


class Step(eqx.nn.StatefulLayer):
    """A step of training, with a penalty, which depends on parameters alone."""

    w: jax.Array
    seen: eqx.nn.StateIndex

    def __init__(self):
        self.w, self.seen = jnp.asarray(W), eqx.nn.StateIndex(jnp.zeros(3))

    def __call__(self, x, state, *, key=None):
        part = jnp.mean(Scale(self.w)(x), 0)
        new = state.get(self.seen) + self.w * jax.lax.pmean(jnp.mean(x, 0), "data")
        penalty = jax.lax.fori_loop(0, 3, lambda i, s: s + self.w[i] ** 2, 0.0)
        after = self.w - jax.lax.pmean(part, "data")
        return {"w": after, "penalty": penalty}, state.set(self.seen, new)


def test_a_step_of_training_inside(mesh):
    step, state = eqx.nn.make_with_state(Step)()
    run = ep.sharding.shard_map(step, mesh, P("data"), P())
    y, state = run(jnp.asarray(X), state)
    assert np.allclose(y["w"], W - np.mean(X * np.cos(W * X), 0), atol=1e-6)
    assert y["penalty"] == 14
    assert np.allclose(state.get(step.seen), W * X.mean(0), atol=1e-6)


def test_the_gradient_of_a_mean_over_devices(mesh):
    def gradient(x):
        def loss(w):
            return jax.lax.pmean(jnp.mean(jax.vmap(one, (None, 0))(w, x)), "data")

        return jax.lax.pmean(jax.grad(loss)(jnp.asarray(W)), "data")

    run = ep.sharding.shard_map(gradient, mesh, P("data"), P())
    assert np.allclose(run(jnp.asarray(X)), np.mean(X * np.cos(W * X), 0), atol=1e-6)


def test_outer_gradients_through_inner_ones_and_collectives(mesh):
    class Sums(eqx.Module):
        w: jax.Array

        def __call__(self, x):
            inner = Scale(self.w)(x)
            total = jax.lax.psum(jnp.sum(inner), "data")
            every = jax.lax.all_gather(x @ self.w, "data", tiled=True)
            return total, every, jnp.sum(self.w**3), inner * total

    def loss(w, x, split):
        stage = Sums(w)
        if split:
            stage = ep.sharding.shard_map(
                stage, mesh, P("data"), (P(), P(), P(), P("data"))
            )
            total, every, penalty, rows = stage(x)
        else:
            inner = Scale(w)(x)
            total, every, penalty = jnp.sum(inner), x @ w, jnp.sum(w**3)
            rows = inner * total
        return total**2 + jnp.sum(every**2) + 2 * penalty + jnp.sum(jnp.sin(rows))

    w, x = (ep.sharding.shard(a, mesh, None) for a in (W, X))
    run = jax.jit(jax.grad(loss, argnums=(0, 1)), static_argnums=2)
    for a, b in zip(run(w, x, True), run(jnp.asarray(W), X, False), strict=True):
        assert np.allclose(a, b, rtol=1e-4, atol=1e-3)


DIFFERENT = {
    "the output": lambda x: jnp.sum(x),
    "a gradient": lambda x: jax.grad(one)(jnp.asarray(W), x[0]),
    "a position": lambda x: jax.lax.axis_index("data"),
    "sent on": lambda x: jax.lax.ppermute(jnp.ones(2), "data", [(0, 1)]),
    "a choice": lambda x: jax.lax.cond(x[0, 0] > 1, lambda: 1.0, lambda: 2.0),
    "a loop": lambda x: jax.lax.while_loop(lambda i: i < x[0, 0], lambda i: i + 1, 0),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_different_values_where_a_spec_has_no_axis(name):
    mesh = jax.make_mesh((4,), ("data",))
    run = ep.sharding.shard_map(DIFFERENT[name], mesh, P("data"), P())
    with pytest.raises(ValueError, match="the output, with the spec .* along `data`"):
        run(jnp.asarray(X))


SPECS = {"**.weight": P("model")}


def test_init_sharded_is_init(mesh, getkey):
    def make(key):
        return {"mlp": eqx.nn.MLP(4, 8, 8, 1, key=key), "n": np.arange(8), "s": "x"}

    key = getkey()
    plain = make(key)
    model = ep.sharding.init_sharded(make, key, mesh, SPECS)
    assert model["s"] == "x" and model["mlp"].activation is plain["mlp"].activation
    assert model["mlp"].layers[0].weight.sharding.spec[0] == "model"
    assert model["mlp"].layers[0].bias.sharding.num_devices == 8
    for a, b in zip(*map(jtu.tree_leaves, (model, plain)), strict=True):
        same = np.allclose(a, b) if eqx.is_array_like(a) else a == b
        assert same
    rules = {"hidden": ("data", "model")}
    linear = ep.sharding.init_sharded(
        ft.partial(linear_of, 16), key, mesh, P("hidden"), rules
    )
    assert linear.weight.sharding.spec[0] == ("data", "model")


def linear_of(size, key):
    return eqx.nn.Linear(size, size, key=key)


def test_init_sharded_with_state(mesh, getkey):
    make = eqx.nn.make_with_state(
        lambda key: ep.batched(eqx.nn.BatchNorm(4, "b", mode="batch"), axis_name="b")
    )
    model, state = ep.sharding.init_sharded(make, getkey(), mesh, None)
    y, _ = eqx.filter_jit(model)(jnp.ones((8, 4)), state)
    assert y.shape == (8, 4)


def test_no_device_ever_holds_a_whole_parameter(getkey):
    mesh = jax.make_mesh((8,), ("model",), axis_types=(AxisType.Auto,))

    def make(key):
        linear = ft.partial(linear_of, 512)
        return ep.sharding.init_sharded(linear, key, mesh, P("model"))

    def arrays(key):
        return eqx.filter(make(key), eqx.is_array)

    # Called outside of `jit` it is the same program.
    memory = jax.jit(arrays).lower(getkey()).compile().memory_analysis()
    peak = memory.output_size_in_bytes + memory.temp_size_in_bytes
    whole = 512 * 512 * 4
    assert memory.output_size_in_bytes < 1.1 * whole / 8
    assert peak < 5 * whole / 8, (peak, whole)
    weight = make(getkey()).weight
    assert weight.addressable_shards[0].data.nbytes == whole // 8


def test_it_is_compiled_once_outside_jit(mesh):
    traces = []

    def stage(x):
        traces.append(1)
        return 2 * x

    run = ep.sharding.shard_map(stage, mesh, P("data"), P("data"))
    run(jnp.ones(8))
    first = len(traces)
    run(jnp.zeros(8))
    assert len(traces) == first


def test_init_sharded_inside_transformations(mesh):
    def make(key):
        return eqx.nn.Linear(4, 8, key=key)

    def init(key):
        return ep.sharding.init_sharded(make, key, mesh, P("data")).weight

    keys = jr.split(jr.key(0), 3)
    assert np.allclose(jax.jit(init)(keys[0]), make(keys[0]).weight)
    assert np.allclose(jax.vmap(init)(keys), jax.vmap(lambda k: make(k).weight)(keys))
