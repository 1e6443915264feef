"""Every reducer keeps the laws that let a sweep split, merge and compile it."""

import hypothesis as hp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.helpers import few, numbers, slow_unless

import eqx_pipe as ep
import eqx_pipe.testing as ept

OUTPUT = {
    "loss": jax.ShapeDtypeStruct((), jnp.float32),
    "steps": jax.ShapeDtypeStruct((), jnp.int32),
    "path": jax.ShapeDtypeStruct((3,), jnp.float32),
}
VALUES = {
    "loss": jnp.array([0.5, -1.25, 2.0, 0.5, -3.5, 1.0, 0.25]),
    "steps": jnp.array([4, 4, 1, 9, 1, 9, 0], jnp.int32),
    "path": numbers(jax.ShapeDtypeStruct((7, 3), jnp.float32)),
}


def first_and_last():
    """A user's own, whose merge does not commute."""

    def merge(a, b):
        first = jnp.where(a[0], a[1], b[1])
        return a[0] | b[0], first, jnp.where(b[0], b[2], a[2])

    return ep.reduce.Reducer(
        init=lambda s: (False, jnp.zeros(s.shape), jnp.zeros(s.shape)),
        update=lambda state, v: merge(state, (jnp.array(True), v, v)),
        merge=merge,
        finish=lambda state: state[1:],
        by="loss",
    )


def distinct():
    """A user's own with a table for a state: how often each step count came."""
    return ep.reduce.Reducer(
        init=lambda s: jnp.zeros(10, jnp.int32),
        update=lambda table, v: table.at[v].add(1),
        merge=lambda a, b: a + b,
        finish=lambda table: (table > 0).sum(),
        by="steps",
        stop=lambda table: (table > 0).all(),
    )


REDUCERS = {
    "mean": lambda: ep.reduce.Mean(),
    "variance": lambda: ep.reduce.Var("loss", ddof=1),
    "sum of a function": lambda: ep.reduce.Sum(lambda out: out["loss"] ** 2),
    "min": lambda: ep.reduce.Min("loss"),
    "max": lambda: ep.reduce.Max("path"),
    "argmax": lambda: ep.reduce.ArgMax(by=lambda out: out["path"][1]),
    "top": lambda: ep.reduce.TopK(3, "steps"),
    "more than there are": lambda: ep.reduce.TopK(30, "loss", mode="min"),
    "histogram": lambda: ep.reduce.Histogram([-1.0, 0.0, 0.5], by="loss"),
    "even histogram": lambda: ep.reduce.Histogram(4, range=(0, 9), by="steps"),
    "own": first_and_last,
    "own table": distinct,
    "several": lambda: {"a": ep.reduce.Sum("loss"), "b": [ep.reduce.ArgMin("steps")]},
}
# The others are asked for drawn values, or below.
CHECKED = ["variance", "top", "own table", "mean", "argmax", "several"]


@pytest.mark.parametrize("name", slow_unless(CHECKED[:3], CHECKED))
def test_each_reducer_keeps_every_law(name):
    ept.check_reducer(REDUCERS[name](), VALUES)


@pytest.mark.parametrize("name", ["min", "histogram", "own"])
def test_ties_infinities_and_nan_break_no_law(name):
    spoilt = jnp.array([1.0, jnp.nan, 1.0, -jnp.inf, 1.0, jnp.inf, jnp.nan])
    ept.check_reducer(REDUCERS[name](), {**VALUES, "loss": spoilt})


@few
@hp.given(st.data())
def test_every_reducer_keeps_every_law_for_drawn_values(data):
    make = REDUCERS[data.draw(st.sampled_from(list(REDUCERS)), label="reducer")]
    size = data.draw(st.sampled_from([3, 8]), label="points")
    struct = {
        name: jax.ShapeDtypeStruct((size, *v.shape), v.dtype)
        for name, v in OUTPUT.items()
    }
    values = data.draw(ept.arrays(struct), label="values")
    ept.check_reducer(make(), {**values, "steps": jnp.abs(values["steps"])})


@pytest.mark.parametrize("dtype", slow_unless({"bfloat16"}, ["bfloat16", "bool"]))
def test_reducers_keep_their_laws_for_every_dtype(dtype):
    values = jnp.asarray(np.arange(7) % 3, dtype)
    ept.check_reducer([ep.reduce.Var(), ep.reduce.ArgMax()], values)
