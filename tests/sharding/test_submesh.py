"""on: stages with devices of their own compute what they compute anywhere."""

import threading

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

import eqx_pipe as ep


def submeshes(n, kind=AxisType.Auto):
    devices = np.array(jax.devices()).reshape(n, -1)
    return [Mesh(part, ("x",), axis_types=(kind,)) for part in devices]


def layers(n, key):
    return [ep.batched(eqx.nn.Linear(4, 4, key=jr.fold_in(key, i))) for i in range(n)]


def loss(pipe, x):
    return jnp.mean(pipe(x) ** 2)


def assert_close(a, b):
    for left, right in zip(*map(jtu.tree_leaves, (a, b)), strict=True):
        assert np.allclose(left, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "kind",
    [AxisType.Auto, pytest.param(AxisType.Explicit, marks=pytest.mark.slow)],
    ids=str,
)
def test_values_and_gradients_over_submeshes(kind, getkey):
    meshes, parts = submeshes(2, kind), layers(2, getkey())
    x = jr.normal(getkey(), (8, 4))
    plain = ep.chain(*parts)
    spread = ep.chain(*map(ep.sharding.on, meshes, parts))
    value, grads = eqx.filter_jit(eqx.filter_value_and_grad(loss))(plain, x)
    got, got_grads = eqx.filter_value_and_grad(loss)(spread, x)
    assert_close((got, jtu.tree_leaves(got_grads)), (value, jtu.tree_leaves(grads)))
    assert_close(spread(x), plain(x))
    for mesh, part, grad in zip(meshes, spread, got_grads, strict=True):
        arrays = jtu.tree_leaves(eqx.filter((part.stage, grad.stage), eqx.is_array))
        assert {d for a in arrays for d in a.devices()} == set(mesh.devices.flat)


def test_tasks_of_multimesh():
    """`task(f, devices=...)` of its tutorials, as stages on submeshes."""
    devices, x = np.array(jax.devices()), jnp.arange(8.0)
    one, two = (Mesh(devices[k : k + 1], ("x",)) for k in (0, 1))
    circle = ep.chain(
        ep.sharding.on(one, lambda x: (jnp.cos(x), jnp.sin(x))),
        ep.sharding.on(two, lambda xy: xy[0] * xy[0] + xy[1] * xy[1]),
    )
    assert np.allclose(circle(x), 1) and circle(x).devices() == {devices[1]}

    def f(param, x):
        return jnp.einsum("bm,mh->bh", x, param)

    # Four devices for each layer; the parameters are split as the example says.
    param, x = jnp.arange(64.0).reshape(8, 8) / 64, jnp.arange(64.0).reshape(8, 8)
    layers = []
    for mesh, spec in zip(submeshes(2), (P("x", None), P(None, "x")), strict=True):
        own = ep.sharding.shard(param, mesh, spec)
        layers.append(ep.sharding.on(mesh, eqx.Partial(f, own), specs=P("x", None)))
        assert layers[-1].stage.args[0].sharding.spec == spec
    model = ep.chain(*layers)
    assert model(x).devices() == set(devices[4:])
    assert_close(model(x), f(param, f(param, x)))


def test_it_trains_with_optax(getkey):
    parts, x = layers(2, getkey()), jr.normal(getkey(), (8, 4))
    optim = optax.sgd(1e-1, momentum=0.9)

    def train(pipe):
        state, losses = optim.init(eqx.filter(pipe, eqx.is_array)), []
        for _ in range(3):
            value, grads = eqx.filter_value_and_grad(loss)(pipe, x)
            updates, state = optim.update(grads, state)
            pipe = eqx.apply_updates(pipe, updates)
            losses.append(float(value))
        return losses

    spread = ep.chain(*map(ep.sharding.on, submeshes(2), parts))
    assert np.allclose(train(spread), train(ep.chain(*parts)), rtol=1e-4)


