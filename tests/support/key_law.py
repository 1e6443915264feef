"""The law of keys applied to one stage."""

import itertools

import jax.numpy as jnp
import jax.random as jr

from eqx_pipe._stage import lift
from eqx_pipe.testing._laws.key import no_reuse
from eqx_pipe.testing._laws.law import Broken
from eqx_pipe.testing._laws.trial import Trial

X = jnp.array([1.0, -2.0, 3.0])


normal, uniform = jr.normal, jr.uniform


def draw(key, other=None):
    """Two draws, of one key or of two."""
    return normal(key) * uniform(key if other is None else other)


def unpacked(key):
    a, b = jr.split(key)
    return a, b


KEYS = {"new": jr.key(5), "old": jr.PRNGKey(5)}


def found(stage, key, x=X):
    try:
        no_reuse(Trial(lift(stage), x, None, key))
    except Broken as how:
        return how.what
    return None


def each_with_one_kind(stages):
    """Pair each stage with new and with old keys by turns."""
    return list(zip(stages, itertools.cycle(KEYS), strict=False))
