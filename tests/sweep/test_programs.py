"""Different programs never share a cache entry: callbacks, rules and their closures."""

import dataclasses
import functools as ft
import types

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import mlir
from support.helpers import slow_unless

import eqx_pipe as ep
import eqx_pipe.testing as ept


def space():
    return ep.Space({"b": ep.Linspace(0, 1, 5), "a": ep.Values([1.0, 2.0])})


def differ(first, second):
    """Raise if the sweeps of two functions share a program."""
    for fn in (first, second, first):
        values = np.asarray(ep.sweep(fn, space()).values)
        with jax.disable_jit():
            np.testing.assert_allclose(values, ep.sweep(fn, space()).values, rtol=1e-6)


def host(scale):
    def on_host(x):
        return np.float32(scale) * x

    struct = jax.ShapeDtypeStruct((), jnp.float32)
    return lambda p: jax.pure_callback(
        on_host, struct, p["a"], vmap_method="sequential"
    )


def host_state(state):
    def on_host(x):
        return np.float32(state["scale"]) * x

    struct = jax.ShapeDtypeStruct((), jnp.float32)
    return lambda p: jax.pure_callback(
        on_host, struct, p["a"], vmap_method="sequential"
    )


def with_rule(scale):
    @jax.custom_batching.custom_vmap
    def f(x):
        return x * scale

    @f.def_vmap
    def _(size, batched, x):
        return x * scale, batched[0]

    return lambda p: f(p["a"])


SCALE, SETTINGS = 1.0, types.SimpleNamespace(scale=1.0)


def halved():
    return SCALE / 2


def global_rule(read):
    """Return a function whose batching rule reads a global when it is compiled."""

    @jax.custom_batching.custom_vmap
    def f(x):
        return x * read()

    @f.def_vmap
    def _(size, batched, x):
        return x * read(), batched[0]

    return f


RULES = {
    "global": global_rule(lambda: SCALE),
    "global of a function": global_rule(lambda: halved()),
    "object": global_rule(lambda: SETTINGS.scale),
}


@pytest.mark.parametrize("name", RULES)
def test_a_batching_rule_reads_current_globals(name, monkeypatch):
    rule = RULES[name]
    values = lambda: ep.sweep(lambda p: rule(p["a"]), space()).values  # noqa: E731
    before = values()
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    monkeypatch.setattr(SETTINGS, "scale", 3.0)
    np.testing.assert_array_equal(values(), 3 * before)


def counted_to(end):
    return lambda p: jax.lax.while_loop(lambda c: c < end, lambda c: c + 1, p["a"])


PAIRS = {
    "callbacks": lambda: (host(2), host(3)),
    "rules": lambda: (with_rule(2), with_rule(3)),
    "callbacks in jit": lambda: (jax.jit(host(2)), jax.jit(host(3))),
    "loops": lambda: (counted_to(5), counted_to(6)),
    "signs of zero": lambda: (lambda p: p["a"] * 0.0, lambda p: p["a"] * -0.0),
    "state": lambda: (host_state({"scale": 2}), host_state({"scale": 3})),
}
QUICK = {"callbacks", "rules", "loops", "signs of zero"}


@pytest.mark.parametrize("name", slow_unless(QUICK, PAIRS))
def test_two_programs_never_share_an_entry(name):
    differ(*PAIRS[name]())


def test_a_callback_reads_its_current_closure():
    scale = 2.0

    def make():
        def on_host(x):
            return np.float32(scale) * x

        struct = jax.ShapeDtypeStruct((), jnp.float32)
        return lambda p: jax.pure_callback(
            on_host, struct, p["a"], vmap_method="sequential"
        )

    first = ep.sweep(make(), space()).values
    scale = 3.0
    jitted = jax.jit(make())
    second = ep.sweep(make(), space()).values
    np.testing.assert_allclose(second, first * 1.5)
    for scale in (3.0, 4.0):
        third = ep.sweep(jitted, space()).values
        np.testing.assert_allclose(third, first * scale / 2)
    logs = [], []
    for log in logs:

        def fn(p, log=log):
            jax.debug.callback(lambda x: log.append(float(x)), p["a"])
            return p["a"]

        ep.sweep(fn, space(), batch_size=1)
        jax.effects_barrier()
    assert len(logs[0]) == len(logs[1]) == 10


