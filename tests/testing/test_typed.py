"""`given_typed` and `arguments` on code that was not written for them."""

import abc
import collections
import functools
import time
import typing
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import equinox as eqx
import hypothesis as hp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis.errors import InvalidArgument
from jaxtyping import Array, ArrayLike, Float, Float64, Int, PyTree
from numpy.typing import NDArray

import eqx_pipe.testing as ept

if typing.TYPE_CHECKING:
    from fractions import Fraction

    from nowhere import Missing

few = hp.settings(
    max_examples=3,
    database=None,
    report_multiple_bugs=False,
    phases=[hp.Phase.generate],  # shrinking is hypothesis's, and takes long
)


def drawn(strategy, examples=3):
    """What a strategy gives, the simplest first."""
    found = []

    @hp.settings(max_examples=examples, database=None, derandomize=True)
    @hp.given(strategy)
    def run(value):
        found.append(value)

    run()
    return found


def passes(fn, **options):
    few(ept.given_typed(fn, **options))()


# Fields of a module.


class Narrows(eqx.Module):
    weights: Float[Array, "small large"]

    def __call__(self, x: Float[Array, " large"]) -> Float[Array, " small"]:
        return x[: self.weights.shape[0]]

    def wrong(self, x: Float[Array, " large"]) -> Float[Array, " small"]:
        return x

    def by_value(
        self, x: Float[Array, " large"]
    ) -> Float[Array, " {self.weights.shape[0]}"]:
        return x[: self.weights.shape[0]]


def test_what_a_method_returns_is_held_to_the_axes_of_fields():
    narrows = Narrows(jnp.ones((2, 3)))
    passes(narrows)
    passes(narrows.by_value)
    with pytest.raises(AssertionError, match=r"`wrong` returned float32\[3\]"):
        passes(narrows.wrong)


# Dtypes.


def test_floats_are_of_every_usual_kind():
    def dtypes(annotation):
        return {v.dtype.name for v in drawn(ept.from_jaxtyping(annotation), 40)}

    assert dtypes(Float[Array, ""]) == {"float32", "bfloat16", "float16"}
    assert "float64" not in dtypes(Float[np.ndarray, ""])
    jax.config.update("jax_enable_x64", True)
    try:
        assert "float64" in dtypes(Float[Array, ""])
        assert "int64" in dtypes(Int[Array, ""])
    finally:
        jax.config.update("jax_enable_x64", False)


def single(x: Float[Array, " n"], at: Int[Array, ""]) -> Float[Array, " n"]:
    assert x.dtype == "float32" and at.dtype == "int32"
    return x


def test_dtypes_are_those_that_are_asked_for():
    passes(single, dtypes=("float32",))
    with pytest.raises(AssertionError):
        hp.settings(few, max_examples=40)(ept.given_typed(single))()
    for wrong in ("float32", ("floating",)):
        with pytest.raises(InvalidArgument, match="`dtypes` is"):
            drawn(ept.arguments(single, dtypes=wrong), 1)


def test_a_law_does_not_blame_the_stage_for_64_bits_that_jax_cuts():
    (x,) = drawn(ept.from_jaxtyping(Float64[np.ndarray, " 3"]), 1)
    assert x.dtype == np.float64
    ept.check_function(lambda x: x, x + 0.3, only=("jit",))


# Classes.


class Shape(eqx.Module):
    @abc.abstractmethod
    def area(self) -> Float[Array, ""]: ...


class Square(Shape):
    side: Float[Array, ""]

    def area(self):
        return self.side**2


class Both(Shape):
    parts: tuple[Shape, Shape]

    def area(self):
        return self.parts[0].area() + self.parts[1].area()


def area(shape: Shape) -> Float[Array, ""]:
    return shape.area()


T = TypeVar("T")


class Boxed(eqx.Module, Generic[T]):
    inside: T
    many: list[T]


class OfFours(Boxed[Float[Array, " 4"]]):
    more: int


class Pair(typing.NamedTuple, Generic[T]):
    inside: T
    size: int


