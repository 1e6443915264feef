"""Broken stages: each is caught by the law it breaks."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from support.broken import (
    constant_key,
    draws_for_nothing,
    mixes_lanes,
)

import eqx_pipe as ep
import eqx_pipe.testing as ept

X, KEY = jnp.array([1.0, -2.0, 3.0]), jr.key(0)


# Not pure.


class Counter:
    """Counts its calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        return x * self.calls


class Remembers:
    """Gives the first input's sum for ever."""

    def __init__(self):
        self.first = None

    def __call__(self, x):
        if isinstance(x, jax.core.Tracer):
            return x
        self.last, last = x, getattr(self, "last", x)
        return x + last.sum()


def writes_into_its_input(x):
    x["a"] = x["a"] + 1
    return x["a"]


def writes_into_an_array(x):
    x[0] = 7.0
    return jnp.asarray(x) * 2


class Lists(eqx.Module):
    """Appends to a list that it holds."""

    seen: list

    def __call__(self, x, *, key=None):
        self.seen.append(1.0)
        return x


# Under transformations.


def branches_in_python(x):
    return x if x[0] > 0 else -x


def other_when_traced(x):
    return x if isinstance(x, jax.core.Tracer) else x + 1


def other_dtype_when_traced(x):
    traced = isinstance(x, jax.core.Tracer)
    return x.astype(jnp.bfloat16) if traced else x


def other_shape_when_traced(x):
    return x[None] if isinstance(x, jax.core.Tracer) else x


def numpy_doubles(x):
    return np.asarray(x, np.float64) if not isinstance(x, jax.core.Tracer) else x


def other_structure_when_traced(x):
    return (x,) if isinstance(x, jax.core.Tracer) else [x]


def no_batches(x):
    return jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


# Keys.


def same_key_twice(x, *, key):
    return x + jr.normal(key, x.shape) * jr.uniform(key, x.shape)


# Gradients.


def norm(x):
    return jnp.sqrt(jnp.sum(x**2))


def masked_log(x):
    return jnp.where(x > 0, jnp.log(x), 0.0)


@jax.custom_jvp
def wrong_derivative(x):
    return x**2


@wrong_derivative.defjvp
def _wrong_derivative(primals, tangents):
    return primals[0] ** 2, 3 * primals[0] * tangents[0]


@jax.custom_vjp
def nan_gradient(x):
    return x


nan_gradient.defvjp(lambda x: (x, None), lambda _, ct: (ct * jnp.nan,))


@jax.custom_vjp
def half_a_gradient(x):
    return x**2


half_a_gradient.defvjp(lambda x: (x**2, x), lambda x, ct: (ct * x,))


@jax.custom_vjp
def right_gradient(x):
    return x**2


right_gradient.defvjp(lambda x: (x**2, x), lambda x, ct: (2 * ct * x,))


def _transposed_wrongly(x):
    def transpose(_, ct):
        return 2.0 * ct

    return jax.custom_derivatives.linear_call(lambda _, v: 3.0 * v, transpose, (), x)


@jax.custom_jvp
def half_a_derivative(x):
    return jnp.sin(x) * x


@half_a_derivative.defjvp
def _half_a_derivative(primals, tangents):
    (x,), (t,) = primals, tangents
    return jnp.sin(x) * x, jnp.cos(x) * x * t


class NanParameter(ep.Stage):
    """A parameter at zero under a root."""

    scale: jax.Array

    def __call__(self, x, *, key=None):
        return x * jnp.sqrt(self.scale)


STAGES = {
    "counts its calls": ("pure", Counter(), X),
    "remembers an input": ("pure", Remembers(), X),
    "writes into its input": ("pure", writes_into_its_input, {"a": X}),
    "writes into an array": ("pure", writes_into_an_array, np.ones(3, np.float32)),
    "appends to a field": ("pure", Lists([0.0]), X),
    "branches in Python": ("jit", branches_in_python, X),
    "another when traced": ("jit", other_when_traced, X),
    "another dtype when traced": ("struct", other_dtype_when_traced, X),
    "another shape when traced": ("struct", other_shape_when_traced, X),
    "another structure when traced": ("struct", other_structure_when_traced, X),
    "float64 in NumPy": ("struct", numpy_doubles, X),
    "mixes lanes": ("vmap", mixes_lanes, X),
    "has no batching rule": ("vmap", no_batches, X),
    "a constant key": ("key", constant_key, X),
    "the same key twice": ("key", same_key_twice, X),
    "draws for nothing": ("key", draws_for_nothing, X),
    "norm at zero": ("grad", norm, jnp.zeros(3)),
    "masked logarithm": ("grad", masked_log, jnp.array([0.0, 1.0])),
    "NaN gradient": ("grad", nan_gradient, X),
    "wrong transpose": ("grad", _transposed_wrongly, X),
    "parameter under a root": ("grad", NanParameter(jnp.zeros(3)), X),
    "a root in bfloat16": ("grad", jnp.sqrt, jnp.zeros(2, jnp.bfloat16)),
}


def test_each_law_of_stages_alone_has_a_stage_that_breaks_it():
    # `test_planted_functions.py` has something for each of the others.
    alone = {"pure", "struct", "jit", "key", "grad"}
    assert alone <= {law for law, *_ in STAGES.values()}


@pytest.mark.parametrize("name", STAGES)
def test_a_broken_stage_is_caught(name):
    law, stage, x = STAGES[name]
    key = KEY if law == "key" else None
    with pytest.raises(AssertionError) as caught:
        getattr(ept, f"check_{law}")(stage, x, key=key)
    text = str(caught.value)
    assert f"check_{law}" in text and "difference: " in text


@pytest.mark.parametrize("stage", [wrong_derivative, half_a_derivative])
def test_a_wrong_derivative_is_caught_by_differences(stage):
    ept.check_grad(stage, X)
    with pytest.raises(AssertionError, match="central difference"):
        ept.check_grad(stage, X, numerical=True)


def test_a_wrong_custom_vjp_is_caught_by_differences():
    linear = eqx.nn.Linear(3, 2, key=KEY)
    ept.check_grad(half_a_gradient, X)
    with pytest.raises(AssertionError, match="central difference"):
        ept.check_grad(half_a_gradient, X, numerical=True)
    with pytest.raises(AssertionError, match="central difference"):
        wrong = ep.chain(linear, half_a_gradient)
        ept.check_grad(wrong, X, numerical=True, rtol=1e-2)
    ept.check_grad(right_gradient, 100 * X, numerical=True)
    ept.check_grad(ep.chain(linear, right_gradient), X, numerical=True)


def test_the_broken_stage_inside_a_pipeline_is_named():
    pipe = ep.chain(jnp.sin, ep.parallel({"good": jnp.tanh, "bad": norm}, merge="dict"))
    with pytest.raises(AssertionError) as caught:
        ept.check_stage(pipe, jnp.zeros(4))
    text = str(caught.value)
    assert "law `grad`" in text and "`1.bad` (norm)" in text
    assert "input: zeros float32[4]" in text