class Times:
    """A callback that is an object."""

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return self.factor[0] * x


Scaled = dataclasses.make_dataclass(
    "Scaled", ["factor"], eq=False, namespace={"__call__": Times.__call__}
)


@pytest.mark.parametrize(
    ("make", "array"),
    [
        (lambda factor: ft.partial(lambda x, f: f[0] * x, f=factor), list),
        (lambda factor: lambda x, f=factor: f[0] * x, np.float32),
        (Scaled, list),
        (Times, np.float32),
    ],
)
def test_equal_but_mutable_callbacks_are_distinguished(make, array):
    def values(callback):
        struct = jax.ShapeDtypeStruct((), jnp.float32)

        def fn(p):
            return jax.pure_callback(callback, struct, p["a"], vmap_method="sequential")

        return ep.sweep(fn, space(), batch_size=1).values

    first, second = array([2]), array([2])
    held = make(first)
    once = values(held)
    first[0] = 100
    np.testing.assert_array_equal(values(make(second)), once)
    np.testing.assert_array_equal(values(held), 50 * once)


def test_a_batching_rule_is_not_shared():
    factor = [2.0]

    def fresh():
        @jax.custom_batching.custom_vmap
        def times(x):
            return x * factor[0]

        @times.def_vmap
        def rule(size, batched, x):
            return x * factor[0], True

        return lambda p: times(p["a"])

    once = ep.sweep(fresh(), space()).values
    factor[0] = 4.0
    np.testing.assert_array_equal(ep.sweep(fresh(), space()).values, 2 * once)


def test_equal_objects_may_hold_different_programs():
    """Optimistix has such a wrapper, also in the structure of a pytree."""

    class Equal:
        def __init__(self, fn):
            self.jaxpr = jax.make_jaxpr(fn)(1.0)

        def __hash__(self):
            return 0

        def __eq__(self, other):
            return type(self) is type(other)

    runs = Primitive("test_runs_what_a_structure_holds")
    runs.def_abstract_eval(lambda x, **_: x)

    def run(x, structure):
        return jaxpr_as_fun(structure.unflatten([]).fn.jaxpr)(x)[0]

    mlir.register_lowering(runs, mlir.lower_fun(run, multiple_results=False))
    structures = [jax.tree.structure(Held(Equal(fn))) for fn in (jnp.sin, jnp.cos)]
    assert structures[0] == structures[1]
    for structure, fn in zip(structures, (np.sin, np.cos), strict=True):
        sweep = ft.partial(runs.bind, structure=structure)
        found = ep.sweep(lambda x, s=sweep: s(x), ep.Values([1.0, 2.0]), batch_size=1)
        np.testing.assert_allclose(found.values, fn(np.float32([1, 2])), rtol=1e-5)


class Held(eqx.Module):
    fn: object = eqx.field(static=True)


def test_debug_callbacks_compile_once_and_are_distinguished():
    def said_to(heard, tag):
        def fn(p):
            jax.debug.callback(lambda a, t: heard.append((t, float(a))), p["a"], tag)
            return p["a"]

        return fn

    line, first, second = {"a": ep.Values([1.0, 2.0])}, [], []
    same = said_to(first, "x")
    ep.sweep(same, line)
    with ept.assert_compiles(0):
        ep.sweep(same, line)
    ep.sweep(said_to(second, "x"), line)
    ep.sweep(said_to(second, "y"), line)
    assert sorted(first) == [("x", 1.0), ("x", 1.0), ("x", 2.0), ("x", 2.0)]
    assert sorted(second) == [("x", 1.0), ("x", 2.0), ("y", 1.0), ("y", 2.0)]