class OneOf(eqx.Module):
    even_size: int
    logits: Float[Array, " n"] | None
    probs: Float[Array, " n"] | None

    def __init__(
        self,
        even_size: int,
        logits: Float[Array, " n"] | None = None,
        probs: Float[Array, " n"] | None = None,
    ):
        if even_size % 2 or (logits is None) == (probs is None):
            raise ValueError("wants an even size, and one of two")
        self.even_size, self.logits, self.probs = even_size, logits, probs


class Known(eqx.Module):
    size: int


st.register_type_strategy(Known, st.just(Known(77)))


def test_modules_are_made_of_what_their_constructors_ask_for():
    passes(area)
    assert any(isinstance(v, Both) for v in drawn(ept.from_jaxtyping(Shape), 20))
    for linear in drawn(ept.from_jaxtyping(eqx.nn.Linear)):
        assert isinstance(linear, eqx.nn.Linear) and linear.use_bias
    (mlp,) = drawn(ept.from_jaxtyping(eqx.nn.MLP), 1)
    assert mlp.depth < 9 and callable(mlp.activation)
    for boxed in drawn(ept.from_jaxtyping(Boxed[Float[Array, "n 2"]])):
        assert boxed.inside.shape == boxed.many[0].shape == (len(boxed.inside), 2)
    assert drawn(ept.from_jaxtyping(Known), 1)[0].size == 77
    assert drawn(ept.from_jaxtyping(OfFours), 1)[0].inside.shape == (4,)
    assert drawn(ept.from_jaxtyping(Pair[Float[Array, " 4"]]), 1)[0].inside.shape == (
        4,
    )
    assert drawn(ept.from_jaxtyping(type[int]), 1) == [int]


class Turned(eqx.Module):
    sin: Array
    cos: Float[Array, "..."]

    def __check_init__(self):
        if self.sin.ndim != 2 or self.cos.ndim != 2 or self.sin.shape[1] % 2:
            raise ValueError("wants matrices of an even width")


def test_a_constructor_that_refuses_its_defaults_is_given_what_it_wants():
    (value,) = drawn(ept.from_jaxtyping(OneOf), 1)
    assert value.even_size == 2
    assert len(drawn(ept.from_jaxtyping(Turned), 20)) == 20


def step(
    optimiser: optax.GradientTransformation, params: PyTree[Float[Array, " ?n"], "T"]
) -> PyTree[Float[Array, " ?n"], "T"]:
    updates, _ = optimiser.update(params, optimiser.init(params), params)
    return optax.apply_updates(params, updates)


def test_optimisers_and_structs_are_drawn():
    passes(step)
    for tree in drawn(ept.from_jaxtyping(PyTree[jax.ShapeDtypeStruct])):
        assert all(isinstance(v, jax.ShapeDtypeStruct) for v in jax.tree.leaves(tree))


# Containers and functions.


@pytest.mark.parametrize(
    "kind",
    [
        collections.deque,
        collections.OrderedDict,
        collections.defaultdict,
        set,
        Iterator,
    ],
)
def test_containers_are_of_their_kind(kind):
    args = (str, int) if issubclass(kind, dict) else int
    (value,) = drawn(ept.from_jaxtyping(kind[args]), 1)
    assert isinstance(value, kind) and all(type(v) in (str, int) for v in value)


class Energy(typing.Protocol):
    def __call__(self, momentum: Array, *, mass: float = 1.0) -> float: ...


def applied(
    fn: Callable[[Array], Array],
    to: Float[Array, " n"],
    by: Callable[[int], float],
    energy: Energy,
) -> Float[Array, " n"]:
    return fn(to) * by(2) * energy(to, mass=2.0)


def test_functions_are_drawn():
    passes(applied)
    (any_of_all,) = drawn(ept.from_jaxtyping(Callable), 1)
    key = jax.random.key(0)
    assert any_of_all() is None and any_of_all(key, 1, by=2) is key
    assert any_of_all(("a", jnp.zeros(2)))[1].shape == (2,)


# Arguments.


