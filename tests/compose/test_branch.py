"""Laws, errors and state of `cond`, `switch` and `gated`."""

import functools as ft

import equinox as eqx
import equinox.nn as nn
import hypothesis as hyp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from support.branches import close, first_positive, linears
from support.helpers import numbers
from support.stages import Count

import eqx_pipe as ep

pytestmark = pytest.mark.gpu

indices = st.integers(-3, 5)
dtypes = st.sampled_from([jnp.float32, jnp.bfloat16, jnp.int32])


@hyp.given(st.lists(st.booleans(), min_size=4, max_size=4))
def test_cond_under_vmap_is_the_chosen_stage_for_each_example(choices):
    then, otherwise = linears(2)
    pipe = ep.cond(first_positive, then, otherwise)
    signs = jnp.where(jnp.array(choices), 1.0, -1.0)
    xs = jnp.abs(jr.normal(jr.key(0), (4, 3))) * signs[:, None]
    both = zip(choices, xs, strict=True)
    wanted = [(then if chosen else otherwise)(x) for chosen, x in both]
    close(jax.jit(jax.vmap(pipe))(xs), jnp.stack(wanted))


@hyp.given(
    st.lists(st.booleans(), min_size=3, max_size=3),
    st.sampled_from(["sum", "mean"]),
    dtypes,
)
def test_gated_reduces_the_open_stages(opens, merge, dtype):
    stages = [lambda x, i=i: x + jnp.asarray(i, x.dtype) for i in range(3)]
    gates = [lambda x, o=o: o for o in opens]
    x = jnp.arange(3).astype(dtype)
    pipe = ep.gated(*stages, gates=gates, merge=merge)
    chosen = [s for s, o in zip(stages, opens, strict=True) if o]
    if chosen:
        close(pipe(x), ep.parallel(*chosen, merge=merge)(x))
    else:
        close(pipe(x), jnp.zeros_like(ep.parallel(*stages, merge=merge)(x)))


copied = ft.partial(jax.tree.map, lambda leaf: leaf)  # a state may be used once


def diverging(kind):
    """Return a pipeline that would give NaN for examples that choose otherwise."""
    scale = jnp.float32(2.0)

    class Log(ep.Stage):
        scale: jax.Array

        def __call__(self, x, *, key=None):
            return self.scale * jnp.log(x)

    log, ok = Log(scale), nn.Lambda(jnp.tanh)
    positive = nn.Lambda(lambda x: x > 0)
    return {
        "cond": ep.cond(positive, log, ok),
        "switch": ep.switch(lambda x: jnp.where(x > 0, 0, 1), log, ok),
        "gated": ep.gated(log, ok, gates=(positive, lambda x: x <= 0)),
        "nested": ep.cond(lambda x: x > -5, ep.cond(positive, log, ok), ok),
    }[kind]


def by_hand(pipe, x):
    scale = [leaf for leaf in jax.tree.leaves(pipe) if eqx.is_array(leaf)][0]
    return jnp.where(x > 0, scale * jnp.log(jnp.where(x > 0, x, 1.0)), jnp.tanh(x))


# In the last no lane is open.
@pytest.mark.parametrize("xs", [(1.0, 0.0, -1.0), (0.0, -1.0)])
@pytest.mark.parametrize("kind", ["cond", "switch", "gated", "nested"])
def test_nan_in_a_closed_lane_harms_nothing(kind, xs):
    pipe, xs = diverging(kind), jnp.array(xs)

    @eqx.filter_jit
    def slopes(fn):
        one = eqx.filter_value_and_grad(lambda both: fn(*both))

        def total(both):
            return jax.vmap(lambda x: fn(both[0], x))(both[1]).sum()

        every = eqx.filter_value_and_grad(total)((pipe, xs))
        return jax.vmap(lambda x: one((pipe, x)))(xs), every

    got, wanted = slopes(lambda pipe, x: pipe(x)), slopes(by_hand)
    assert all(jnp.isfinite(g).all() for g in jax.tree.leaves(got))
    close(got, wanted)


def test_outside_vmap_one_branch_runs():
    ran = []

    def spy(name):
        def host(x):
            ran.append(name)
            return np.asarray(x)

        return lambda x: jax.pure_callback(host, x, x, vmap_method="expand_dims")

    pipe = ep.chain(
        ep.cond(lambda x: x > 0, spy("then"), spy("otherwise")),
        ep.gated(spy("open"), spy("closed"), gates=(lambda x: True, lambda x: x < 0)),
        ep.switch(lambda x: 1, spy("first"), spy("second")),
    )
    jax.block_until_ready(eqx.filter_jit(pipe)(jnp.float32(1)))
    assert ran == ["then", "open", "second"]


def first_sum(x):
    return x.sum() > 0


EXPLICIT, AUTO = jax.sharding.AxisType.Explicit, jax.sharding.AxisType.Auto
several = pytest.mark.skipif(jax.device_count() < 4, reason="needs four devices")


@several
@pytest.mark.parametrize("other", [EXPLICIT, AUTO])
@pytest.mark.parametrize("merge", [None, "mean", "stack"])
def test_one_choice_for_a_batch_split_over_explicit_axes(other, merge):
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(EXPLICIT, other))
    gates = (first_sum, lambda x: ~first_sum(x))
    pipe = ep.cond(first_sum, jnp.sin, jnp.cos)
    if merge is not None:
        pipe = ep.gated(jnp.sin, jnp.cos, gates=gates, merge=merge)

    def loss(x):
        return jnp.sum(pipe(x) ** 2)

    both, x = jax.value_and_grad(loss), jnp.arange(8.0).reshape(4, 2)
    with jax.set_mesh(mesh):
        split = jax.device_put(x, jax.sharding.PartitionSpec("data"))
        got = jax.jit(both)(split)
    close(got, both(x))
    # Without the context JAX drops the sharding of new arrays, unless it is entered.
    split = jax.device_put(x, jax.sharding.NamedSharding(mesh, got[1].sharding.spec))
    close(jax.jit(pipe)(split), pipe(x))
    close(pipe(split), pipe(x))


