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


class Operator(eqx.Module):
    """An array with a method, and nothing to call."""

    matrix: jax.Array

    def mv(self, x):
        return self.matrix @ x


def in_cell(f):
    return lambda x: f(x)


def in_default(f):
    return lambda x, f=f: f(x)


def in_keyword(f):
    def call(x, *, f=f):
        return f(x)

    return call


def decorated(f):
    @ft.wraps(f)
    def wrapper(*args):
        return f(*args)

    return wrapper


WRAPPERS = {
    "cell": in_cell,
    "default": in_default,
    "keyword": in_keyword,
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

    with pytest.raises(ValueError, match=r"hides parameters.*`eqx_pipe.frozen\(\.\.\."):
        ep.chain(wrapped(LAYER))
    for harmless in (
        jnp.tanh,
        eqx.nn.Identity(),
        ep.frozen(LAYER),
        lambda x: x * TABLE,
    ):
        ep.chain(wrapped(harmless))
    ep.chain(ep.frozen(wrapped(LAYER)))


BASE = r"Make it a field of a Module: a subclass of `eqx_pipe\.Stage`"
HIDDEN = {
    "vmap": (jax.vmap(LAYER), "`__wrapped__`", r"Write `eqx_pipe\.batched\(layer\)`"),
    "checkpoint": (
        jax.checkpoint(LAYER),
        "`__wrapped__`",
        r"Write `equinox\.filter_checkpoint\(layer\)`",
    ),
    "jit": (jax.jit(LAYER), "`__wrapped__`", r"Give the module itself.*filter_jit"),
    "grad": (jax.grad(LAYER), "`__wrapped__`", r"Write `equinox\.filter_grad"),
    "partial": (
        ft.partial(lambda f, x: f(x), LAYER),
        "partial argument `0`",
        r"Use `equinox\.Partial`",
    ),
    "method": (LAYER.__call__, "`__self__`", "Give the module itself"),
    "cell": (in_cell(LAYER), "closure cell `f`", BASE),
    "default": (in_default(LAYER), "default `f`", BASE),
    "global": (lambda x: LAYER(x), "global `LAYER`", BASE),
    "pipeline": (in_cell(ep.chain(LAYER)), "`Chain` .closure cell `f`", BASE),
    "not callable": ((lambda c: lambda x: c.encode(x))(Coder(LAYER)), "cell `c`", BASE),
    "in a layer": (eqx.nn.Lambda(in_cell(LAYER)), r"`\.fn` of `stages\[0\]`", BASE),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_the_message_names_what_is_hidden_and_the_cure(name):
    stage, place, cure = HIDDEN[name]
    with pytest.raises(ValueError, match=rf"{place}.*{cure}"):
        ep.chain(stage)


def test_all_that_is_hidden_is_named_once():
    other = eqx.nn.MLP(3, 3, 3, 1, key=KEY)
    with pytest.raises(ValueError) as caught:
        ep.chain(lambda x: LAYER(other(LAYER(x))))
    listed = str(caught.value).split("those of ")[1].split(". ")[0]
    assert sorted(listed.split(", ")) == [
        "`Linear` (global `LAYER`)",
        "`MLP` (closure cell `other`)",
    ]


MESH = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
RECORDS = ep.data.ArraySource(jnp.ones((4, 3)))
SPEC = jax.sharding.PartitionSpec()

PLACES = {
    "chain": lambda f: ep.chain(f),
    "named": lambda f: ep.chain(a=f),
    "parallel": lambda f: ep.parallel(f),
    "merge": lambda f: ep.parallel(jnp.sin, merge=f),
    "weighted": lambda f: ep.weighted(f),
    "weights": lambda f: ep.weighted(jnp.sin, weights=f),
    "gated": lambda f: ep.gated(f, gates=(jnp.any,)),
    "gate": lambda f: ep.gated(jnp.sin, gates=(f,)),
    "pred": lambda f: ep.cond(f, jnp.sin),
    "then": lambda f: ep.cond(jnp.any, f),
    "otherwise": lambda f: ep.cond(jnp.any, jnp.sin, f),
    "selector": lambda f: ep.switch(f, jnp.sin),
    "switch": lambda f: ep.switch(jnp.argmax, f),
    "at": lambda f: ep.at("a", f),
    "repeat": lambda f: ep.repeat(lambda key: f, 2, key=KEY),
    "batched": lambda f: ep.batched(f),
    "graph": lambda f: ep.graph({"a": f}, {"a": []}, "a"),
    "on": lambda f: ep.sharding.on(MESH, f),
    "sharded": lambda f: ep.sharding.shard_map(f, MESH, SPEC, SPEC),
    "pipe": lambda f: ep.data.Loader(RECORDS, f, batch_size=2),
    "batch_pipe": lambda f: ep.data.Loader(RECORDS, batch_pipe=f, batch_size=2),
}


@pytest.mark.parametrize("place", PLACES)
def test_in_every_place_of_a_stage(place):
    with pytest.raises(ValueError, match=r"hides parameters.*batched"):
        PLACES[place](jax.vmap(LAYER))


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


def test_a_name_that_is_an_attribute_is_no_global():
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


def test_values_that_hold_themselves_are_no_error():
    loop = {"itself": {}, 1: "keys without order"}
    loop["itself"]["back"] = loop
    ep.chain(lambda x: loop and x)


def test_constants_are_accepted():
    operator, scale = Operator(jnp.eye(3)), jnp.ones(3)
    tables = {"a": np.ones(2), "b": 1.0}

    def stage(x, *, shift=TABLE):
        return operator.mv(x) * scale + shift + tables["b"]

    assert ep.summary(ep.chain(ft.partial(stage))).row.parameters == 0


def nnx_module():
    """A module as those of flax are, which is not installed here."""
    base = type("Module", (), {"__module__": "flax.nnx.module"})
    return type("BatchNorm", (base,), {"__call__": lambda self, x: x})()


def test_modules_of_flax_nnx_are_refused():
    module = nnx_module()
    for stage in (module, lambda x: module(x), ft.partial(lambda m, x: m(x), module)):
        with pytest.raises(ValueError, match=r"`BatchNorm`.*nnx\.split.*nnx\.merge"):
            ep.chain(stage)


def test_functions_that_are_no_stages_may_hold_a_model():
    assert ep.sweep(
        lambda p: LAYER(p["x"]), {"x": ep.Values(jnp.ones((2, 3)))}
    ).ok.all()
    check_function(lambda x: LAYER(x), jnp.ones(3), only=("vmap",))
    assert len(ep.repeat(lambda key: ep.chain(LAYER), 2, key=KEY)) == 2
    loader = ep.data.Loader(RECORDS, batch_size=2)
    _, losses, _ = loader.scan(
        lambda carry, batch: (carry, jnp.sum(jax.vmap(LAYER)(batch))),
        0,
        loader.init(KEY),
    )
    assert losses.shape == (2,)


def test_vmap_in_the_call_of_a_module_is_as_ever():
    class Model(eqx.Module):
        layer: eqx.nn.Linear

        def __call__(self, x):
            return jax.vmap(self.layer)(x)

    pipe = ep.chain(Model(LAYER), jnp.sum)
    gradient = eqx.filter_grad(lambda pipe: pipe(jnp.ones((2, 3))))(pipe)
    assert jnp.all(gradient[0].layer.weight == 2)
