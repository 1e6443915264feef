"""The property-test kit: laws and strategies."""

import hypothesis.strategies as st
import jax.random as jr
import numpy as np
from hypothesis.errors import InvalidArgument
from jax.numpy import sin
from jaxtyping import Array, Float

import eqx_pipe as ep
import eqx_pipe.testing as ept

from .common import ones


def unannotated(x):
    return x


def annotated(x: Float[Array, " n"]) -> Float[Array, " n"]:
    return x


def unsatisfiable(x: Float[Array, " n"], y: Float[Array, " n-90"]):
    return x


async def waiting(x: Float[Array, " n"]):
    return x


LAWS = {
    InvalidArgument: {"asyncio.run": lambda: ept.given_typed(waiting)},
    ValueError: {
        "key=jax.random.key": lambda: ept.check_axis(ep.Random(jr.normal, 2)),
        "three po": lambda: ept.check_reducer(ep.reduce.Mean(), ones()),
        "derivative": lambda: ept.check_function(sin, ones(2), only=("derivatives",)),
        "at least": lambda: ept.check_function(sin, ones(2), rtol=-1),
    },
}

STRATEGIES = {
    InvalidArgument: {
        "a pytree of `jax.ShapeDtypeStruct": lambda: ept.arrays({}),
        "arrays of these shapes": lambda: ept.arrays({"a": 3.0}),
        "Annotate it, or give a strat": lambda: ept.arguments(unannotated),
        "Known names: `x`": lambda: ept.arguments(annotated, z=st.none()),
        "strategies.just": lambda: ept.arguments(annotated, x=3),
        "Change the annotation, or": lambda: ept.arguments(unsatisfiable),
        "satisfy the annotation": lambda: ept.arguments(
            annotated, x=st.just(np.ones((2, 2), np.float32))
        ),
        "Its names are axes": lambda: ept.from_jaxtyping(Float[Array, " n/0"]),
    }
}
