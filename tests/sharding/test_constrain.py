"""`constrain` under `AxisRules.on`: by logical names, part of jit's cache key."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import eqx_pipe as ep

KINDS = (AxisType.Auto, AxisType.Explicit)
ONE = {"a": "data", "b": "model"}
TWO = {"a": ("data", "model"), "b": None}


@pytest.fixture(params=KINDS, ids=str)
def mesh(request):
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(request.param,) * 2)


@pytest.fixture
def x(mesh):
    """Return an array on one device, or split already if the axes are explicit."""
    x = jnp.arange(32.0).reshape(8, 4)
    return (
        ep.sharding.shard(x, mesh, P("data")) if mesh.axis_types[0] == KINDS[1] else x
    )


def spec(array):
    """Return the spec without trailing Nones, which JAX adds or not."""
    entries = list(array.sharding.spec)
    while entries and entries[-1] is None:
        entries.pop()
    return P(*entries)


def test_values_stay_and_shardings_are_those_of_the_rules(mesh, x):
    f = jax.jit(lambda x: ep.sharding.constrain(2 * x, "a", "b"))
    for rules, wanted in ((ONE, P("data", "model")), (TWO, P(("data", "model")))):
        with ep.sharding.AxisRules(rules).on(mesh):
            assert (
                spec(f(x)) == wanted
                and spec(ep.sharding.constrain(x, "a", "b")) == wanted
            )
            assert np.array_equal(f(x), 2 * x)


def test_through_grad_and_vmap(mesh, x):
    def loss(x):
        return jnp.sum(ep.sharding.constrain(2 * x, "a", "b") ** 2)

    with ep.sharding.AxisRules(ONE).on(mesh):
        assert np.allclose(jax.jit(jax.grad(loss))(x), 8 * x)
        rows = jax.jit(jax.vmap(lambda row: ep.sharding.constrain(2 * row, "b")))
        assert np.allclose(rows(x), 2 * x)
        grads = jax.jit(
            jax.vmap(jax.grad(lambda r: jnp.sum(ep.sharding.constrain(r, "b") ** 2)))
        )
        assert np.allclose(grads(x), 2 * np.asarray(x))


def test_under_the_users_own_mesh(mesh, x):
    def loss(x):
        return jnp.sum(ep.sharding.constrain(2 * x, "a", "b") ** 2)

    with ep.sharding.AxisRules(ONE).on(mesh), jax.set_mesh(mesh):
        assert np.allclose(jax.jit(jax.grad(loss))(x), 8 * x)


def test_other_rules_are_another_program_and_the_same_are_not():
    kind = (AxisType.Auto,) * 2
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=kind)
    x = jnp.ones((8, 4))
    traces = []

    @jax.jit
    def f(x):
        traces.append(1)
        return ep.sharding.constrain(x, "a", "b") + 1

    assert f(x).sharding.num_devices == 1 and len(traces) == 1
    for _ in range(2):
        with ep.sharding.AxisRules(ONE).on(mesh) as rules:
            assert rules == ep.sharding.AxisRules(ONE)
            assert spec(f(x)) == P("data", "model")
            with ep.sharding.AxisRules(TWO).on(mesh):
                assert spec(f(x)) == P(("data", "model"))
            assert spec(f(x)) == P("data", "model")
        assert f(x).sharding.num_devices == 1
    assert len(traces) == 3


def test_deep_in_a_model_and_inside_shard_map(mesh, getkey):
    layer = eqx.nn.Linear(4, 8, key=getkey())
    pipe = ep.chain(layer, lambda x: ep.sharding.constrain(x, "b"), jnp.tanh)
    x = jnp.ones((8, 4))
    plain = jax.vmap(lambda x: pipe(x))(x)
    with ep.sharding.AxisRules(ONE).on(mesh):
        assert np.allclose(
            eqx.filter_jit(jax.vmap(lambda x: pipe(x)))(x), plain, atol=1e-6
        )
        local = jax.shard_map(
            jax.vmap(lambda x: ep.sharding.constrain(x, "b")),
            mesh=jax.make_mesh((8,), ("z",), axis_types=(AxisType.Auto,)),
            in_specs=P("z"),
            out_specs=P("z"),
        )
        assert np.array_equal(jax.jit(local)(x), x)


def test_pytrees(mesh):
    with ep.sharding.AxisRules(ONE).on(mesh):
        tree = {"x": jnp.ones((8, 4)), "s": "text", "n": 3, "none": None}
        out = ep.sharding.constrain(tree, "a", None)
        assert out["s"] == "text" and out["n"] == 3 and spec(out["x"]) == P("data")


@pytest.mark.parametrize("wrap", [lambda fn: fn, jax.grad, jax.jit])
@pytest.mark.parametrize(
    "run",
    [
        lambda fn, mesh, xs: ep.vmap(fn, mesh=mesh)(xs),
        lambda fn, mesh, xs: ep.vmap(fn, mesh=mesh, batch_size=1)(xs[:7]),
        lambda fn, mesh, xs: ep.batched(fn, mesh=mesh)(xs),
        lambda fn, mesh, xs: ep.batched(ep.batched(fn), mesh=mesh)(xs[:, None])[:, 0],
        lambda fn, mesh, xs: ep.vmap_space(fn, ep.Values(xs), mesh=mesh),
        lambda fn, mesh, xs: jnp.asarray(ep.sweep(fn, ep.Values(xs), mesh=mesh).values),
    ],
)
def test_it_does_nothing_where_every_device_has_its_part(mesh, run, wrap):
    def loss(x):
        return jnp.sum(ep.sharding.constrain(2 * x, "b") ** 2)

    xs = np.arange(32, dtype=np.float32).reshape(8, 4)
    got, wanted = [], jax.vmap(wrap(lambda x: jnp.sum((2 * x) ** 2)))(xs)
    with ep.sharding.AxisRules(ONE).on(mesh):
        got = run(wrap(loss), mesh, xs)
    np.testing.assert_allclose(got, wanted[: len(got)], rtol=1e-6)
