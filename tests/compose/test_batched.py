"""`batched` against the stage applied to one example after the other."""

import equinox as eqx
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
import pytest
from equinox import nn
from hypothesis import given
from jax.sharding import AxisType
from support.helpers import assert_agree, filled, numbers

import eqx_pipe as ep


def noisy(x, *, key):
    return x + jr.normal(key, x.shape, x.dtype)


LINEAR = filled(lambda key: eqx.nn.Linear(3, 2, key=key), jr.key(0))
stages = {
    "function": lambda x: {"twice": (x + x,), "sum": jnp.sum(x)},
    "constant": lambda x: jnp.ones(2),
    "chain": ep.chain(jnp.sin, noisy, LINEAR),
}


@given(
    name=st.sampled_from(sorted(stages)),
    size=st.sampled_from([1, 4]),
    axis=st.sampled_from([0, 1, -1]),
)
def test_each_example_by_itself(name, size, axis):
    stage, key = ep.chain(stages[name]), jr.key(3)
    rows = numbers(jax.ShapeDtypeStruct((size, 3), jnp.float32))
    y = ep.batched(stage, in_axes=axis)(jnp.moveaxis(rows, 0, axis), key=key)
    each = [stage(row, key=jr.fold_in(key, i)) for i, row in enumerate(rows)]
    assert_agree(y, jtu.tree_map(lambda *leaves: jnp.stack(leaves), *each))


def test_an_empty_batch():
    pipe = ep.batched(stages["chain"])
    assert pipe(jnp.zeros((0, 3)), key=jr.key(0)).shape == (0, 2)


@pytest.mark.parametrize("kind", ["BCOO", "BCSR"])
def test_a_sparse_matrix_for_each_example(kind):
    sparse = pytest.importorskip("jax.experimental.sparse")
    dense = jnp.stack([jnp.eye(3), 2 * jnp.eye(3)])
    matrices = getattr(sparse, kind).fromdense(dense, n_batch=1)
    product = ep.batched(lambda d: d["a"] @ d["b"], in_axes={"a": 0, "b": None})
    x = {"a": matrices, "b": jnp.arange(3.0)}
    assert np.array_equal(product(x), dense @ np.arange(3.0))
    assert np.array_equal(jax.jit(product)(x), dense @ np.arange(3.0))
    same = ep.batched(lambda a: a)(matrices)
    assert np.array_equal(same.todense(), dense)


def test_parts_that_all_examples_share():
    x = {"row": jnp.arange(6.0).reshape(3, 2), "shared": jnp.ones(2), "label": "a"}

    def stage(t):
        return {"y": t["row"] + t["shared"], "label": t["label"]}

    pipe = ep.batched(stage, in_axes={"row": np.int64(0), "shared": None, "label": 0})
    for call in (pipe, eqx.filter_jit(pipe)):
        y = call(x)
        np.testing.assert_array_equal(y["y"], x["row"] + 1)
        assert y["label"] == "a"
    assert pipe.in_axes == {"row": 0, "shared": None, "label": 0}
    nested = ep.batched(lambda t: t[0] * t[1]["w"], in_axes=(1, None))
    y = nested((jnp.ones((2, 3)), {"w": jnp.full((), 2.0)}))
    np.testing.assert_array_equal(y, jnp.full((3, 2), 2.0))


def test_keys_and_numpy_arrays_and_low_precision_are_examples_too():
    keys = jr.split(jr.key(0), 3)
    draws = ep.batched(lambda k: jr.normal(k, ()))(keys)
    np.testing.assert_allclose(draws, jax.vmap(jr.normal)(keys), rtol=1e-6)
    assert ep.batched(jnp.sin)(np.zeros(3, np.float32)).shape == (3,)
    half = ep.batched(jnp.sin)(jnp.zeros(3, jnp.bfloat16))
    assert half.dtype == jnp.bfloat16


class Cache(eqx.nn.StatefulLayer):
    """Keeps the sum of its inputs, as a cache of an example does."""

    seen: eqx.nn.StateIndex

    def __init__(self):
        self.seen = eqx.nn.StateIndex(jnp.zeros(2))

    def __call__(self, x, state, *, key=None):
        seen = state.get(self.seen) + x
        return seen, state.set(self.seen, seen)


