"""`jax.debug_key_reuse`: what hands a key on uses it no more than a call by hand."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import pytest

import eqx_pipe as ep
import eqx_pipe.testing as ept

DROP = eqx.nn.Dropout(0.5)


def noise(x, *, key):
    return x + jr.normal(key, x.shape)


def some(x):
    return (x > 0).any()


def counted(x, *, key):
    def step(carry):
        x, i = carry
        return x + jr.uniform(jr.fold_in(key, i), x.shape), i + 1

    return jax.lax.while_loop(lambda carry: carry[0].sum() < 9, step, (x, 0))[0]


PIPES = {
    "cond": ep.cond(some, noise, noise),
    "switch": ep.switch(lambda x: jnp.int32(some(x)), noise, DROP),
    "gated": ep.gated(noise, DROP, gates=(some, some), merge="sum"),
    "without draws": ep.gated(lambda x: -x, jnp.sin, gates=(some, some)),
    "nested": ep.cond(some, ep.cond(some, noise, DROP), ep.chain(DROP, noise)),
    "remat": ep.repeat(ep.cond(some, noise, jnp.sin), 3, shared=True, remat=True),
    "ensemble": ep.ensemble([ep.cond(some, DROP, jnp.sin)] * 2),
    "refill": ep.chain(ep.refill(counted), noise),
    "parallel": ep.parallel(noise, DROP, ep.cond(some, noise, DROP), merge="sum"),
    "vmap": ep.chain(
        lambda x, key: ep.vmap(lambda x, k: noise(x, key=k), batch_size=2)(
            x, jr.split(key, 3)
        )
    ),
}


@pytest.mark.parametrize("name", PIPES)
def test_a_pipeline_uses_no_key_twice(name):
    pipe, x = PIPES[name], jnp.ones(3)
    back = ep.chain(pipe, lambda _: x)
    twice = ep.chain(pipe, lambda _: x, pipe, ep.repeat(back, 2, shared=True))
    with jax.debug_key_reuse(True):
        twice(x, key=jr.key(0))
        for batch_size in (None, 2):
            every = ep.batched(twice, batch_size=batch_size)
            eqx.filter_jit(every)(jnp.ones((3, 3)), key=jr.key(0))
            if name != "refill":
                loss = eqx.filter_grad(lambda x, p, key: p(x, key=key).sum())
                eqx.filter_jit(loss)(jnp.ones((3, 3)), every, jr.key(0))
    if name != "vmap":
        ept.check_function(pipe, x, key=jr.key(0), only=("key",))


@pytest.mark.parametrize("choose", ["cond", "switch"])
def test_a_key_used_twice_is_found_in_a_branch_and_after_it(choose):
    def twice(x, *, key):
        return noise(noise(x, key=key), key=key)

    def first(x, *, key):
        return x

    if choose == "cond":
        pipe = ep.cond(some, twice, first)
    else:
        pipe = ep.switch(lambda x: jnp.int32(some(x)), first, twice)
    with jax.debug_key_reuse(True), pytest.raises(jax.errors.KeyReuseError):
        eqx.filter_jit(pipe)(jnp.ones(3), key=jr.key(0))
