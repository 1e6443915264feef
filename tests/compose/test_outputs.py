"""`outputs`: what every stage put out, by path."""

import equinox as eqx
import hypothesis as hp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import pytest
from support.by_hand import child_key as fold
from support.helpers import assert_agree
from support.stages import Count, draw
from support.strategies import structs

import eqx_pipe as ep
import eqx_pipe.testing as ept


def test_every_stage_below_the_root_is_listed():
    pipe = ep.chain(
        split=ep.parallel({"a": ep.chain(jnp.sin, jnp.cos), "b": jnp.tanh}),
        mix=ep.weighted(eqx.nn.Identity(), ep.chain(jnp.exp)),
        one=ep.at(0, ep.chain(jnp.negative)),
    )
    x = jnp.arange(2.0)
    pipe = ep.chain(pipe[0], pipe[1], lambda y: (y, "text"), pipe[2])
    found = ep.outputs(pipe, x)
    assert list(found) == [
        "0.a.0",
        "0.a.1",
        "0.a",
        "0.b",
        "0",
        "1.0",
        "1.1.0",
        "1.1",
        "1",
        "2",
        "3.stage.0",
        "3.stage",
        "3",
    ]
    assert_agree(found["0.a.0"], jnp.sin(x))
    assert_agree(found["0.a"], jnp.cos(jnp.sin(x)))
    assert found["2"][1] == "text"
    assert_agree(found["3"], pipe(x))


@hp.given(st.data())
def test_the_last_output_is_that_of_the_pipeline(data):
    struct = data.draw(structs())
    inner = data.draw(ept.pipelines(struct, max_depth=2))
    x, key = data.draw(ept.arrays(struct)), data.draw(ept.keys())
    pipe = ep.chain(head=inner)
    found = eqx.filter_jit(ep.outputs)(pipe, x, key=key)
    assert type(found) is dict
    assert_agree(found["head"], eqx.filter_jit(pipe)(x, key=key))


def test_what_runs_inside_a_branch_is_not_listed():
    def inner():
        return ep.chain(jnp.sin, jnp.cos)

    def positive(x):
        return jnp.sum(x) > 0

    x = jnp.arange(2.0)
    pipes = {
        "cond": ep.cond(positive, inner(), inner()),
        "switch": ep.switch(lambda x: 1, inner(), inner()),
    }
    for name, pipe in pipes.items():
        for listed in (ep.outputs, eqx.filter_jit(ep.outputs)):
            assert list(listed(ep.chain(pipe), x)) == ["0"], name


def test_each_stage_of_a_loop_is_listed_and_all_examples_of_a_batch_together():
    def block(key):
        return ep.chain(affine, jnp.sin)

    def affine(x, *, key):
        return x + jr.normal(key, x.shape)

    pipe = ep.chain(
        deep=ep.repeat(lambda key: ep.repeat(block, 2, key=key), 2, key=jr.key(0)),
        each=ep.batched(ep.chain(jnp.cos, lambda x: (x, "text"))),
    )
    x, key = jnp.arange(2.0), jr.key(3)
    found = eqx.filter_jit(lambda p, x, key: ep.outputs(p, x, key=key))(pipe, x, key)
    loops = [f"deep.{i}" for i in range(2)]
    blocks = [f"{loop}.{i}" for loop in loops for i in range(2)]
    names = {f"{block}.{i}" for block in blocks for i in range(2)}
    inside = {"each.stage", "each.stage.0", "each.stage.1"}
    assert set(found) == {"deep", "each", *loops, *blocks, *names, *inside}
    y = x
    for i in range(2):
        for j in range(2):
            own = jr.fold_in(jr.fold_in(jr.fold_in(fold(key, "deep"), i), j), 0)
            y = y + jr.normal(own, y.shape)
            assert_agree(found[f"deep.{i}.{j}.0"], y)
            y = jnp.sin(y)
        assert_agree(found[f"deep.{i}"], y)
    assert_agree(found["each.stage.0"], jnp.cos(y))
    assert found["each.stage.1"][1] == "text"
    in_order = list(ep.outputs(pipe, x, key=key))
    assert in_order[:3] == ["deep.0.0.0", "deep.0.0.1", "deep.0.0"]


def test_values_that_nobody_asks_for_are_not_kept():
    pipe = ep.repeat(lambda key: ep.chain(jnp.sin, jnp.cos), 3, key=jr.key(0))
    plain = str(jax.make_jaxpr(pipe)(jnp.ones(2)))
    assert "f32[3,2]" not in plain
    kept = str(jax.make_jaxpr(lambda x: ep.outputs(pipe, x))(jnp.ones(2)))
    assert "f32[3,2]" in kept


def test_it_works_under_vmap_and_grad():
    pipe = ep.chain(a=jnp.sin, b=jnp.sum)
    xs = jnp.ones((3, 2))
    found = jax.vmap(lambda x: ep.outputs(pipe, x))(xs)
    assert found["a"].shape == (3, 2) and found["b"].shape == (3,)
    slope = jax.grad(lambda x: ep.outputs(pipe, x)["a"][0])(xs[0])
    assert_agree(slope, jnp.array([jnp.cos(1.0), 0.0]))


def test_draws_are_those_of_the_call():
    pipe, key, x = ep.chain(eqx.nn.Identity(), draw), jr.key(0), jnp.zeros(2)
    assert_agree(ep.outputs(pipe, x, key=key)["1"], pipe(x, key=key))
    with pytest.raises(ep.MissingKeyError) as caught:
        ep.outputs(pipe, x)
    assert caught.value.path == "1"


def test_the_state_given_stays_valid():
    pipe, state = eqx.nn.make_with_state(lambda: ep.chain(Count(), Count()))()
    x = jnp.zeros(1)
    for _ in range(2):
        found = ep.outputs(pipe, x, state)
        assert_agree(found, {"0": jnp.ones(1), "1": jnp.full(1, 2.0)})
    assert_agree(ep.outputs(pipe, x, state=state), found)
    y, _ = pipe(x, state)
    assert_agree(y, found["1"])


def test_a_layer_has_no_stages_inside():
    assert ep.outputs(eqx.nn.Linear(2, 2, key=jr.key(0)), jnp.ones(2)) == {}
    assert ep.outputs(ep.chain(), jnp.ones(2)) == {}


def test_bad_arguments(unchecked):
    stateful, _ = eqx.nn.make_with_state(lambda: ep.chain(Count()))()
    with pytest.raises(TypeError, match="`pipe` is 3"):
        ep.outputs(3, jnp.ones(2))
    with pytest.raises(TypeError, match="single PRNG key"):
        ep.outputs(ep.chain(), jnp.ones(2), key=3)
    with pytest.raises(ValueError, match="make_with_state"):
        ep.outputs(stateful, jnp.ones(2))
    with pytest.raises(TypeError, match="an `equinox.nn.State`"):
        ep.outputs(ep.chain(), jnp.ones(2), 3)