def test_calls_return_before_they_have_finished():
    """So one submesh can be given work while another is busy: here the last one only
    goes on when all calls have been made."""
    dispatched, seen = threading.Event(), []

    def wait(x):
        seen.append(dispatched.wait(20))
        return np.asarray(x)

    def last(x):
        return jax.pure_callback(wait, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    one, two = (Mesh(jax.devices()[2 * i : 2 * i + 2], ("x",)) for i in (0, 1))
    pipe = ep.chain(ep.sharding.on(one, lambda x: x + 1), ep.sharding.on(two, last))
    results = [pipe(np.float32(i)) for i in range(2)]
    dispatched.set()
    assert [float(r) for r in results] == [1.0, 2.0]
    assert seen and all(seen)


def test_specs_state_keys_and_other_leaves(getkey):
    one, two = submeshes(2)
    x = {"x": jnp.ones((8, 4)), "s": "text", "none": None}
    split = ep.sharding.on(one, lambda t: t | {"x": t["x"] + 1}, specs=P("x"))
    y = split(x)
    assert y["s"] == "text" and y["x"].sharding.spec[0] == "x"
    assert ep.sharding.on(two, eqx.nn.Identity())(y)["x"].devices() == set(
        two.devices.flat
    )
    noise = ep.chain(
        lambda x: x, ep.sharding.on(two, lambda x, key: x + jr.normal(key))
    )
    plain = ep.chain(lambda x: x, ep.chain(stage=lambda x, key: x + jr.normal(key)))
    assert_close(noise(1.0, key=jr.key(0)), plain(1.0, key=jr.key(0)))
    with pytest.raises(ep.MissingKeyError) as error:
        ep.sharding.on(two, eqx.nn.Dropout())(jnp.ones(3))
    assert error.value.path == "stage"
    norm = ep.batched(eqx.nn.BatchNorm(4, "b", mode="batch"), axis_name="b")
    norm, state = eqx.nn.make_with_state(lambda: norm)()
    want, want_state = norm(jnp.ones((8, 4)), state)
    got, got_state = ep.sharding.on(two, norm)(jnp.ones((8, 4)), state)
    assert_close((got, got_state), (want, want_state))


def test_parameters_that_are_on_the_mesh_stay_split(getkey):
    one, _ = submeshes(2)
    linear = ep.sharding.shard(eqx.nn.Linear(4, 8, key=getkey()), one, P("x"))
    stage = ep.sharding.on(one, linear)
    assert stage.stage.weight.sharding.spec == P("x")
    assert_close(stage(jnp.ones(4)), np.asarray(linear(jnp.ones(4))))
    rows = jax.vmap(lambda x: stage(x))(jnp.ones((3, 4)))
    assert rows.shape == (3, 8)


def test_inside_jit_it_says_what_to_do(getkey, unchecked):
    one, two = submeshes(2)
    pipe = ep.chain(ep.sharding.on(one, jnp.sin), ep.sharding.on(two, jnp.cos))
    with pytest.raises(ValueError, match="sharding.on.*inside `jit`.*sharding.pipel"):
        eqx.filter_jit(pipe)(jnp.ones(3))


def test_under_another_mesh_it_says_so(unchecked):
    pipe = ep.sharding.on(submeshes(2)[0], jnp.sin)
    with jax.set_mesh(jax.make_mesh((8,), ("data",))):
        with pytest.raises(ValueError, match="context mesh .*'data': 8.*'x': 4"):
            pipe(jnp.ones(4))


def test_outputs_on_different_devices_are_merged_on_one_of_them(unchecked):
    first, last = submeshes(2)
    sine, cosine = ep.sharding.on(first, jnp.sin), ep.sharding.on(last, jnp.cos)
    for pipe in (ep.parallel(sine, cosine), ep.weighted(sine, cosine)):
        with pytest.raises(ValueError, match="incompatible devices"):
            pipe(jnp.ones(4))
    x = jnp.arange(4.0)
    home = ep.chain(cosine, ep.sharding.on(first, eqx.nn.Identity()))
    assert np.allclose(ep.weighted(sine, home)(x), (jnp.sin(x) + jnp.cos(x)) / 2)
    merged = ep.parallel(
        sine, cosine, merge=ep.sharding.on(last, lambda y: y[0] + y[1])
    )
    assert np.allclose(merged(x), jnp.sin(x) + jnp.cos(x))


def test_errors_and_vmap_are_those_of_on(unchecked):
    stage = ep.sharding.on(submeshes(2)[0], jnp.sin, specs=P("x"))
    with pytest.raises(ValueError, match="`eqx_pipe.sharding.on`"):
        stage(jnp.ones(7))
    x = jnp.ones((3, 16))
    assert np.allclose(jax.vmap(stage)(x), jnp.sin(x))
