"""Every reducer keeps the laws that let a sweep split, merge and compile it."""

import hypothesis as hp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.helpers import few, slow_unless
from support.reducers import REDUCERS

import eqx_pipe as ep
import eqx_pipe.testing as ept

VALUES = {
    "loss": jnp.array([0.5, -1.25, 2.0, 0.5, -3.5, 1.0, 0.25]),
    "steps": jnp.array([4, 4, 1, 9, 1, 9, 0], jnp.int32),
}


def distinct():
    """Return a reducer with a table for a state: how often each step count came."""
    return ep.reduce.Reducer(
        init=lambda s: jnp.zeros(10, jnp.int32),
        update=lambda table, v: table.at[v].add(1),
        merge=lambda a, b: a + b,
        finish=lambda table: (table > 0).sum(),
        by="steps",
    )


MADE = {
    **{name: lambda make=make: make(by="loss") for name, (make, _) in REDUCERS.items()},
    "of all leaves": lambda: ep.reduce.Mean(),
    "unbiased": lambda: ep.reduce.Var("loss", ddof=1),
    "of a function": lambda: ep.reduce.Sum(lambda out: out["loss"] ** 2),
    "few buffers": lambda: ep.reduce.Quantile(0.3, "loss", size=4),
    "table": distinct,
    "several": lambda: {"a": ep.reduce.Sum("loss"), "b": [ep.reduce.ArgMin("steps")]},
}
# The others are asked for drawn values, or below.
CHECKED = ["unbiased", "top", "table", "few buffers", "mean", "argmax", "several"]


@pytest.mark.parametrize("name", slow_unless(CHECKED[:2], CHECKED))
def test_each_reducer_keeps_every_law(name):
    ept.check_reducer(MADE[name](), VALUES)


@pytest.mark.parametrize(
    "name", slow_unless({"min"}, ["min", "histogram", "first and last"])
)
def test_ties_infinities_and_nan_break_no_law(name):
    spoilt = jnp.array([1.0, jnp.nan, 1.0, -jnp.inf, 1.0, jnp.inf, jnp.nan])
    ept.check_reducer(MADE[name](), {**VALUES, "loss": spoilt})


@few
@hp.given(st.data())
def test_every_reducer_keeps_every_law_for_drawn_values(data):
    make = MADE[data.draw(st.sampled_from(list(MADE)), label="reducer")]
    size = data.draw(st.sampled_from([3, 8]), label="points")
    struct = {n: jax.ShapeDtypeStruct((size,), v.dtype) for n, v in VALUES.items()}
    values = data.draw(ept.arrays(struct), label="values")
    ept.check_reducer(make(), {**values, "steps": jnp.abs(values["steps"])})


@pytest.mark.parametrize("dtype", slow_unless({"bfloat16"}, ["bfloat16", "bool"]))
def test_reducers_keep_their_laws_for_every_dtype(dtype):
    values = jnp.asarray(np.arange(7) % 3, dtype)
    ept.check_reducer([ep.reduce.Var(), ep.reduce.ArgMax()], values)
