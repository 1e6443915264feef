"""`vmap` equals `jax.vmap`, for every batch size and mesh, with all derivatives."""

import functools as ft
import inspect

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jax.experimental import io_callback
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.helpers import assert_agree

import eqx_pipe as ep

AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit
MESHES = (None, (2, EXPLICIT), (8, AUTO))
on_meshes = pytest.mark.parametrize("on", MESHES, ids=str)


def mesh_of(on):
    if on is None:
        return None
    n, kind = on
    return jax.make_mesh((n,), ("x",), axis_types=(kind,), devices=jax.devices()[:n])


def many(w, row):
    """Return outputs of every kind."""
    return {
        "float": jnp.tanh(w * row["a"]),
        "half": row["b"].astype(jnp.bfloat16),
        "index": jnp.argmax(row["a"]),
        "mask": row["a"] > 0,
        "key": jr.fold_in(row["k"], 1),
        "one": 1.0,
        "complex": jax.lax.complex(row["b"], w * row["b"]),
    }


def rows(n):
    a = np.arange(3 * n, dtype=np.float32).reshape(3, n) / 7 - 1
    keys = jr.split(jr.key(0), n)
    return {"a": jnp.asarray(a), "b": jnp.arange(n) / 5, "k": keys}


AXES = (None, {"a": -1, "b": 0, "k": 0})


@given(
    n=st.sampled_from([0, 1, 5, 8, 11]),
    batch_size=st.sampled_from([1, 2, 4, 16, "auto"]),
    on=st.sampled_from(MESHES),
    out=st.sampled_from([0, -1]),
)
@example(n=11, batch_size=4, on=(2, EXPLICIT), out=0)
@example(n=5, batch_size=1, on=(8, AUTO), out=0)
def test_values_structure_and_dtypes(n, batch_size, on, out):
    ours = ep.vmap(many, AXES, out, batch_size=batch_size, mesh=mesh_of(on))
    theirs = jax.vmap(many, AXES, out)
    got, wanted = jax.jit(ours)(2.0, rows(n)), jax.jit(theirs)(2.0, rows(n))
    for out in (got, wanted):
        out["key"] = jr.key_data(out["key"])
    assert_agree(got, wanted, tolerance=1e-5)
    assert got["one"].weak_type


@given(
    batch_size=st.sampled_from([1, 2, 3, 8]),
    on=st.sampled_from(MESHES),
    remat=st.booleans(),
    reduce=st.sampled_from([None, "sum", "mean"]),
)
@example(batch_size=2, on=(8, AUTO), remat=True, reduce="mean")
@example(batch_size=3, on=None, remat=True, reduce=None)
def test_derivatives(batch_size, on, remat, reduce):
    def fn(w, x):
        return jnp.sum(jnp.sin(w * x)) * w.sum() + jax.nn.relu(x).sum()

    w, xs = jnp.array([0.5, 1.0, -1.0]), jnp.arange(15.0).reshape(5, 3) / 15

    def of(every):
        total = jnp.sum if reduce == "sum" else jnp.mean
        loss = lambda w, xs: total(every(w, xs))  # noqa: E731
        both = (w, xs)

        def derivatives():
            return (
                jax.value_and_grad(loss, (0, 1))(*both),
                jax.vmap(jax.grad(loss), in_axes=(0, None))(jnp.stack([w, 2 * w]), xs),
                jax.linearize(loss, *both)[1](*both),
            )

        return jax.jit(derivatives)()

    settings = {"batch_size": batch_size, "mesh": mesh_of(on), "remat": remat}
    ours = ep.vmap(fn, (None, 0), **settings, reduce=reduce)
    assert_agree(of(ours), of(jax.vmap(fn, (None, 0))), tolerance=1e-4)


def test_custom_derivatives_are_kept():
    @jax.custom_vjp
    def clipped(x):
        return 2 * x

    clipped.defvjp(lambda x: (2 * x, None), lambda _, c: (jnp.clip(c, -1, 1),))
    xs, scale = jnp.arange(5.0), jnp.arange(-2.0, 3.0)
    every = ep.vmap(clipped, batch_size=2)
    got = jax.grad(lambda xs: jnp.sum(scale * every(xs)))(xs)
    assert_agree(got, jnp.clip(scale, -1, 1))
    total = ep.vmap(clipped, batch_size=2, reduce="sum")
    assert_agree(jax.grad(total)(xs), jnp.ones(5))


