"""microbatch: the whole, part by part."""

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

X, W = jr.normal(jr.key(0), (12, 4)), jr.normal(jr.key(1), (4, 3))


def loss(w, batch):
    y = jnp.tanh(batch["x"] @ w)
    return jnp.sum(y**2) * batch["scale"], {"n": jnp.asarray(y.shape[0])}


def mean_loss(w, x):
    return jnp.mean(jnp.tanh(x @ w) ** 2)


@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_an_empty_batch_is_one_part(reduce):
    def fun(w, x):
        return {"y": getattr(jnp, reduce)(x @ w), "n": jnp.sum(w)}

    parts = ep.sharding.microbatch(fun, size=2, argnum=1, reduce=reduce)
    found, want = parts(W, X[:0]), fun(W, X[:0])
    assert np.array_equal(found["y"], want["y"], equal_nan=True)
    assert np.array_equal(found["n"], want["n"])
    gradient = ep.sharding.microbatch(jax.grad(loss, has_aux=True), size=2, argnum=1)
    batch = {"x": X[:0], "scale": 2.0}
    assert np.array_equal(gradient(W, batch)[0], np.zeros_like(W))


@pytest.mark.parametrize("size", [4, 5, 14])  # of 12: parts, a rest, too large
def test_it_is_the_whole(size):
    batch = {"x": X, "scale": 2.0, "name": "train", "none": None}
    whole = jax.value_and_grad(loss, has_aux=True)
    parts = ep.sharding.microbatch(whole, size=size, argnum=1)
    (a, aux), g = eqx.filter_jit(parts)(W, batch)
    (b, aux_b), g_b = eqx.filter_jit(whole)(W, batch)
    assert np.allclose(a, b, rtol=1e-5) and np.allclose(g, g_b, rtol=1e-4, atol=1e-5)
    assert aux["n"] == aux_b["n"] == 12 and aux["n"].dtype == aux_b["n"].dtype
    mean = ep.sharding.microbatch(mean_loss, size=size, argnum=-1, reduce="mean")
    value, grad = jax.jit(jax.value_and_grad(mean))(W, X)
    expected, expected_grad = jax.jit(jax.value_and_grad(mean_loss))(W, X)
    assert np.allclose(value, expected, rtol=1e-5)
    assert np.allclose(grad, expected_grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("axis", [1, -1])
def test_other_axes_and_models(axis, getkey):
    linear = eqx.nn.Linear(12, 3, key=getkey())
    total = ep.sharding.microbatch(
        lambda x, m: {"t": jnp.sum(x), "s": "a"}, size=5, axis=axis
    )
    out = total(jnp.ones((4, 12)), linear)
    assert out["t"] == 48 and out["s"] == "a"


@pytest.mark.parametrize("rest", [0, 1])
def test_the_function_is_traced_once_for_the_loop_and_once_for_the_rest(rest):
    sizes = []

    def fun(x):
        sizes.append(x.shape[0])
        return jnp.sum(x)

    ep.sharding.microbatch(fun, size=2)(jnp.ones(6 + rest))
    assert sizes.count(2) == 2 and sizes.count(1) == rest  # shapes, then the loop


def test_dtypes():
    half = jnp.ones(1024, jnp.bfloat16)
    total = ep.sharding.microbatch(
        lambda x: {"h": jnp.sum(x), "i": jnp.asarray(1)}, size=1
    )
    out = total(half)
    assert out["h"].dtype == jnp.bfloat16 and out["h"] == 1024  # 256 if kept in half
    assert out["i"].dtype == jnp.int32 and out["i"] == 1024


@pytest.mark.parametrize("size", [512, 700, 1024, 2048])
def test_the_mean_of_integers_has_one_dtype(size):
    mean = ep.sharding.microbatch(lambda x: jnp.max(x), size=size, reduce="mean")
    got = mean(jnp.full(1024, 3))
    assert got == 3.0 and got.dtype == jnp.float32


def test_a_gradient_of_equinox_in_parts_warns_of_nothing():
    def loss(model, x):
        return jnp.mean(jax.vmap(model)(x) ** 2)

    whole = eqx.filter_value_and_grad(loss)
    model = eqx.nn.Linear(4, 3, key=jr.key(0))
    parts = ep.sharding.microbatch(whole, size=3, argnum=1, reduce="mean")
    value, grads = eqx.filter_jit(parts)(model, X)
    assert np.allclose(value, whole(model, X)[0], rtol=1e-5)
    assert parts.__name__ == "loss"


def test_keys_are_sliced_and_vmap_works():
    keys = jr.split(jr.key(0), 6)
    fun = lambda keys: jnp.sum(jax.vmap(lambda k: jr.normal(k))(keys))  # noqa: E731
    assert np.allclose(ep.sharding.microbatch(fun, size=2)(keys), fun(keys), atol=1e-5)
    doubled = jnp.stack([X, 2 * X])
    got = jax.vmap(ep.sharding.microbatch(jnp.sum, size=5))(doubled)
    assert np.allclose(got, jnp.sum(doubled, axis=(1, 2)), rtol=1e-4, atol=1e-4)
    assert not jtu.tree_leaves(ep.sharding.microbatch(lambda x: None, size=2)(X))


def test_one_value_per_example_is_refused_whatever_the_size():
    for size in (1, 2, 3, 4):
        with pytest.raises(ValueError, match="Return a sum or mean"):
            ep.sharding.microbatch(jax.vmap(jnp.sin), size=size)(jnp.ones(8))
    # An output that only happens to have that size is a sum.
    assert np.array_equal(
        ep.sharding.microbatch(lambda x: x.sum(0), size=4)(jnp.ones((8, 4))),
        np.full(4, 8.0),
    )


def test_a_batch_that_is_split_by_type():
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Explicit,))
    x = ep.sharding.shard(jnp.arange(16.0).reshape(8, 2), mesh, P("data"))
    total = ep.sharding.microbatch(lambda v: jnp.sum(v**2), size=4)
    assert total(x) == jax.jit(total)(x) == jnp.sum(jnp.arange(16.0) ** 2)
