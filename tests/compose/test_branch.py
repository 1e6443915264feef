"""Laws and errors of `cond`, `switch` and `gated`."""

import zlib

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
from support.by_hand import child_key

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


@pytest.mark.parametrize("merge", ["concat", "mean", "prod"])
def test_gated_with_all_open_is_parallel(merge):
    stages = linears(3)
    x = jr.normal(jr.key(1), (3,))
    gates = [lambda x: True] * 3
    close(
        ep.gated(*stages, gates=gates, merge=merge)(x),
        ep.parallel(*stages, merge=merge)(x),
    )


@pytest.mark.parametrize(
    ("merge", "closed"), [("concat", "input"), ("stack", "zeros"), ("dict", "zeros")]
)
def test_what_a_closed_stage_gives(merge, closed):
    stages = {"a": jnp.sin, "b": jnp.cos}
    gates = {"b": lambda x: True, "a": lambda x: False}
    x = jnp.ones((2, 3))
    pipe = ep.gated(stages, gates=gates, merge=merge, closed=closed)
    stand_in = x if closed == "input" else jnp.zeros_like(x)
    fixed = {"a": lambda x: stand_in, "b": jnp.cos}
    close(pipe(x), ep.parallel(fixed, merge=merge)(x))


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


# The last has no lane that is open.
@pytest.mark.parametrize(
    ("kind", "order", "xs"),
    [
        ("cond", "vmap(grad)", (1.0, 0.0, -1.0)),
        ("switch", "grad(vmap)", (1.0, 0.0, -1.0)),
        ("gated", "batched", (1.0, 0.0, -1.0)),
        ("nested", "plain", (1.0, 0.0)),
        ("nested", "vmap(grad)", (1.0, 0.0, -1.0)),
        ("cond", "grad(vmap)", (0.0, -1.0)),
    ],
)
def test_nan_in_a_closed_lane_harms_nothing(kind, order, xs):
    pipe = diverging(kind)
    xs = jnp.array(xs)

    def grads(fn):
        def loss(pipe_x):
            pipe, x = pipe_x
            return fn(pipe, x).sum()

        value_and_grad = eqx.filter_value_and_grad(loss)
        if order == "plain":
            if fn is by_hand:
                value_and_grad = eqx.filter_jit(value_and_grad)
            return [value_and_grad((pipe, x)) for x in xs]
        if order == "vmap(grad)":
            return jax.jit(jax.vmap(lambda x: value_and_grad((pipe, x))))(xs)
        if order == "batched" and fn is ours:
            return eqx.filter_jit(value_and_grad)((ep.batched(pipe), xs))

        def batch_loss(pipe_xs):
            return jax.vmap(lambda x: fn(pipe_xs[0], x))(pipe_xs[1]).sum()

        return eqx.filter_jit(eqx.filter_value_and_grad(batch_loss))((pipe, xs))

    def ours(pipe, x):
        return pipe(x)

    got = [g for g in jax.tree.leaves(grads(ours)) if eqx.is_array(g)]
    expected = [g for g in jax.tree.leaves(grads(by_hand)) if eqx.is_array(g)]
    assert all(jnp.isfinite(g).all() for g in got)
    close(got, expected)


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


def test_draws_follow_names():
    key, x = jr.key(7), jnp.zeros(3)

    def noise(x, key):
        return x + jr.normal(key, x.shape)

    def folded(name):
        return jr.fold_in(key, np.uint32(zlib.crc32(name.encode())))

    pipe = ep.cond(lambda x, key: jr.bernoulli(key, 1.0), noise, noise)
    close(pipe(x, key=key), noise(x, folded("then")))
    picked = ep.switch(lambda x: 1, noise, noise)
    close(picked(x, key=key), noise(x, jr.fold_in(key, 1)))
    both = ep.gated(noise, noise, gates=[lambda x: True] * 2, merge="tuple")
    close(both(x, key=key), tuple(noise(x, jr.fold_in(key, i)) for i in range(2)))


@pytest.mark.parametrize(
    "make, path",
    [
        (lambda n: ep.cond(lambda x: True, n), "then"),
        (lambda n: ep.cond(n, jnp.sin), "pred"),
        (lambda n: ep.switch(lambda x: 0, ep.chain(n)), "0.0"),
        (lambda n: ep.gated(n, gates=(lambda x: True,)), "0"),
        (lambda n: ep.gated(jnp.sin, gates=(n,)), "gates.0"),
    ],
)
def test_a_missing_key_names_the_stage(make, path):
    with pytest.raises(ep.MissingKeyError) as caught:
        ep.chain(inner=make(nn.Dropout(0.5)))(jnp.ones(3))
    assert caught.value.path == f"inner.{path}"


def test_nests_in_equinox_and_trains():
    model = nn.Sequential(
        [
            ep.cond(first_positive, *linears(2)),
            ep.gated(*linears(2), gates=[first_positive, lambda x: x[0] < 0]),
        ]
    )
    xs = jr.normal(jr.key(0), (8, 3))

    @eqx.filter_jit
    @eqx.filter_value_and_grad
    def loss(model):
        return jnp.mean(jax.vmap(model)(xs) ** 2)

    first, grads = loss(model)
    model = eqx.apply_updates(model, jax.tree.map(lambda g: -0.1 * g, grads))
    assert loss(model)[0] < first


def test_an_index_out_of_bounds_can_raise():
    pipe = ep.switch(lambda x: x, jnp.sin, jnp.cos, bounds="error")
    for index in (-1, 2):
        with pytest.raises(Exception, match=r"outside 0\.\.1"):
            jax.block_until_ready(eqx.filter_jit(pipe)(jnp.int32(index)))


def test_a_switch_takes_names():
    pipe = ep.switch(lambda x: x.argmax(), {"low": noisy_sin, "high": jnp.cos})
    x, key = jnp.array([3.0, 1.0]), jr.key(3)
    assert pipe["low"].fn is noisy_sin and pipe.children().keys() == {
        "selector",
        "low",
        "high",
    }
    expected = noisy_sin(x, key=child_key(key, "low"))
    assert np.allclose(pipe(x, key=key), expected)
    assert np.allclose(pipe(x[::-1], key=key), jnp.cos(x[::-1]))
    with pytest.raises(ep.StructureError, match="`low`.*`high`|`high`.*`low`"):
        pipe.replace(high=jnp.sum)(x, key=key)
    assert "|low|" in str(ep.draw(pipe)).replace('"', "")


def noisy_sin(x, *, key):
    return jnp.sin(x) + jr.normal(key, x.shape)