def test_second_derivatives_and_forward_mode():
    fn = lambda w, x: jnp.sum(jnp.sin(w * x))  # noqa: E731
    w, xs = jnp.array([0.5, 1.0]), jnp.arange(10.0).reshape(5, 2) / 10
    ours = lambda w: ep.vmap(fn, (None, 0), batch_size=2)(w, xs)  # noqa: E731
    theirs = lambda w: jax.vmap(fn, (None, 0))(w, xs)  # noqa: E731
    for transform in (jax.hessian, jax.jacfwd, jax.jacrev):
        assert_agree(jax.jit(transform(ours))(w), transform(theirs)(w), tolerance=1e-4)


@on_meshes
@pytest.mark.parametrize("reduce", [None, "sum"])
def test_dropped_lanes_make_no_nan(on, reduce):
    """The derivative of sqrt is infinite at 0, and 0 * inf is NaN."""
    fn = lambda w, x: jnp.sqrt(w * x)  # noqa: E731

    def gradient(every):
        loss = lambda w, xs: jnp.sum(every(w, xs))  # noqa: E731
        return jax.jit(jax.grad(loss, (0, 1)))

    settings = {"batch_size": 2, "mesh": mesh_of(on), "reduce": reduce}
    ours = gradient(ep.vmap(fn, (None, 0), **settings))
    theirs = gradient(jax.vmap(fn, (None, 0)))
    for w in (0.0, 1.0):
        for xs in np.arange(1, 6.0), np.arange(5.0), np.arange(5.0)[::-1]:
            args = w, jnp.asarray(xs, jnp.float32)
            for a, b in zip(ours(*args), theirs(*args), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-5)


@on_meshes
@pytest.mark.parametrize("batch_size", [1, 2, 9])
def test_an_unbatched_output(on, batch_size):
    fn = lambda w, k, x: (jnp.sqrt(w), k, w * x)  # noqa: E731
    axes = {"in_axes": (None, None, 0), "out_axes": (None, None, 0)}
    xs = jnp.arange(5.0)

    def of(every):
        grad = jax.grad(lambda w: every(w, jr.PRNGKey(3), xs)[0])
        return jax.jit(lambda w: (every(w, jr.PRNGKey(3), xs), grad(w)))(0.0)

    ours = ep.vmap(fn, **axes, batch_size=batch_size, mesh=mesh_of(on))
    assert_agree(of(ours), of(jax.vmap(fn, **axes)), tolerance=1e-6)
    varies = ep.vmap(
        lambda x: x, out_axes=None, batch_size=batch_size, mesh=mesh_of(on)
    )
    with pytest.raises(ValueError, match="out_axes"):
        varies(xs)


def test_other_leaves_and_keyword_arguments():
    def fn(model, mode, x, *, scale):
        return {"y": model(x) * scale, "mode": mode}

    make = lambda key: eqx.nn.MLP(2, 1, 4, 1, key=key)  # noqa: E731
    models = ep.vmap(make, batch_size=2)(jr.split(jr.key(0), 5))
    xs, scale = jnp.ones((5, 2)), jnp.arange(5.0)
    wanted = eqx.filter_vmap(lambda m, x, s: m(x) * s)(models, xs, scale)
    for axes in (0, (0, 0, 0), (eqx.if_array(0), None, 0)):
        got = ep.vmap(fn, axes, batch_size=2)(models, "mean", xs, scale=scale)
        assert got["mode"] == "mean"
        assert_agree(got["y"], wanted, tolerance=1e-5)


def test_parameters_of_a_module_are_not_hidden():
    layer = eqx.nn.Linear(2, 1, key=jr.key(0))
    every, xs = ep.vmap(layer, batch_size=2), jnp.ones((5, 2))
    grad = eqx.filter_grad(lambda every: jnp.sum(every(xs)))(every)
    assert_agree(grad.fn.weight, jnp.full((1, 2), 5.0))
    assert_agree(jax.jit(every)(xs), jax.vmap(layer)(xs), tolerance=1e-6)


def weighted(model, x):
    """Return the weighted square."""
    return jnp.sum(model.weight @ x) ** 2