def test_a_state_for_each_example_is_refused_and_mapped_as_the_message_says():
    pipe, state = eqx.nn.make_with_state(lambda: ep.chain(Cache()))()
    xs = jnp.arange(6.0).reshape(3, 2)
    with pytest.raises(ValueError, match="at `a` updates its .* `axis_name`") as caught:
        ep.chain(a=ep.batched(pipe))(xs, state)
    assert "filter_vmap(pipe, in_axes=(0, None))" in str(caught.value)
    ys, states = eqx.filter_vmap(pipe, in_axes=(0, None))(xs, state)
    ys, states = eqx.filter_vmap(pipe, in_axes=(0, 0))(xs, states)
    np.testing.assert_array_equal(ys, 2 * xs)


def test_examples_that_are_split_over_an_explicit_axis():
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    pipe, key = ep.batched(stages["chain"]), jr.key(0)
    xs = jnp.arange(12.0).reshape(4, 3)
    expected = pipe(xs, key=key)
    with jax.set_mesh(mesh):
        split = jax.device_put(xs, jax.sharding.PartitionSpec("data"))
        y = jax.jit(lambda x: pipe(x, key=key))(split)
    np.testing.assert_allclose(y, expected, rtol=1e-6)


def test_batch_norm_sees_the_batch():
    def build():
        norm = eqx.nn.BatchNorm(3, "batch", mode="batch")
        return ep.batched(ep.chain(norm, eqx.nn.Dropout()), axis_name="batch")

    pipe, state = eqx.nn.make_with_state(build)()
    x = 5 + numbers(jax.ShapeDtypeStruct((8, 3), jnp.float32))
    _, state = eqx.filter_jit(pipe)(x, state, key=jr.key(1))
    mean, _ = state.get(pipe.stage[0].batch_state_index)
    np.testing.assert_allclose(mean, 0.01 * x.mean(0), rtol=1e-4)  # momentum 0.99
    y, same = eqx.filter_jit(eqx.nn.inference_mode(pipe))(x, state)
    assert y.shape == x.shape and eqx.tree_equal(same, state)


@pytest.mark.parametrize(
    ("in_axes", "x", "lines"),
    [
        (0, 1.0, ["is float32[] and has no axis 0"]),
        (-3, jnp.ones((2, 2)), ["float32[2,2] and has no axis -3"]),
        (
            0,
            {"a": jnp.ones((2, 3)), "b": jnp.ones(3)},
            ["`.a` is float32[2,3]: 2 along axis 0", "`.b` is float32[3]: 3 along"],
        ),
        (0, {"a": jnp.ones((2, 3)), "b": 1}, ["`.b` is int32[] and has no axis 0"]),
        ({"a": 0}, {"b": jnp.ones(2)}, ["not a prefix", "{b: float32[2]}"]),
        (0, ("text",), ["it contains no arrays"]),
    ],
)
def test_inputs_that_cannot_be_split(in_axes, x, lines):
    pipe = ep.chain(part=ep.batched(eqx.nn.Identity(), in_axes=in_axes))
    with pytest.raises(ep.StructureError, match="eqx_pipe.batched") as caught:
        pipe(x)
    assert all(line in str(caught.value) for line in [*lines, "`part`"])


MESH = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))


@pytest.mark.parametrize("settings", [{"batch_size": 2}, {"mesh": MESH}])
def test_batches_have_the_same_keys_and_gradients(settings):
    stage = ep.chain(nn.Linear(3, 3, key=jr.key(0)), nn.Dropout(0.5))
    xs = jnp.arange(15.0).reshape(5, 3)

    def of(pipe):
        def loss(pipe):
            return jnp.sum(pipe(xs, key=jr.key(1)) ** 2)

        return eqx.filter_jit(eqx.filter_value_and_grad(loss))(pipe)

    value, grad = of(ep.batched(stage, **settings))
    wanted, wanted_grad = of(ep.batched(stage))
    assert_agree(value, wanted)
    assert_agree(grad.stage[0].weight, wanted_grad.stage[0].weight)