def joined(
    first: Float[Array, " n"], /, *parts: Float[Array, " n"], axis: int = 0
) -> Float[Array, "_ n"]:
    assert parts
    return jnp.stack([first, *parts], axis)


def named(**parts: Float[Array, " n"]) -> Float[Array, " n"]:
    return sum(parts.values())


def test_compiling_may_take_longer_than_hypothesis_s_deadline():
    def slow(x: Float[Array, ""]) -> Float[Array, ""]:
        time.sleep(0.21)
        return x

    ept.given_typed(slow, x=st.just(jnp.zeros(())))()


def test_arguments_without_names_are_filled():
    passes(joined)
    passes(named)
    assert len(drawn(ept.arguments(named), 1)[0]) == 1


def scaled(x: Float[Array, " n"], by: float = 2.0, mask: Array | None = None) -> Array:
    assert by == 2.0 and mask is None
    return x * by


def test_defaults_are_kept_unless_asked_for():
    passes(scaled)
    assert all("by" in v for v in drawn(ept.arguments(scaled, by=...)))
    (given,) = drawn(ept.arguments(scaled, shapes={"mask": "n"}), 1)
    assert given["mask"].shape == given["x"].shape


def bare(x: Array, y: ArrayLike, key: Array, num_parts: int) -> Array:
    assert x.shape == y.shape and num_parts > 0
    return x + y + jax.random.normal(key, x.shape)


def test_bare_arrays_agree():
    passes(bare)
    for given in drawn(ept.arguments(bare, shapes={"Array": "h w 3", "y": "h"})):
        assert given["x"].shape[-1] == 3 and given["y"].shape == given["x"].shape[:1]
    fixed = st.just(jnp.ones((2, 5)))
    assert drawn(ept.arguments(bare, x=fixed), 1)[0]["y"].shape == (2, 5)


def sooner(x: Float[Array, " n+1"], y: Float[Array, " n"]) -> Float[Array, " n"]:
    return x[1:]


def apart(
    x: Float[Array, " a-b-c"], y: Float[Array, "a b c"]
) -> Float[Array, " a-b-c"]:
    return x


Together = tuple[Float[Array, " a-b-c"], tuple[Float[Array, "a b c"], int]]


def within(x: Together) -> Together:
    return x


def longer(x: Together) -> Together:
    return jnp.concatenate([x[0], x[0]]), x[1]


def test_symbolic_axes_may_come_before_what_names_them():
    passes(sooner)
    passes(apart)
    passes(within)
    with pytest.raises(AssertionError, match="`longer` returned"):
        passes(longer, min_size=1)


@functools.singledispatch
def halved(x: Float[Array, " n"], by: float = 2.0) -> Float[Array, " n"]:
    return x / by


def test_a_function_chosen_by_its_first_argument_gets_it_by_position():
    passes(halved)


def typed_elsewhere(x: Float[Array, " n"], how: "Missing" = None) -> "Missing":
    return x


def known_elsewhere(x: Float[Array, " n"], by: "Fraction") -> "Float[Array, ' n']":
    return x * float(by)


def half_known(
    x: Float[Array, " n"] | list["Missing"], y: NDArray[np.float32]
) -> Float[Array, " n"]:
    return x


def test_parts_that_cannot_be_read_are_left_aside():
    passes(half_known)


def test_names_for_type_checkers_alone_are_imported_or_named():
    passes(known_elsewhere, by=...)
    with pytest.warns(UserWarning, match="`Missing` cannot be read: NameError"):
        test = ept.given_typed(typed_elsewhere)
    few(test)()
    with pytest.raises(InvalidArgument, match="how=|name=strategy"):
        drawn(ept.arguments(typed_elsewhere, how=...), 1)


def counts(x: Float[Array, " n"]) -> Iterator[Float[Array, " n"]]:
    while True:
        yield x


def shortens(x: Float[Array, " n"]) -> Iterator[Float[Array, " n"]]:
    yield x
    yield x[1:]


def test_what_a_generator_yields_is_checked():
    passes(counts)
    with pytest.raises(AssertionError, match="`shortens` returned"):
        passes(shortens)
