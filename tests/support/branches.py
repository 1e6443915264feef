"""Helpers for tests of `cond`, `switch` and `gated`."""

import equinox.nn as nn
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from support.by_hand import by_hand

import eqx_pipe as ep


def close(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(
            x.astype(jnp.float32), y.astype(jnp.float32), rtol=2e-5, atol=2e-6
        )


def linears(n, size=3):
    return [nn.Linear(size, size, key=jr.key(i)) for i in range(n)]


def first_positive(x):
    return x[0] > 0


def choose(index, branches, x):
    """Run one branch: by `cond` for a bool, and by `switch` for an integer."""
    if jnp.result_type(index) == jnp.bool_:
        return ep.cond(lambda x: index, branches[1], branches[0])(x)
    return ep.switch(lambda x: index, *branches)(x)


def selected(stage, x):
    """Compute all outputs among which a choice chooses, and select one."""
    kind = type(stage).__name__
    if kind == "Cond":
        then, otherwise = selected(stage.then, x), selected(stage.otherwise, x)
        return jnp.where(stage.pred(x), then, otherwise)
    if kind == "Switch":
        return jax.lax.select_n(stage.selector(x), *(selected(s, x) for s in stage))
    if kind == "Gated":
        both = zip(stage.gates, stage, strict=True)
        return sum(jnp.where(gate(x), selected(s, x), 0.0) for gate, s in both)
    return by_hand(stage, x)
