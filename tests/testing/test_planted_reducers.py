"""Broken reducers: each is caught by the law it breaks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqx_pipe as ep
import eqx_pipe.testing as ept


def traced(x):
    return jnp.float32(isinstance(x, jax.core.Tracer))


def reducer(**changes):
    """A sum, with some part of it broken."""
    parts = {
        "init": lambda struct: jnp.zeros(struct.shape, struct.dtype),
        "update": lambda state, value: state + value,
        "merge": lambda a, b: a + b,
        "finish": lambda state: state,
    }
    return ep.reduce.Reducer(**{**parts, **changes})


REDUCERS = {
    "a merge that forgets": reducer(merge=lambda a, b: a),
    "an init that is not neutral": reducer(
        init=lambda s: jnp.ones(s.shape, s.dtype),
    ),
    "a mean of means": reducer(update=lambda state, value: (state + value) / 2),
    "a merge that branches in Python": reducer(merge=lambda a, b: b if a > 0 else a),
    "another merge when traced": reducer(merge=lambda a, b: a + b + traced(a)),
    "another update when traced": reducer(
        update=lambda state, value: state + value + traced(state)
    ),
    "a merge that rounds": reducer(merge=lambda a, b: 4 * jnp.round((a + b) / 4)),
    "a state of another form": reducer(merge=lambda a, b: (a + b)[None]),
    "no state for no points": reducer(init=lambda struct: jnp.zeros(struct.count)),
}


# Consistent, and wrong: only a reference shows it.
def test_a_wrong_reducer_is_caught_by_a_reference():
    starts_at_0 = reducer(update=jnp.maximum, merge=jnp.maximum)
    values = jnp.array([-3.0, -1.0, -2.0, -4.0])
    ept.check_reducer(starts_at_0, values)
    with pytest.raises(AssertionError, match="the law `reference` of a reducer"):
        ept.check_reducer(starts_at_0, values, reference=np.max)


@pytest.mark.parametrize("name", REDUCERS)
def test_a_broken_reducer_is_caught(name):
    with pytest.raises(AssertionError, match="check_reducer.*of a reducer"):
        ept.check_reducer(REDUCERS[name], jnp.array([1.0, 2.0, 4.0, 8.0]))


def test_a_sound_reducer_is_not():
    ept.check_reducer(reducer(), jnp.array([1.0, 2.0, 4.0, 8.0]), reference=np.sum)
