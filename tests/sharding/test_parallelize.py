"""parallelize: shardings from the middle of a function reach all its inputs."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import eqx_pipe as ep

RULES = {"batch": "data", "hidden": "model"}


def make(kind=AxisType.Auto):
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(kind,) * 2)


def init(key):
    one, two = jr.split(key)
    return {"a": jr.normal(one, (4, 8)), "b": jr.normal(two, (8, 2)), "name": "net"}


def loss(params, batch):
    hidden = jnp.tanh(batch["x"] @ params["a"])
    hidden = ep.sharding.constrain(hidden, "batch", "hidden")
    return jnp.mean((hidden @ params["b"] - batch["y"]) ** 2)


def get_batch(step):
    x = np.random.default_rng(step).normal(size=(16, 4)).astype(np.float32)
    return {"x": x, "y": x[:, :2], "step": step}


def spec(array):
    return tuple(array.sharding.spec) + (None,) * (
        array.ndim - len(array.sharding.spec)
    )


def close(a, b):
    for left, right in zip(*map(jtu.tree_leaves, (a, b)), strict=True):
        if eqx.is_array_like(left):
            assert np.allclose(left, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_params_and_batches_come_sharded_and_values_stay(kind, getkey):
    fun, sharded_init, get = ep.sharding.parallelize(
        loss, init_params=init, get_input_batch=get_batch, mesh=make(kind), rules=RULES
    )
    key = getkey()
    early, params, batch = get(3), sharded_init(key), get(3)
    assert spec(params["a"]) == (None, "model") and spec(params["b"]) == ("model", None)
    assert spec(batch["x"]) == ("data", None) and params["name"] == "net"
    close(params, init(key))
    struct = eqx.filter_eval_shape(get_batch, 3)
    _, same_init = ep.sharding.parallelize(
        loss, init_params=init, initial_batch=struct, mesh=make(kind), rules=RULES
    )
    assert spec(same_init(key)["a"]) == (None, "model")
    want = loss(init(key), get_batch(3))
    for given in ((params, batch), (params, early), (init(key), get_batch(3))):
        assert np.allclose(fun(*given), want, rtol=1e-5)


@pytest.mark.parametrize("given", [True, False])
def test_under_the_users_own_mesh_everything_is_of_its_kind(given):
    batch, explicit = get_batch(0), make(AxisType.Explicit)
    arrays = lambda key: {n: x for n, x in init(key).items() if n != "name"}  # noqa: E731
    with jax.set_mesh(explicit):
        fun, sharded_init = ep.sharding.parallelize(
            jax.value_and_grad(loss),
            init_params=arrays,
            initial_batch=batch,
            mesh=explicit if given else None,
            rules=RULES,
        )
        params = sharded_init(jr.key(1))
        value, grads = fun(params, batch)
        assert spec(grads["a"]) == spec(params["a"]) == (None, "model")
        assert spec(grads["b"]) == spec(params["b"]) == ("model", None)
        jax.tree.map(jnp.subtract, params, grads)
    assert np.allclose(value, loss(arrays(jr.key(1)), batch), rtol=1e-5)


@pytest.mark.parametrize("order", ["batch first", "params first"])
def test_the_example_of_multimesh(order):
    """Its tutorial of SPMD, with our names: neither function takes an argument."""

    def get_input_batch():
        return jnp.arange(64).reshape(8, 8)

    def init_params():
        return jnp.arange(64).reshape(8, 8), jnp.arange(64).reshape(8, 8)

    def model(params, x):
        x = ep.sharding.constrain(x, "batch", None)
        one, two = params
        one = ep.sharding.constrain(one, "model", None)
        two = ep.sharding.constrain(two, None, "model")
        y = jnp.einsum("bm,mh->bh", jnp.einsum("bm,mh->bh", x, one), two)
        return ep.sharding.constrain(y, "batch", None)

    sharded_model, init_sharded_params, get_sharded_batch = ep.sharding.parallelize(
        model,
        init_params=init_params,
        get_input_batch=get_input_batch,
        rules=(("batch", "x"), ("model", "x")),
    )
    if order == "batch first":
        batch, params = get_sharded_batch(), init_sharded_params()
    else:
        params, batch = init_sharded_params(), get_sharded_batch()
    assert spec(batch) == ("x", None)
    assert [spec(param) for param in params] == [("x", None), (None, "x")]
    got = sharded_model(params, batch)
    assert spec(got) == ("x", None)
    assert np.array_equal(got, model(init_params(), get_input_batch()))


def step(params, batch):
    arrays, other = eqx.partition(params, eqx.is_inexact_array)
    value, grads = jax.value_and_grad(lambda a: loss(eqx.combine(a, other), batch))(
        arrays
    )
    return value, grads


def test_gradients_inside_and_outside(getkey):
    params, batch = init(getkey()), get_batch(0)
    fun, sharded_init = ep.sharding.parallelize(
        step, init_params=init, initial_batch=batch, mesh=make(), rules=RULES
    )
    value, grads = fun(params, batch)
    close((value, grads), step(params, batch))
    assert spec(grads["a"]) == (None, "model")
    fun, _ = ep.sharding.parallelize(
        loss, init_params=init, initial_batch=batch, mesh=make(), rules=RULES
    )
    close(eqx.filter_grad(fun)(params, batch), grads)
    close(eqx.filter_jit(fun)(params, batch), value)


def test_a_model_and_a_scanned_body(getkey):
    def create(key):
        return eqx.nn.MLP(4, 4, 8, 1, key=key)

    def fun(model, xs):
        def body(total, x):
            y = jax.vmap(model)(ep.sharding.constrain(x, "batch", None))
            return total + jnp.sum(y**2), None

        return jax.lax.scan(body, jnp.zeros(()), xs)[0]

    xs = jr.normal(getkey(), (3, 8, 4))
    parallel, sharded_init = ep.sharding.parallelize(
        fun, init_params=create, initial_batch=xs, mesh=make(), rules=RULES
    )
    model = sharded_init(jr.key(0))
    close(model, create(jr.key(0)))
    assert np.allclose(parallel(model, xs), fun(create(jr.key(0)), xs), rtol=1e-5)
    text = parallel.compiled(model, xs).input_shardings[0]
    assert any("data" in str(getattr(s, "spec", "")) for s in text)


def test_the_program_is_the_one_sharded_by_hand(getkey):
    mesh, params, batch = make(), init(getkey()), get_batch(0)
    fun, _ = ep.sharding.parallelize(
        step, init_params=init, initial_batch=batch, mesh=mesh, rules=RULES
    )
    ours = fun.compiled(params, batch)
    arrays = {n: params[n] for n in "ab"}
    where = {"a": P(None, "model"), "b": P("model")}, {"x": P("data"), "y": P("data")}
    where = jtu.tree_map(lambda s: NamedSharding(mesh, s), where)

    def hand(arrays, batch):
        with ep.sharding.AxisRules(RULES).on(mesh):
            return step(arrays, batch)

    xy = {n: batch[n] for n in "xy"}
    theirs = jax.jit(hand, in_shardings=where).lower(arrays, xy).compile()
    assert ours.cost_analysis()["flops"] == theirs.cost_analysis()["flops"]
    kinds = "all-reduce(", "all-gather(", "all-to-all(", "collective-permute("
    for kind in kinds:
        assert ours.as_text().count(kind) == theirs.as_text().count(kind)


def test_it_compiles_once_per_shape(getkey):
    traces = []

    def fun(w, x):
        traces.append(1)
        return jnp.sum(ep.sharding.constrain(x @ w, "batch", None))

    parallel, _ = ep.sharding.parallelize(
        fun, init_params=None, initial_batch=jnp.ones((8, 4)), mesh=make(), rules=RULES
    )
    for _ in range(3):
        parallel(jnp.ones((4, 2)), jnp.ones((8, 4)))
    once = len(traces)
    parallel(jnp.ones((4, 2)), jnp.ones((16, 4)))
    assert once <= 2 and len(traces) == 2 * once


def test_a_feed_without_arguments_loses_nothing(getkey):
    batches = iter([get_batch(i) for i in range(3)])
    fun, sharded_init, get = ep.sharding.parallelize(
        loss,
        init_params=init,
        get_input_batch=lambda: next(batches),
        mesh=jax.make_mesh((4, 1), ("data", "model"), devices=jax.devices()[:4]),
        rules=RULES,
    )
    params = sharded_init(getkey())
    for i in range(3):
        batch = get()
        assert np.array_equal(batch["x"], get_batch(i)["x"])
        assert batch["x"].sharding.num_devices == 4
        fun(params, batch)


def test_nothing_annotated_is_a_warning_and_copies(getkey):
    def plain(w, x):
        return jnp.sum(x @ w)

    fun, sharded_init = ep.sharding.parallelize(
        plain,
        init_params=lambda key: jr.normal(key, (4, 2)),
        initial_batch=jnp.ones((7, 4)),
        mesh=make(),
    )
    with pytest.warns(
        UserWarning,
        match="`fun` has no sharding constraint.*eqx_pipe.sharding.constrain",
    ):
        w = sharded_init(jr.key(0))
    assert spec(w) == (None, None) and w.sharding.num_devices == 8
    assert np.allclose(fun(w, jnp.ones((7, 4))), plain(w, jnp.ones((7, 4))), rtol=1e-5)


def test_the_mesh_is_that_of_the_rules_around(getkey):
    params, batch, key = init(getkey()), get_batch(0), getkey()
    with ep.sharding.AxisRules(RULES).on(make()):
        fun, sharded_init = ep.sharding.parallelize(
            loss, init_params=init, initial_batch=batch
        )
    assert spec(sharded_init(key)["a"]) == (None, "model")
    assert np.allclose(fun(params, batch), loss(params, batch), rtol=1e-5)


def test_a_constraint_that_does_not_divide():
    def fun(w, x):
        rows = jax.sharding.NamedSharding(make(), P("data"))
        return jnp.sum(jax.lax.with_sharding_constraint(x, rows) @ w)

    run, _ = ep.sharding.parallelize(fun, initial_batch=jnp.ones((10, 4)), mesh=make())
    with pytest.raises(ValueError, match="'data'.* 4.*not divisible by"):
        run(jnp.ones((4, 8)), jnp.ones((10, 4)))