@pytest.mark.parametrize(
    "wrap", [eqx.filter_jit, eqx.filter_checkpoint, ft.partial, ep.vmap, ft.wraps]
)
def test_wrappers_take_it_as_they_take_the_function(wrap):
    fn = weighted if wrap is not ep.vmap else ft.partial(weighted)
    ours = ep.vmap(fn, in_axes=(None, 0), batch_size=2)
    theirs = jax.vmap(weighted, in_axes=(None, 0))
    assert (ours.__name__, ours.__qualname__) == ("weighted", "weighted")
    assert ours.__doc__ == weighted.__doc__ and ours.__wrapped__ is fn
    assert inspect.signature(ours) == inspect.signature(theirs)
    layer, xs = eqx.nn.Linear(3, 2, key=jr.key(0)), jnp.ones((5, 3))
    if wrap is ft.wraps:
        wrapped = ft.wraps(ours)(lambda *args: ours(*args))
        assert inspect.signature(eqx.filter_jit(wrapped)) == inspect.signature(theirs)
    elif wrap is ep.vmap:
        model, rows = jax.tree.map(
            lambda x: x[None], (eqx.filter(layer, eqx.is_array), xs)
        )
        got = eqx.filter_jit(wrap(ours))(model, rows)[0]
        assert_agree(got, theirs(layer, xs), tolerance=1e-5)
    else:
        assert_agree(wrap(ours)(layer, xs), theirs(layer, xs), tolerance=1e-5)


def test_it_has_the_name_of_a_class_and_no_key_of_its_own():
    layer = eqx.nn.Dropout(0.5, inference=True)
    ours = ep.vmap(layer)
    assert ours.__name__ == "Dropout" and "key" in inspect.signature(ours).parameters
    # As `jax.vmap`, it maps keywords: neither a pipeline nor a sweep gives it a key.
    rows = jnp.ones((2, 3))
    assert ep.chain(ours)(rows, key=jr.key(0)).shape == (2, 3)
    assert ep.sweep(ours, ep.Values(rows[None]), key=jr.key(0)).values.shape == (
        1,
        2,
        3,
    )


def test_a_method():
    class Model(eqx.Module):
        w: jax.Array

        @ep.vmap
        def energy(self, x):
            return self.w * x

    assert_agree(Model(jnp.arange(3.0)).energy(jnp.ones(3)), jnp.arange(3.0))


@on_meshes
def test_integer_and_float0_outputs(on):
    fn = jax.grad(lambda i, x: i.astype(float) * x, argnums=(0, 1), allow_int=True)
    args = jnp.arange(5), jnp.ones(5)
    got = ep.vmap(fn, batch_size=2, mesh=mesh_of(on))(*args)
    wanted = jax.vmap(fn)(*args)
    assert got[0].dtype == wanted[0].dtype and got[0].shape == (5,)
    assert_agree(got[1], wanted[1])


@on_meshes
def test_no_mapped_array(on):
    fn = ep.vmap(lambda: jnp.ones(2), axis_size=5, batch_size=2, mesh=mesh_of(on))
    assert fn().shape == (5, 2)
    total = ep.vmap(
        jnp.sin, None, axis_size=5, batch_size=2, mesh=mesh_of(on), reduce="sum"
    )
    assert_agree(total(1.0), 5 * jnp.sin(1.0), tolerance=1e-6)


@on_meshes
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int8", "bool", "complex64"])
def test_reductions_have_the_dtypes_of_numpy(on, dtype):
    xs = jnp.arange(11).astype(dtype)
    for name in ("sum", "mean"):
        fn = ep.vmap(lambda x: x, batch_size=2, mesh=mesh_of(on), reduce=name)
        assert_agree(jax.jit(fn)(xs), getattr(jnp, name)(xs), tolerance=1e-2)
    assert_agree(ep.vmap(jnp.sin, reduce="sum")(jnp.zeros(0)), jnp.zeros(()))


@on_meshes
@pytest.mark.parametrize("kind", ["debug", "io", "ordered"])
def test_effects_happen_once_for_each_lane(on, kind):
    if kind == "ordered" and on is not None:
        pytest.skip("JAX does not order effects on several devices")
    seen = []

    def record(x):
        seen.append(int(x))
        return np.float32(x)

    def fn(x):
        if kind == "debug":
            jax.debug.callback(record, x)
        else:
            out = jax.ShapeDtypeStruct((), jnp.float32)
            fixed = jax.lax.stop_gradient(x)
            io_callback(record, out, fixed, ordered=kind == "ordered")
        return x * x

    xs = jnp.arange(5.0)
    for batch_size in (2, 8, "auto"):
        every = ep.vmap(fn, batch_size=batch_size, mesh=mesh_of(on))
        seen.clear()
        assert_agree(jax.jit(every)(xs), xs * xs)
        jax.effects_barrier()
        assert sorted(seen) == list(range(5))
    if kind != "ordered":
        assert_agree(jax.grad(lambda x: every(x).sum())(xs), 2 * xs)


