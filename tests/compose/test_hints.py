"""Errors of a stage whose likely cause is said: in a note, or before it is called."""

import jax
import jax.numpy as jnp
import jax.random as jr
import pytest
from equinox import nn

import eqx_pipe as ep


def notes_of(call, *args, **kwargs):
    """What is said below an error."""
    with pytest.raises(Exception) as caught:  # noqa: B017
        call(*args, **kwargs)
    return "\n".join(getattr(caught.value, "__notes__", []))


def norm_in(**named):
    def make():
        norm = nn.BatchNorm(4, axis_name="b", mode="batch")
        return ep.chain(ep.batched(norm, **named))

    return nn.make_with_state(make)()


def test_the_axis_that_a_batched_names():
    x = jnp.ones((7, 4))
    pipe, state = norm_in(axis_name="c")
    assert "Here `batched` names its axis `c`" in notes_of(pipe, x, state)
    pipe, state = norm_in(in_axes=0)
    assert "names its axis" not in notes_of(pipe, x, state)
    pipe, state = norm_in(axis_name="b")
    assert pipe(x, state)[0].shape == (7, 4)


def test_a_state_of_another_pipeline():
    def norm():
        return ep.batched(nn.BatchNorm(4, axis_name="b", mode="batch"), axis_name="b")

    other, state = nn.make_with_state(lambda: ep.chain(a=ep.chain(norm())))()
    for pipe, given in [(ep.chain(b=norm()), state), (other[:1], nn.State(norm()))]:
        with pytest.raises(ValueError, match="make_with_state") as caught:
            pipe(jnp.ones((7, 4)), given)
        assert "made with another pipeline" in str(caught.value)
        assert "object at" not in str(caught.value)


def test_one_key_for_many_examples(unchecked):
    pipe, xs = ep.chain(nn.Dropout(0.5)), jnp.ones((2, 4))
    with pytest.raises(TypeError, match=r"jax\.random\.split\(key, len\(xs\)\)"):
        jax.vmap(pipe)(xs, key=jr.PRNGKey(0))
    with pytest.raises(TypeError, match=r"one key to `eqx_pipe\.batched\(pipe\)`"):
        pipe(xs, key=jr.split(jr.key(0), 2))
    assert jax.vmap(pipe)(xs, key=jr.split(jr.key(0), len(xs))).shape == (2, 4)
    assert ep.batched(pipe)(xs, key=jr.key(0)).shape == (2, 4)