class Calls(nn.StatefulLayer):
    index: nn.StateIndex

    def __init__(self):
        self.index = nn.StateIndex(jnp.array(0))

    def __call__(self, x, state, *, key=None):
        count = state.get(self.index)
        return x + count, state.set(self.index, count + 1)


@pytest.mark.parametrize("settings", [{"batch_size": 2}, {"mesh": MESH}])
def test_batches_have_no_state_in_common(settings):
    with pytest.raises(ValueError, match="Leave out `(batch_size|mesh)`"):
        ep.batched(Calls(), **settings)
    pipe, state = nn.make_with_state(lambda: ep.batched(Calls()))()

    def step(state, xs):
        return pipe(xs, state)[::-1]

    state, y = jax.lax.scan(step, state, jnp.zeros((2, 3), int))
    assert y.tolist() == [[0] * 3, [1] * 3]
    assert state.get(pipe.stage.index) == 2


def test_a_named_axis_is_one_batch():
    total = lambda x: jax.lax.psum(x, "batch")  # noqa: E731
    pipe = ep.batched(total, axis_name="batch", batch_size=2)
    with pytest.raises(ValueError, match="Leave out `axis_name`"):
        pipe(jnp.ones(5))


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
def test_keys_whose_draws_depend_on_each_other(impl):
    key, drop = jr.key(0, impl=impl), eqx.nn.Dropout(0.5)
    xs, keys = jnp.ones((4, 64)), [jr.fold_in(key, i) for i in range(4)]
    refused = pytest.raises(ValueError, match=r"kind `\w*rbg`.*impl='threefry2x32'")
    for pipe in (
        ep.batched(drop),
        ep.batched(drop, batch_size=2),
        ep.batched(ep.chain(jnp.sin, ep.repeat(drop, 2, shared=True))),
        ep.ensemble([drop, drop]),
    ):
        with refused:
            pipe(xs, key=key)
        with refused:
            jax.jit(lambda key, pipe=pipe: pipe(xs, key=key))(key)
        with refused, jax.default_prng_impl(impl):
            pipe(xs, key=jr.PRNGKey(0))
    for build in (ep.repeat, ep.ensemble):
        with refused:
            build(lambda key: eqx.nn.Linear(2, 2, key=key), 4, key=key)
    # One example at a time, or no draw at all, is as written.
    each = jnp.stack([drop(x, key=k) for x, k in zip(xs, keys, strict=True)])
    for run in (
        lambda pipe: pipe(xs, key=key),
        eqx.filter_jit(lambda pipe: pipe(xs, key=key)),
    ):
        np.testing.assert_array_equal(run(ep.batched(drop, batch_size=1)), each)
        np.testing.assert_array_equal(run(ep.batched(jnp.sin)), jnp.sin(xs))
    steps = ep.scan(lambda c, x, key: (c, drop(x, key=key)), 0.0)(xs, key=key)
    np.testing.assert_array_equal(steps, each)


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
def test_such_keys_in_vmap_and_in_sweeps(impl):
    def draw(seed):
        return jr.normal(jr.key(seed, impl=impl), (3,))

    seeds = np.arange(5, dtype=np.uint32)
    each = np.stack([draw(seed) for seed in seeds])
    np.testing.assert_array_equal(ep.vmap(draw, batch_size=1)(seeds), each)
    for run in (
        lambda: ep.vmap(draw, batch_size=2)(seeds),
        lambda: ep.sweep(draw, ep.Values(seeds)),
        lambda: ep.vmap_space(draw, ep.Values(seeds), batch_size=2),
    ):
        with pytest.raises(ValueError, match=r"`fn` draws from keys of the kind `rbg`"):
            run()
    same = ep.sweep(lambda x: x + draw(0), ep.Values(np.zeros(5, np.float32)))
    np.testing.assert_allclose(same.values, np.stack([draw(0)] * 5), rtol=1e-6)
