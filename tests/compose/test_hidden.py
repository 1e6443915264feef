"""Parameters hidden in a function are refused wherever a stage is built."""

import functools as ft
import types

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
from eqx_pipe.testing import check_vmap

KEY = jr.key(0)
LAYER = eqx.nn.Linear(3, 3, key=KEY)
TABLE = jnp.arange(3.0)
SETTINGS = types.SimpleNamespace(net=LAYER, scale=2.0)
LIBRARY = types.ModuleType("models")
LIBRARY.net = LAYER  # pyright: ignore


def calls_global(x):
    return LAYER(x)


class Coder(eqx.Module):
    """A module that is not callable, with a layer that is."""

    layer: eqx.nn.Linear

    def encode(self, x):
        return self.layer(x)


class Operator(eqx.Module):
    """An array with a method, and nothing to call."""

    matrix: jax.Array

    def mv(self, x):
        return self.matrix @ x


class Plain:
    """An object of a user's own class, which is no pytree."""

    def __init__(self, net, other=2.0):
        self.net, self.other = net, other

    def __call__(self, x):
        return self.net(x)

    def indirectly(self, x):
        return self(x) if self.other is None else self.apply(x)

    def apply(self, x):
        return self.net(x)

    @property
    def model(self):
        return self.net

    def by_property(self, x):
        return self.model(x)

    def untouched(self, x):
        return self.other * x


class Slotted:
    __slots__ = ("net",)

    def __call__(self, x):
        return self.net(x)


def slotted(net):
    made = Slotted()
    made.net = net
    return made


def in_cell(f):
    return lambda x: f(x)


def in_default(f):
    return lambda x, f=f: f(x)


def in_keyword(f):
    def call(x, *, f=f):
        return f(x)

    return call


def in_list(f):
    fs = [f]
    return lambda x: fs[0](x)


def in_unordered_dict(f):
    fs = {"a": f, 1: None}
    return lambda x: fs["a"](x)


def in_inner_function(f):
    return lambda x: (lambda y: f(y))(x)


def decorated(f):
    @ft.wraps(calls_table)
    def wrapper(*args):
        return f(*args)

    return wrapper


def calls_table(x):
    return x * TABLE


WRAPPERS = {
    "cell": in_cell,
    "default": in_default,
    "keyword": in_keyword,
    "list": in_list,
    "dict": in_unordered_dict,
    "inner": in_inner_function,
    "decorated": decorated,
    "partial": lambda f: ft.partial(lambda f, x: f(x), f),
    "partial keyword": lambda f: ft.partial(lambda x, f: f(x), f=f),
    "object": Plain,
    "slots": slotted,
    "method": lambda f: Plain(f).indirectly,
    "property": lambda f: Plain(f).by_property,
    "custom_jvp": lambda f: jax.custom_jvp(in_cell(f)),
    "jit": lambda f: jax.jit(in_cell(f)),
    "vmap": lambda f: jax.vmap(in_cell(f)),
    "checkpoint": lambda f: jax.checkpoint(in_cell(f)),
    "filter_jit": lambda f: eqx.filter_jit(in_cell(f)),
    "filter_vmap": lambda f: eqx.filter_vmap(in_cell(f)),
}


@given(st.lists(st.sampled_from(sorted(WRAPPERS)), min_size=1, max_size=4))
def test_however_deep_it_is_hidden(names):
    def wrapped(f):
        return ft.reduce(lambda f, name: WRAPPERS[name](f), names, f)

    with pytest.raises(ValueError, match=r"hides parameters.*`eqx_pipe.frozen\(\.\.\."):
        ep.chain(wrapped(LAYER))
    for harmless in (
        jnp.tanh,
        eqx.nn.Identity(),
        ep.frozen(LAYER),
        in_cell(calls_table),
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
    "function": (lambda x: calls_global(x), "global `calls_global.LAYER`", BASE),
    "namespace": (lambda x: SETTINGS.net(x), "attribute `SETTINGS.net`", BASE),
    "import": (lambda x: LIBRARY.net(x), "attribute `LIBRARY.net`", BASE),
    "object": (Plain(LAYER), "attribute `net`", BASE),
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
    ep.chain(Plain(LAYER).untouched)
    ep.chain(lambda x: SETTINGS.scale * x)


def test_a_global_that_is_not_there_yet_is_no_error():
    ep.chain(lambda x: not_defined_yet(x))  # noqa: F821  # pyright: ignore


def test_what_holds_itself_is_looked_at_once():
    class Mutual:
        def one(self, x):
            return self.other(x)

        def other(self, x):
            return self.one(x) if x is None else self.net(x)

    held = {"itself": {}, 1: "keys without order"}
    held["itself"]["back"] = held
    mutual = Mutual()
    mutual.back, mutual.net = mutual, jnp.tanh
    for stage in (lambda x: held and x, mutual.one):
        ep.chain(stage)
        ep.describe(ep.chain(stage))
    held["list"], mutual.net = [LAYER], LAYER
    for stage in (lambda x: held and x, mutual.one):
        with pytest.raises(ValueError, match="hides parameters"):
            ep.chain(stage)


def test_functions_of_installed_packages_are_trusted():
    """Their code may name any global; what is handed over to them is looked at."""
    code = compile(
        "def apply(x):\n    return net(x)\n"
        "def bind(f):\n    return lambda x: f(x)\n"
        "class Held:\n"
        "    def __init__(self, f):\n        self.f = f\n"
        "    def __call__(self, x):\n        return self.f(x)\n",
        "/somewhere/site-packages/package/module.py",
        "exec",
    )
    package = {"net": LAYER}
    exec(code, package)
    ep.chain(package["apply"])
    for hands_over in (package["bind"], package["Held"]):
        with pytest.raises(ValueError, match="hides parameters"):
            ep.chain(hands_over(LAYER))


def test_constants_are_accepted_and_described():
    operator, scale = Operator(jnp.eye(3)), jnp.ones(3)
    tables = {"a": np.ones(2), "b": 1.0}

    def stage(x, *, shift=TABLE):
        return operator.mv(x) * scale + shift + tables["b"]

    described = ep.describe(ep.chain(ft.partial(stage), lambda x: SETTINGS.scale * x))
    first, second = described["children"]
    assert first["closes_over"] == {
        "func.operator": "Operator",
        "func.scale": "float32[3]",
        "func.shift": "float32[3]",
        "func.tables.a": "float64[2]",
    }
    assert second["closes_over"] == described["closes_over"] == {}
    assert described["parameters"]["count"] == 0


def test_functions_that_are_no_stages_may_hold_a_model():
    assert ep.sweep(
        lambda p: LAYER(p["x"]), {"x": ep.Values(jnp.ones((2, 3)))}
    ).ok.all()
    check_vmap(lambda x: LAYER(x), jnp.ones(3))
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
