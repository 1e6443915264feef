"""`from_jaxtyping`, `arguments`, `given_typed`: jaxtyping's language, drawn from."""

import collections
import dataclasses
import enum
from typing import Any, Literal, NamedTuple

import beartype
import equinox as eqx
import hypothesis as hp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import pytest
from hypothesis.errors import InvalidArgument
from jaxtyping import (
    Array,
    ArrayLike,
    Complex,
    Float,
    Int,
    Key,
    PRNGKeyArray,
    PyTree,
    Scalar,
    UInt8,
    jaxtyped,
)
from support.strategies import drawn

import eqx_pipe.testing as ept


class Pair(NamedTuple):
    first: Float[Array, " n"]
    second: Float[Array, " n"]


@dataclasses.dataclass
class Record:
    image: Float[Array, "h w"]
    label: Int[Array, ""]


class Model(eqx.Module):
    weights: Float[Array, "out in"]
    bias: Float[Array, " out"]
    name: str = eqx.field(static=True, default="model")


class Color(enum.Enum):
    RED = 1
    BLUE = 2


def holds(value, annotation):
    """Return whether jaxtyping itself accepts a value."""

    def fn(value):
        pass

    fn.__annotations__ = {"value": annotation}
    try:
        jaxtyped(fn, typechecker=beartype.beartype)(value)
    except TypeError:
        return False
    return True


ANNOTATIONS = [
    Float[Array, ""],
    Float[Array, "n m n-1"],
    Float[Array, "*batch n"],
    Float[Array, "n ..."],
    Float[Array, "_ n _"],
    Float[Array, "#n n"],
    UInt8[Array, " n"],
    Complex[Array, " n"],
    Key[Array, " n"],
    Float[Float[Array, " n"], " m"],
    Float[ArrayLike, "..."],
    PRNGKeyArray,
    Scalar,
    Float[Array, " n"] | None,
    tuple[int, ...],
    Literal["a", "b"],
    Color,
    dict[str, Float[Array, " n"]],
    collections.deque[int],
    collections.OrderedDict[str, int],
    set[int],
    Pair,
    Record,
    Model,
    PyTree[Float[Array, " ?n"], "T"],
    Any,
]


@pytest.mark.parametrize("annotation", ANNOTATIONS, ids=str)
@hp.settings(max_examples=max(3, hp.settings().max_examples // 4))
@hp.given(data=st.data())
def test_values_satisfy_their_annotation(annotation, data):
    value = data.draw(ept.from_jaxtyping(annotation))
    assert holds(value, annotation)
    if annotation is Record:
        assert value.image.ndim == 2
    if annotation is Model:
        assert value.weights.shape[0] == value.bias.shape[0]


def several(
    x: Float[Array, "*batch n"],
    y: Float[Array, "*#batch n+1"],
    same: PyTree[Float[Array, " ?k"], "T"],
    like: PyTree[Float[Array, " ?k"], "T"],
    inner: PyTree[int, "S"],
    both: PyTree[int, "S T"],
    size: int,
    by_value: Float[Array, " {abs(size)+1}"],
    key: PRNGKeyArray,
    default=3,
):
    return None


@hp.given(ept.arguments(several))
def test_names_are_bound_alike_in_all_arguments(given):
    assert "default" not in given
    x, y = given["x"], given["y"]
    assert y.shape[-1] == x.shape[-1] + 1
    assert jnp.broadcast_shapes(x.shape[:-1], y.shape[:-1]) == x.shape[:-1]
    shapes = [jax.tree.map(jnp.shape, given[name]) for name in ("same", "like")]
    assert shapes[0] == shapes[1]
    assert given["by_value"].shape == (abs(given["size"]) + 1,)
    jaxtyped(several, typechecker=beartype.beartype)(**given)


def test_fields_that_disagree_with_an_argument_are_let_be():
    class Maps(eqx.Module):
        first: Float[Array, " n"]
        second: Float[Array, " n"]

        def __call__(self, x: Float[Array, " n"]):
            return x

    maps = eqx.tree_at(lambda m: m.second, Maps(jnp.ones(2), jnp.ones(2)), jnp.ones(3))
    drawn(ept.arguments(maps))


def scale(x: Float[Array, "b n"], by: Float[Array, " n"]) -> Float[Array, "b n"]:
    return x * by[None]


@hp.given(ept.arguments(scale, by=st.just(jnp.ones(5)), elements=st.integers(0, 1)))
def test_overrides_bind_names(given):
    assert given["x"].shape[1] == 5
    assert bool(jnp.all((given["x"] == 0) | (given["x"] == 1)))


@hp.given(ept.from_jaxtyping(jax.Array, elements=st.just(0.5)))
def test_elements_fill_an_array_of_any_shape(x):
    assert bool(jnp.all(x == 0.5))


def test_a_typed_function_is_a_property_test():
    ept.given_typed(scale)()

    @ept.given_typed(x=st.just(jnp.ones((2, 3))))
    def test(x: Float[Array, "b n"], by: Float[Array, " n"]) -> Float[Array, "b n"]:
        assert x.shape == (2, 3)
        return x * by[None]

    test()


@pytest.mark.usefixtures("unchecked")
def test_elements_that_do_not_fit_are_refused():
    with pytest.raises(InvalidArgument, match="0.5 .*cannot be represented as .*int32"):
        drawn(ept.from_jaxtyping(Int[Array, " n"], elements=st.just(0.5)))
