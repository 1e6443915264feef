"""`tapped`: values on the way beside the output, from one run."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import pytest
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


def test_it_gives_what_the_pipeline_gives_and_what_was_asked_for():
    pipe = model()
    everything = ep.outputs(pipe, X, key=KEY)
    y, values = eqx.filter_jit(ep.tapped(pipe, "blocks.*.attn"))(X, key=KEY)
    assert_agree(y, pipe(X, key=KEY))
    assert_agree(
        values, {f"blocks.{i}.attn": everything[f"blocks.{i}.attn"] for i in range(3)}
    )
    y, values = ep.tapped(pipe, "**")(X, key=KEY)
    assert_agree((y, values), (everything["head"], everything))
    some = ep.tapped(pipe, "blocks.[02]", "!blocks.0", "head")(X, key=KEY)[1]
    assert list(some) == ["blocks.2", "head"]


def test_what_is_not_asked_for_is_not_kept():
    def text(*patterns):
        pipe = ep.tapped(model(), *patterns)
        return str(jax.make_jaxpr(lambda x: pipe(x, key=KEY))(X))

    def outputs_of_scan(text):
        return text.count("f32[3,3]")

    # The stacked weights are float32[3,3,3] and biases float32[3,3].
    assert outputs_of_scan(text("head")) < outputs_of_scan(text("blocks.1.attn"))


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
        tapped = ep.tapped(pipe, "body.stage.lin")
        (y, values), after = tapped(xs, state)
        return y + jnp.sum(values["body.stage.lin"] ** 2), after

    (value, after), slope = loss(pipe)

    @eqx.filter_jit
    @eqx.filter_value_and_grad
    def by_hand(pipe):
        hidden = jax.vmap(pipe["body"].stage["lin"])(xs)
        return jnp.sum(hidden**2)

    penalty, lin = by_hand(pipe)
    y, wanted = eqx.filter_jit(pipe)(xs, state)
    assert_agree(value, y + penalty)
    assert_agree(jax.tree.leaves(after), jax.tree.leaves(wanted))
    lin = lin["body"].stage["lin"].weight
    # The normalised sum is constant in the weights, so theirs is the penalty's.
    assert_agree(slope["body"].stage["lin"].weight, lin, tolerance=1e-3)


def test_taps_inside_of_a_pipeline_are_a_value_like_others():
    inner = ep.tapped(ep.chain(a=jnp.sin, b=jnp.cos), "a")
    pipe = ep.chain(inner=inner, join=lambda both: both[0] + both[1]["a"])
    assert_agree(pipe(X), jnp.cos(jnp.sin(X)) + jnp.sin(X))
    found = ep.outputs(pipe, X)
    assert list(found) == [
        "inner.stage.a",
        "inner.stage.b",
        "inner.stage",
        "inner",
        "join",
    ]
    each = ep.repeat(lambda key: ep.chain(inner, lambda both: both[0]), 2, key=KEY)
    assert "1.0.stage.b" in ep.outputs(each, X)


def test_a_missing_key_and_a_pattern_that_matches_nothing():
    with pytest.raises(ep.MissingKeyError) as caught:
        ep.tapped(model(), "head")(X)
    assert caught.value.path == "stage.noise"
    with pytest.raises(ValueError, match="Did you mean `blocks.*attn"):
        ep.tapped(model(), "blocks.*.atn")
    hidden = ep.tapped(ep.cond(jnp.any, ep.chain(a=jnp.sin)), "then.a")
    with pytest.raises(ValueError, match="matches no stage .of those inside of a `co"):
        hidden(X)
