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
    return ep.Reducer(**{**parts, **changes})


REDUCERS = {
    "a merge that forgets": reducer(merge=lambda a, b: a),
    "a merge that subtracts": reducer(merge=lambda a, b: a - b),
    "a merge that averages": reducer(merge=lambda a, b: (a + b) / 2),
    "an init that is not neutral": reducer(
        init=lambda s: jnp.ones(s.shape, s.dtype),
    ),
    "an update that overwrites": reducer(update=lambda state, value: value),
    "a mean of means": reducer(update=lambda state, value: (state + value) / 2),
    "a merge that branches in Python": reducer(merge=lambda a, b: b if a > 0 else a),
    "an update that branches in Python": reducer(
        update=lambda state, value: state + value if value > 1 else state
    ),
    "another merge when traced": reducer(merge=lambda a, b: a + b + traced(a)),
    "another update when traced": reducer(
        update=lambda state, value: state + value + traced(state)
    ),
    "a merge that weighs the later half more": reducer(
        merge=lambda a, b: a + 2 * b, finish=lambda state: state
    ),
    "a merge that rounds": reducer(merge=lambda a, b: 4 * jnp.round((a + b) / 4)),
    "a state of another form": reducer(merge=lambda a, b: (a + b)[None]),
    "no state for no points": reducer(init=lambda struct: jnp.zeros(struct.count)),
}


# What only a reference tells: consistent, and wrong.
WRONG = {
    "a maximum that starts at 0": (
        reducer(update=jnp.maximum, merge=jnp.maximum),
        jnp.array([-3.0, -1.0, -2.0]),
        np.max,
    ),
    "a sum that overflows": (
        reducer(),
        jnp.array([100, 100, 100], jnp.int8),
        lambda values: np.sum(values, dtype=int),
    ),
    "a mean of one point less": (
        reducer(finish=lambda state: state / 3),
        jnp.array([1.0, 2.0, 4.0, 8.0]),
        np.mean,
    ),
}


@pytest.mark.one_of(3)
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_reducer_is_caught_by_a_reference(name):
    broken, values, reference = WRONG[name]
    ept.check_reducer(broken, values)
    with pytest.raises(AssertionError, match="the law `reference` of a reducer"):
        ept.check_reducer(broken, values, reference=reference)


@pytest.mark.one_of(2)
@pytest.mark.parametrize("name", REDUCERS)
def test_a_broken_reducer_is_caught(name):
    with pytest.raises(AssertionError, match="check_reducer.*of a reducer"):
        ept.check_reducer(REDUCERS[name], jnp.array([1.0, 2.0, 4.0, 8.0]))


def test_a_sound_reducer_is_not():
    ept.check_reducer(reducer(), jnp.array([1.0, 2.0, 4.0, 8.0]), reference=np.sum)