@several
def test_branches_with_different_explicit_shardings_are_named():
    mesh = jax.make_mesh((2,), ("data",), axis_types=(EXPLICIT,))
    pipe = ep.cond(first_sum, jnp.sin, lambda x: jnp.zeros(x.shape))
    with jax.set_mesh(mesh):
        split = jax.device_put(jnp.ones(4), jax.sharding.PartitionSpec("data"))
        with pytest.raises(
            ep.StructureError, match="`then` differ: .*4@data.*sharding"
        ):
            jax.jit(pipe)(split)


def test_a_switch_takes_names():
    pipe = ep.switch(lambda x: x.argmax(), {"low": jnp.sin, "high": jnp.cos})
    assert list(pipe.children()) == ["selector", "low", "high"]
    close(pipe(jnp.array([3.0, 1.0])), jnp.sin(jnp.array([3.0, 1.0])))
    with pytest.raises(ep.StructureError, match="`low`.*`high`|`high`.*`low`"):
        pipe.replace(high=jnp.sum)(jnp.ones(2))


@pytest.mark.parametrize(("index", "last"), [(2**40, 1.0), (-(2**40), 0.0)])
def test_an_index_too_large_for_an_array_is_clamped(index, last):
    assert ep.switch(lambda x: index, jnp.sin, jnp.cos)(0.0).item() == last


def test_an_index_out_of_range_is_clamped_by_every_way():
    pipe = ep.switch(lambda i: i, lambda i: 10 + i, lambda i: 20 + i, lambda i: 30 + i)
    indices = jnp.array([-2, -1, 0, 1, 2, 3, 7])
    wanted = [8, 9, 10, 21, 32, 33, 37]
    assert jax.vmap(pipe)(indices).tolist() == wanted
    assert [jax.jit(pipe)(i).item() for i in indices] == wanted
    with jax.disable_jit():
        assert [pipe(i).item() for i in indices] == wanted


def test_batch_norm_in_a_branch_sees_the_batch():
    def make():
        norm = nn.BatchNorm(3, axis_name="b", mode="batch")
        return ep.cond(lambda x: jnp.array(True), norm)

    pipe, state = nn.make_with_state(make)()
    xs = jr.normal(jr.key(0), (4, 3))
    y, _ = ep.batched(pipe, axis_name="b")(xs, state)
    np.testing.assert_allclose(y.mean(0), jnp.zeros(3), atol=1e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ep.cond(lambda x: x > 0, Count(), Count()),
        lambda: ep.switch(lambda x: jnp.where(x > 0, 1, 0), Count(), Count()),
        lambda: ep.gated(Count(), Count(), gates=(lambda x: x <= 0, lambda x: x > 0)),
    ],
)
def test_only_the_branch_taken_updates_its_state(make):
    pipe, state = nn.make_with_state(make)()
    for wrap in (lambda f: f, eqx.filter_jit):
        _, new = wrap(pipe)(jnp.float32(1), copied(state))
        assert sorted(jax.tree.leaves(new)) == [0, 1]
        _, other = wrap(pipe)(jnp.float32(-1), new)
        assert jax.tree.leaves(other) == [1, 1]


def norm():
    return nn.BatchNorm(3, axis_name="batch", mode="batch")


def positive(x):
    return x[0] > 0


def choosing(key):
    return [
        ep.cond(positive, nn.Linear(3, 3, key=key)),
        ep.switch(lambda x: jnp.int32(x[0] > 0), eqx.nn.Identity(), jnp.sin),
        ep.gated(nn.Linear(3, 3, key=key), gates=(positive,)),
        ep.cond(positive, ep.cond(positive, jnp.sin), jnp.cos),
    ]


@pytest.mark.parametrize(
    ("which", "place", "inference"),
    [
        (0, "before", False),
        (1, "after", True),
        (2, "before", True),
        (3, "after", False),
        (0, "predicate", False),
    ],
)
def test_state_beside_a_choice_per_example_stays_one(which, place, inference):
    x, key = numbers(jax.ShapeDtypeStruct((8, 3), jnp.float32)), jr.key(0)
    choice = choosing(key)[which]
    one, state = nn.make_with_state(norm)()

    @eqx.filter_jit
    def over_batch(layer, x):
        mapped = jax.vmap(layer, (0, None), (0, None), axis_name="batch")
        return mapped(x, copied(state))

    one = nn.inference_mode(one, inference)
    normed, after = over_batch(one, x)
    chosen = jax.jit(jax.vmap(choice))
    if inference:
        choice = nn.inference_mode(choice)
    if place == "before":
        pipe, expected = ep.chain(one, choice), chosen(normed)
    elif place == "after":
        pipe, expected = ep.chain(choice, one), over_batch(one, chosen(x))[0]
    else:
        pipe = ep.cond(ep.chain(one, positive), jnp.sin, jnp.cos)
        expected = jnp.where(normed[:, :1] > 0, jnp.sin(x), jnp.cos(x))
    y, new = over_batch(pipe, x)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
    leaves = zip(jax.tree.leaves(new), jax.tree.leaves(after), strict=True)
    assert all(a.shape == b.shape for a, b in leaves)
