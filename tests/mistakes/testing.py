"""The property-test kit: laws and strategies."""

import equinox as eqx
import hypothesis.strategies as st
import jax.random as jr
import numpy as np
from hypothesis.errors import InvalidArgument
from jax import ShapeDtypeStruct as Struct
from jax.numpy import sin
from jaxtyping import Array, Float, Int
from support.strategies import drawn

import eqx_pipe as ep
import eqx_pipe.testing as ept

from .common import key, ones


def unannotated(x):
    return x


def annotated(x: Float[Array, " n"]) -> Float[Array, " n"]:
    return x


def unsatisfiable(x: Float[Array, " n"], y: Float[Array, " n-90"]):
    return x


def bare(x: Array):
    return x


def unread(x: "Nowhere"):  # noqa: F821
    return x


class Refuses(eqx.Module):
    size: int

    def __check_init__(self):
        raise ValueError("never")


class Abstract(eqx.Module):
    size: eqx.AbstractVar[int]


async def waiting(x: Float[Array, " n"]):
    return x


LAWS = [
    (
        "coroutine",
        lambda: ept.given_typed(waiting),
        InvalidArgument,
        "asyncio.run",
    ),
    ("axis 3", lambda: ept.check_axis(3), TypeError, "Give an `Axis`"),
    (
        "a random axis",
        lambda: ept.check_axis(ep.Random(jr.normal, 2)),
        ValueError,
        "key=jax.random.key",
    ),
    ("loader 3", lambda: ept.check_loader(3, key=key()), TypeError, "Give a `Loader"),
    (
        "one value",
        lambda: ept.check_reducer(ep.reduce.Mean(), ones()),
        ValueError,
        "three po",
    ),
    ("reducer 3", lambda: ept.check_reducer(3, ones(5)), TypeError, "or a pytree of"),
    (
        "skip",
        lambda: ept.check_function(sin, ones(2), skip="grad"),
        TypeError,
        "a tuple of",
    ),
    (
        "no law",
        lambda: ept.check_function(sin, ones(2), only=("derivatives",)),
        ValueError,
        "derivative",
    ),
    (
        "kwargs 3",
        lambda: ept.check_function(sin, kwargs=3),
        TypeError,
        "by name",
    ),
    (
        "function 3",
        lambda: ept.check_function(3, ones(2)),
        TypeError,
        "A stage is a callable",
    ),
    (
        "reference 3",
        lambda: ept.check_function(sin, ones(2), reference=3),
        TypeError,
        "Give a function that makes",
    ),
    (
        "minus one program",
        lambda: ept.assert_compiles(-1).__enter__(),
        ValueError,
        "at least 0",
    ),
    ("rtol", lambda: ept.check_function(sin, ones(2), rtol=-1), ValueError, "at least"),
    ("atol", lambda: ept.check_function(sin, ones(2), atol="a"), TypeError, "None for"),
]

_STRATEGIES = [
    ("arrays", lambda: ept.arrays(3), "a pytree of `jax.ShapeDtypeStruct"),
    ("a number", lambda: ept.arrays({"a": 3.0}), "arrays of these shapes"),
    ("no array", lambda: ept.arrays({}), "a pytree of `jax.ShapeDtypeStruct"),
    ("max_shapes", lambda: ept.arguments(annotated, max_shapes=0), "at least 1"),
    ("min_size", lambda: ept.from_jaxtyping(Int, min_size=-1), "at least 0"),
    ("elements", lambda: ept.arrays(Struct((), "f4"), elements=1), "strategies.just"),
    ("depth", lambda: ept.pipelines(Struct((), "f4"), max_depth=-1), "at least 0"),
    (
        "own stages",
        lambda: ept.pipelines(Struct((), "f4"), stages=3),
        "a list of strat",
    ),
    (
        "a maker of numbers",
        lambda: ept.pipelines(Struct((), "f4"), stages=[lambda s: 3]),
        "Return a strategy of stages",
    ),
    ("own axes", lambda: ept.spaces(axes=[3]), "a list of strategies of axes"),
    ("spaces", lambda: ept.spaces(max_axes="2"), "integer of at least 1"),
    ("fn 3", lambda: ept.arguments(3), "Give a function with annotations"),
    ("bare", lambda: ept.arguments(unannotated), "Annotate it, or give a strat"),
    ("z", lambda: ept.arguments(annotated, z=st.none()), "Known names: `x`"),
    ("x 3", lambda: ept.arguments(annotated, x=3), "strategies.just"),
    ("x None", lambda: ept.arguments(annotated, x=None), r"strategies.none\(\)"),
    ("unread", lambda: ept.arguments(unread), "outside of `if TYPE_CHECKING:`"),
    ("no sizes", lambda: ept.arguments(unsatisfiable), "Change the annotation, or"),
    (
        "a wrong rank",
        lambda: ept.arguments(annotated, x=st.just(np.ones((2, 2), np.float32))),
        "whose values satisfy the annotation",
    ),
    ("n/0", lambda: ept.from_jaxtyping(Float[Array, " n/0"]), "Its names are axes"),
]

# Strategies answer when they are drawn from, and always with the same error.
STRATEGIES = [
    (name, lambda make=make: drawn(make(), 1), InvalidArgument, cure)
    for name, make, cure in _STRATEGIES
]
