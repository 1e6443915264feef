"""State in what is chosen, and beside it."""

import equinox as eqx
import equinox.nn as nn
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from support.helpers import numbers
from support.stages import Count

import eqx_pipe as ep


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
        _, new = wrap(pipe)(jnp.float32(1), state_of(state))
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
        return mapped(x, state_of(state))

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


def state_of(state):
    """A copy, since a state may be used once."""
    leaves, structure = jax.tree.flatten(state)
    return jax.tree.unflatten(structure, leaves)
