"""`outputs`: the outputs of all stages, or of some, beside that of the pipeline."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import pytest
from support.by_hand import child_key as fold
from support.combinators import never, positive
from support.helpers import assert_agree

import eqx_pipe as ep

KEY = jr.key(0)
X = jnp.linspace(-1.0, 1.0, 3)


def block(key):
    return ep.residual({"attn": eqx.nn.Linear(3, 3, key=key), "act": jnp.tanh})


def model(key=KEY):
    return ep.chain(
        blocks=ep.repeat(block, 3, key=key),
        noise=eqx.nn.Dropout(0.5),
        head=eqx.nn.Linear(3, 2, key=key),
    )


def test_every_stage_below_the_root_is_listed():
    split = ep.parallel({"a": ep.chain(jnp.sin, jnp.cos), "b": jnp.tanh})
    mix = ep.weighted(eqx.nn.Identity(), ep.chain(jnp.exp))
    one = ep.at(0, ep.chain(jnp.negative))
    x = jnp.arange(2.0)
    pipe = ep.chain(split, mix, lambda y: (y, "text"), one)
    y, found = ep.outputs(pipe)(x)
    paths = "0.a.0 0.a.1 0.a 0.b 0 1.0 1.1.0 1.1 1 2 3.stage.0 3.stage 3"
    assert list(found) == paths.split()
    assert_agree(found["0.a.0"], jnp.sin(x))
    assert_agree(found["0.a"], jnp.cos(jnp.sin(x)))
    assert found["2"][1] == "text"
    assert_agree((y, found["3"]), (pipe(x), pipe(x)))
    assert ep.outputs(ep.chain())(x)[1] == {}


def test_of_a_choice_the_gates_and_the_whole_are_listed():
    def inner():
        return ep.chain(jnp.sin, jnp.cos)

    stages, gates = {"a": jnp.sin, "b": jnp.cos}, {"b": never, "a": positive}
    pipe = ep.chain(
        cond=ep.cond(positive, inner(), inner()),
        switch=ep.switch(jnp.argmax, inner(), inner()),
        g=ep.gated(stages, gates=gates),
    )
    listed = ep.outputs(pipe)
    for run in (listed, eqx.filter_jit(listed)):
        y, found = run(jnp.ones(3))
        paths = "cond switch g.gates.a g.gates.b g.a g.b g".split()
        assert set(found) == set(paths) and (run is not listed or list(found) == paths)
        assert_agree(found["g.a"], y)
        assert not jnp.any(found["g.b"])


def test_each_stage_of_a_loop_is_listed_and_all_examples_of_a_batch_together():
    def affine(x, *, key):
        return x + jr.normal(key, x.shape)

    def noisy(key):
        return ep.chain(affine, jnp.sin)

    pipe = ep.chain(
        deep=ep.repeat(lambda key: ep.repeat(noisy, 2, key=key), 2, key=KEY),
        each=ep.batched(ep.chain(jnp.cos, lambda x: (x, "text"))),
    )
    x, key = jnp.arange(2.0), jr.key(3)
    _, found = eqx.filter_jit(ep.outputs(pipe))(x, key=key)
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


def test_patterns_choose_and_the_draws_are_those_of_the_call():
    pipe = model()
    y, everything = ep.outputs(pipe)(X, key=KEY)
    assert_agree((y, everything["head"]), (pipe(X, key=KEY), y))
    some = ep.outputs(pipe, "blocks.*.attn")
    _, values = eqx.filter_jit(some)(X, key=KEY)
    names = [f"blocks.{i}.attn" for i in range(3)]
    assert_agree(values, {name: everything[name] for name in names})
    few = ep.outputs(pipe, "blocks.[02]", "!blocks.0", "head")(X, key=KEY)[1]
    assert list(few) == ["blocks.2", "head"]


def test_nothing_is_kept_that_no_pattern_matches():
    def text(pipe):
        return str(jax.make_jaxpr(lambda x: pipe(x, key=KEY))(X))

    # The stacked weights are float32[3,3,3] and biases float32[3,3].
    counts = [text(p).count("f32[3,3]") for p in (model(), ep.outputs(model(), "head"))]
    assert counts[0] == counts[1]
    assert text(ep.outputs(model(), "blocks.1.attn")).count("f32[3,3]") > counts[0]


def make_norm():
    body = ep.chain(
        lin=eqx.nn.Linear(3, 3, key=KEY),
        norm=eqx.nn.BatchNorm(3, axis_name="batch", mode="batch"),
    )
    return ep.chain(body=ep.batched(body, axis_name="batch"), sum=jnp.sum)


def test_an_auxiliary_loss_with_state_has_its_gradient_from_one_run():
    pipe, state = eqx.nn.make_with_state(make_norm)()
    xs = jnp.stack([X, -X, X**2])

    @eqx.filter_jit
    @eqx.filter_value_and_grad(has_aux=True)
    def loss(pipe):
        (y, values), after = ep.outputs(pipe, "body.stage.lin")(xs, state)
        return y + jnp.sum(values["body.stage.lin"] ** 2), after

    @eqx.filter_jit
    @eqx.filter_value_and_grad
    def by_hand(pipe):
        return jnp.sum(jax.vmap(pipe["body"].stage["lin"])(xs) ** 2)

    ((value, after), slope), (penalty, alone) = loss(pipe), by_hand(pipe)
    y, wanted = eqx.filter_jit(pipe)(xs, state)
    assert_agree(value, y + penalty)
    assert_agree(jax.tree.leaves(after), jax.tree.leaves(wanted))
    # The normalised sum is constant in the weights, so theirs is the penalty's.
    found, wanted = (s["body"].stage["lin"].weight for s in (slope, alone))
    assert_agree(found, wanted, tolerance=1e-3)


def test_outputs_inside_of_a_pipeline_are_a_value_like_others():
    inner = ep.outputs(ep.chain(a=jnp.sin, b=jnp.cos), "a")
    pipe = ep.chain(inner=inner, join=lambda both: both[0] + both[1]["a"])
    y, found = ep.outputs(pipe)(X)
    assert_agree(y, jnp.cos(jnp.sin(X)) + jnp.sin(X))
    inside = ["inner.stage.a", "inner.stage.b", "inner.stage"]
    assert list(found) == [*inside, "inner", "join"]


def test_a_missing_key_and_a_pattern_that_matches_nothing():
    with pytest.raises(ep.MissingKeyError) as caught:
        ep.outputs(model(), "head")(X)
    assert caught.value.path == "stage.noise"
    with pytest.raises(ValueError, match="Did you mean `blocks.*attn"):
        ep.outputs(model(), "blocks.*.atn")
    hidden = ep.outputs(ep.cond(jnp.any, ep.chain(a=jnp.sin)), "then.a")
    with pytest.raises(ValueError, match="matches no stage .of those inside of a `co"):
        hidden(X)
