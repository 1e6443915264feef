"""Laws and errors of `cond`, `switch` and `gated`."""

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

import eqx_pipe as ep

indices = st.integers(-3, 5)
dtypes = st.sampled_from([jnp.float32, jnp.bfloat16, jnp.int32])


@hyp.given(indices, dtypes, st.booleans())
def test_switch_is_the_chosen_branch(index, dtype, traced):
    stages = [lambda x, i=i: x * jnp.asarray(i + 1, x.dtype) for i in range(3)]
    x = jnp.arange(3).astype(dtype)
    pipe = ep.switch(lambda t: t[1], *[ep.chain(lambda t: t[0], s) for s in stages])
    call = eqx.filter_jit(pipe) if traced else pipe
    y = call((x, jnp.int32(index)))
    close(y, stages[min(max(index, 0), 2)](x))


@hyp.given(st.lists(st.booleans(), min_size=4, max_size=4), st.booleans())
def test_cond_under_vmap_is_the_chosen_stage_for_each_example(choices, jit):
    then, otherwise = linears(2)
    pipe = ep.cond(first_positive, then, otherwise)
    signs = jnp.where(jnp.array(choices), 1.0, -1.0)
    xs = jnp.abs(jr.normal(jr.key(0), (4, 3))) * signs[:, None]
    run = jax.vmap(pipe)
    close(
        jax.jit(run)(xs) if jit else run(xs),
        jnp.stack(
            [(then if c else otherwise)(x) for c, x in zip(choices, xs, strict=True)]
        ),
    )


@hyp.given(
    st.lists(st.booleans(), min_size=3, max_size=3),
    st.sampled_from(["sum", "mean", "max", "min", "prod"]),
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


def diverging(kind):
    """A pipeline that gives NaN where closed, and its parameters."""
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


def test_an_index_out_of_bounds_can_raise():
    pipe = ep.switch(lambda x: x, jnp.sin, jnp.cos, bounds="error")
    for index in (-1, 2):
        with pytest.raises(Exception, match=r"outside 0\.\.1"):
            jax.block_until_ready(eqx.filter_jit(pipe)(jnp.int32(index)))


def test_a_switch_takes_names():
    pipe = ep.switch(lambda x: x.argmax(), {"low": jnp.sin, "high": jnp.cos})
    assert list(pipe.children()) == ["selector", "low", "high"]
    close(pipe(jnp.array([3.0, 1.0])), jnp.sin(jnp.array([3.0, 1.0])))
    with pytest.raises(ep.StructureError, match="`low`.*`high`|`high`.*`low`"):
        pipe.replace(high=jnp.sum)(jnp.ones(2))


def test_an_index_too_large_for_an_array_is_clamped():
    assert ep.switch(lambda x: 2**40, jnp.sin, jnp.cos)(0.0).item() == 1.0


def test_batch_norm_in_a_branch_sees_the_batch():
    def make():
        norm = nn.BatchNorm(3, axis_name="b", mode="batch")
        return ep.cond(lambda x: jnp.array(True), norm)

    pipe, state = nn.make_with_state(make)()
    xs = jr.normal(jr.key(0), (4, 3))
    y, _ = ep.batched(pipe, axis_name="b")(xs, state)
    np.testing.assert_allclose(y.mean(0), jnp.zeros(3), atol=1e-5)