@on_meshes
@pytest.mark.parametrize("jitted", [True, False])
def test_gradients_inside_of_the_function(on, jitted):
    """They are those of each lane, not sums over devices."""
    fn = lambda w, x: jax.grad(lambda w: jnp.sin(w * x))(w)  # noqa: E731
    wanted = jax.vmap(fn, (None, 0))(2.0, jnp.arange(6.0))
    mesh = mesh_of(on)

    def run(w):
        closed = ep.vmap(lambda x: fn(w, x), batch_size=2, mesh=mesh)(jnp.arange(6.0))
        given = ep.vmap(fn, (None, 0), batch_size=2, mesh=mesh)(w, jnp.arange(6.0))
        return closed, given

    got = (jax.jit(run) if jitted else run)(2.0)
    assert_agree(got, (wanted, wanted), tolerance=1e-5)


@pytest.mark.parametrize("kind", [AUTO, EXPLICIT])
@pytest.mark.parametrize("context", [True, False])
@pytest.mark.parametrize("given", [True, False])
def test_sharded_lanes(kind, context, given):
    mesh = mesh_of((4, kind))
    xs = np.arange(48, dtype=np.float32).reshape(16, 3) / 48
    sharded = jax.device_put(xs, NamedSharding(mesh, P("x")))
    fn = lambda w, x: jnp.sin(w * x)  # noqa: E731

    def both(w, xs, every):
        return every(w, xs), jax.grad(lambda *a: every(*a).sum(), (0, 1))(w, xs)

    wanted = both(2.0, xs, jax.vmap(fn, (None, 0)))
    every = ep.vmap(fn, (None, 0), batch_size=3, mesh=mesh if given else None)
    with jax.set_mesh(mesh if context else jax.sharding.Mesh(np.empty((), object), ())):
        got = jax.jit(lambda w, xs: both(w, xs, every))(2.0, sharded)
        assert len(got[0].sharding.device_set) == 4
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 9])
def test_inside_of_a_shard_map(batch_size):
    mesh, xs = mesh_of((4, AUTO)), jnp.arange(16.0)

    def lane(w, x):
        step = lambda c, _: (c * x, jax.grad(jnp.sin)(w * c))  # noqa: E731
        return jax.lax.scan(step, x, length=2)[1].sum()

    def of(every, reduced):
        specs = {"mesh": mesh, "in_specs": (P(), P("x")), "out_specs": P("x")}
        mapped = jax.shard_map(every, **specs)
        total = jax.shard_map(lambda w, xs: reduced(w, xs)[None], **specs)
        grad = jax.grad(lambda w: mapped(w, xs).sum())
        return jax.jit(lambda w: (mapped(w, xs), total(w, xs), grad(w)))(2.0)

    def ours(**settings):
        return ep.vmap(lane, (None, 0), batch_size=batch_size, **settings)

    plain = jax.vmap(lane, (None, 0))
    wanted = of(plain, lambda w, xs: plain(w, xs).sum())
    assert_agree(of(ours(), ours(reduce="sum")), wanted, tolerance=1e-5)


def test_a_mesh_is_refused_where_devices_are_busy():
    mesh, xs = mesh_of((2, AUTO)), jnp.ones((4, 4))
    inner = ep.vmap(jnp.sin, mesh=mesh)
    mapped = jax.shard_map(inner, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    for fn in (mapped, ep.vmap(inner, mesh=mesh)):
        with pytest.raises(ValueError, match="Leave out `mesh` here"):
            fn(xs)


def test_collectives_over_the_axis_and_over_an_outer_one():
    total = lambda x: jax.lax.psum(x, "lanes")  # noqa: E731
    xs = jnp.ones(3000)
    for batch_size in ("auto", 3000):
        named = ep.vmap(total, axis_name="lanes", batch_size=batch_size)
        assert_agree(named(xs), 3000 * xs)
    outer = jax.vmap(
        lambda y: ep.vmap(lambda x: total(x * y), batch_size=2)(xs[:5]),
        axis_name="lanes",
    )
    assert_agree(outer(jnp.arange(3.0)), jnp.full((3, 5), 3.0))


def test_lanes_are_the_same_bits_where_as_many_share_a_batch():
    fn = lambda x: jnp.linalg.norm(jnp.sin(x))  # noqa: E731
    xs = jr.normal(jr.key(0), (12, 7))
    got = jax.jit(ep.vmap(fn, batch_size=4))(xs)
    batch = jax.jit(jax.vmap(fn))
    np.testing.assert_array_equal(
        got, jnp.concatenate([batch(x) for x in xs.reshape(3, 4, 7)])
    )
