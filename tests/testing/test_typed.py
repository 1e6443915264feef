"""`given_typed` and `arguments` on functions, modules and containers."""

import time
from collections.abc import Callable

import equinox as eqx
import hypothesis as hp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis.errors import InvalidArgument
from jaxtyping import Array, Float, Float64, Int, TypeCheckError
from support.strategies import drawn

import eqx_pipe.testing as ept

few = hp.settings(
    max_examples=3,
    database=None,
    report_multiple_bugs=False,
    phases=[hp.Phase.generate],  # shrinking is hypothesis's, and takes long
)


def passes(fn, **options):
    few(ept.given_typed(fn, **options))()


class Narrows(eqx.Module):
    weights: Float[Array, "small large"]

    def __call__(self, x: Float[Array, " large"]) -> Float[Array, " small"]:
        return x[: self.weights.shape[0]]

    def by_value(
        self, x: Float[Array, " large"]
    ) -> Float[Array, " {self.weights.shape[0]}"]:
        return x[: self.weights.shape[0]]

    def wrong(
        self, x: Float[Array, " large"]
    ) -> Float[Array, " {self.weights.shape[0]}"]:
        return x


def test_a_method_is_given_arguments_that_fit_the_fields():
    narrows = Narrows(jnp.ones((2, 3)))
    for call in (narrows, narrows.__call__):
        found = {(v["x"].shape, v["x"].dtype) for v in drawn(ept.arguments(call))}
        assert found == {((3,), jnp.dtype("float32"))}
    passes(narrows)
    passes(narrows.by_value)
    with pytest.raises(TypeCheckError, match="return value of .*wrong"):
        passes(narrows.wrong)


class Widens(eqx.Module):
    weights: Float[Array, "small large"]

    def __call__(self, x: Float[Array, " large"]) -> Float[Array, " small"]:
        return x


def test_fields_bind_names_for_the_return_value():
    with pytest.raises(TypeCheckError, match="return value of .*__call__"):
        passes(Widens(jnp.ones((2, 3))))
    passes(Widens(jnp.ones((3, 3))))


def test_sizes_and_special_numbers_on_request():
    def sizes(**options):
        return {
            v.size for v in drawn(ept.from_jaxtyping(Float[Array, " n"], **options), 60)
        }

    assert sizes() == {0, 1, 2, 3, 5}
    assert sizes(sizes=(4, 8)) == {4, 8}
    for options, holds in [
        ({}, lambda x: jnp.isnan(x).any()),
        ({"allow_nan": False}, lambda x: jnp.isinf(x).any()),
        ({"min_value": 100, "max_value": 1000}, lambda x: (x >= 100).all()),
    ]:
        hint = Float[Array, " 3"] | Int[Array, " 3"]
        hp.find(
            ept.from_jaxtyping(hint, elements=options),
            lambda x, holds=holds: bool(holds(x)),
        )
    with pytest.raises(InvalidArgument, match="from_dtype"):
        drawn(ept.from_jaxtyping(Float[Array, ""], elements={"huge": True}))


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


def test_a_law_does_not_blame_the_stage_for_64_bits_that_jax_cuts():
    (x,) = drawn(ept.from_jaxtyping(Float64[np.ndarray, " 3"]), 1)
    assert x.dtype == np.float64
    ept.check_function(lambda x: x, x + 0.3, only=("jit",))


def test_a_type_that_hypothesis_does_not_know_names_the_cure():
    with pytest.raises(InvalidArgument, match="register_type_strategy"):
        drawn(ept.from_jaxtyping(type("Odd", (), {"__init__": lambda s, x: None})), 1)


def applied(by: Callable[[Array], Array], to: Float[Array, " n"]) -> Array:
    return by(to)


def test_functions_are_given_by_strategies():
    passes(applied, by=st.just(jnp.tanh))
    with pytest.raises(InvalidArgument, match="functions are not drawn.*Give it by"):
        passes(applied)


def test_compiling_may_take_longer_than_hypothesis_s_deadline():
    def slow(x: Float[Array, ""]) -> Float[Array, ""]:
        time.sleep(0.21)
        return x

    ept.given_typed(slow, x=st.just(jnp.zeros(())))()


def scaled(x: Float[Array, " n"], by: float = 2.0, mask: Array | None = None) -> Array:
    assert by == 2.0 and mask is None
    return x * by


def test_defaults_are_kept_unless_asked_for():
    passes(scaled)
    assert all("by" in v for v in drawn(ept.arguments(scaled, by=...)))


def bare(x: Array, y: Array) -> Array:
    assert x.shape == y.shape
    return x + y


def test_bare_arrays_agree():
    passes(bare)
    fixed = st.just(jnp.ones((2, 5)))
    assert drawn(ept.arguments(bare, x=fixed), 1)[0]["y"].shape == (2, 5)


def apart(
    y: Float[Array, "a b c"], x: Float[Array, " a-b-c"]
) -> Float[Array, " a-b-c"]:
    return x


def test_symbolic_axes_are_solved():
    passes(apart)
