"""Parameters hidden in a function are refused wherever a stage is built."""

import functools as ft

import equinox as eqx
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
import pytest
from hypothesis import given

import eqx_pipe as ep
from eqx_pipe.testing import check_function

KEY = jr.key(0)
LAYER = eqx.nn.Linear(3, 3, key=KEY)
TABLE = jnp.arange(3.0)


class Coder(eqx.Module):
    """A module that is not callable, with a layer that is."""

    layer: eqx.nn.Linear

    def encode(self, x):
        return self.layer(x)


CODER = Coder(LAYER)


def in_cell(f):
    return lambda x: f(x)


def decorated(f):
    @ft.wraps(f)
    def wrapper(*args):
        return f(*args)

    return wrapper


WRAPPERS = {
    "cell": in_cell,
    "default": lambda f: lambda x, f=f: f(x),
    "keyword": lambda f: lambda x, *, f=f: f(x),
    "list": lambda f: (lambda fs: lambda x: fs[0](x))([f]),
    "dict": lambda f: (lambda fs: lambda x: fs["a"](x))({"a": f, 1: None}),
    "inner": lambda f: lambda x: (lambda y: f(y))(x),
    "decorated": decorated,
    "partial": lambda f: ft.partial(lambda f, x: f(x), f),
    "partial keyword": lambda f: ft.partial(lambda x, f: f(x), f=f),
    "jit": jax.jit,
    "vmap": jax.vmap,
    "filter_jit of a function": lambda f: eqx.filter_jit(in_cell(f)),
}


@given(st.lists(st.sampled_from(sorted(WRAPPERS)), min_size=1, max_size=2))
def test_hidden_in_a_function_or_one_level_deeper(names):
    def wrapped(f):
        return ft.reduce(lambda f, name: WRAPPERS[name](f), names, f)

    with pytest.raises(ValueError, match=r"hides the param.*`eqx_pipe.frozen\(\.\.\."):
        ep.chain(wrapped(LAYER))
    for harmless in (jnp.tanh, ep.frozen(LAYER), lambda x: x * TABLE):
        ep.chain(wrapped(harmless))
    ep.chain(ep.frozen(wrapped(LAYER)))


HIDDEN = {
    "vmap": (jax.vmap(LAYER), "`__wrapped__`"),
    "jit": (jax.jit(LAYER), "`__wrapped__`"),
    "partial": (ft.partial(lambda f, x: f(x), LAYER), "partial argument `0`"),
    "method": (LAYER.__call__, "`__self__`"),
    "cell": (in_cell(LAYER), "closure cell `f`"),
    "default": (WRAPPERS["default"](LAYER), "default `f`"),
    "global": (lambda x: LAYER(x), "global `LAYER`"),
    "pipeline": (in_cell(ep.chain(LAYER)), "`Chain` .closure cell `f`"),
    "not callable": ((lambda c: lambda x: c.encode(x))(Coder(LAYER)), "cell `c`"),
    "in a layer": (eqx.nn.Lambda(in_cell(LAYER)), r"`\.fn` of `stages\[0\]`"),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_the_message_names_the_place(name):
    stage, place = HIDDEN[name]
    with pytest.raises(ValueError, match=rf"{place}.*Give the layer itself"):
        ep.chain(stage)


def test_all_that_is_hidden_is_named_once():
    other = eqx.nn.MLP(3, 3, 3, 1, key=KEY)
    with pytest.raises(ValueError) as caught:
        ep.chain(lambda x: LAYER(other(LAYER(x))))
    listed = str(caught.value).split("parameters of ")[1].split(" in a function")[0]
    assert sorted(listed.split(", ")) == [
        "`Linear` (global `LAYER`)",
        "`MLP` (closure cell `other`)",
    ]


VISIBLE = {
    "layer": LAYER,
    "method of a module": Coder(LAYER).encode,
    "filter_vmap": eqx.filter_vmap(LAYER),
    "filter_jit": eqx.filter_jit(LAYER),
    "filter_checkpoint": eqx.filter_checkpoint(LAYER),
    "Partial": eqx.Partial(lambda f, x: f(x), LAYER),
    "tree_util.Partial": jtu.Partial(lambda f, x: f(x), LAYER),
    "batched": ep.batched(LAYER),
}


@pytest.mark.parametrize("name", VISIBLE)
def test_what_keeps_its_parameters_is_accepted(name):
    pipe = ep.chain(VISIBLE[name])
    shapes = [x.shape for x in jtu.tree_leaves(eqx.filter(pipe, eqx.is_inexact_array))]
    assert shapes == [(3, 3), (3,)]


def test_harmless_functions_are_accepted():
    loop = {"itself": {}, 1: "keys without order"}
    loop["itself"]["back"] = loop
    ep.chain(lambda x: loop and x)
    ep.chain(lambda batch: batch.LAYER)
    ep.chain(lambda x: not_defined_yet(x))  # noqa: F821  # pyright: ignore


def test_a_function_may_read_settings_of_a_global_module():
    """Not its parameters, nor call its methods."""
    scaled = ep.chain(lambda x: x * LAYER.in_features)
    assert scaled(jnp.ones(())).item() == 3.0
    with pytest.raises(ValueError, match="global `CODER.encode`"):
        ep.chain(lambda x: CODER.encode(x))
    with pytest.raises(ValueError, match="global `CODER.layer`"):
        ep.chain(lambda x: CODER.layer(x))


def test_constants_are_accepted():
    shared, scale = eqx.nn.Embedding(3, 3, key=KEY).weight, jnp.ones(3)
    tables = {"a": np.ones(2), "b": 1.0}

    def stage(x, *, shift=TABLE):
        return shared @ x * scale + shift + tables["b"]

    assert ep.summary(ep.chain(ft.partial(stage))).parameters == 0


def test_functions_that_are_no_stages_may_hold_a_model():
    points = {"x": ep.Values(jnp.ones((2, 3)))}
    assert ep.sweep(lambda p: LAYER(p["x"]), points).ok.all()
    check_function(lambda x: LAYER(x), jnp.ones(3), only=("vmap",))
    assert len(ep.repeat(lambda key: ep.chain(LAYER), 2, key=KEY)) == 2
