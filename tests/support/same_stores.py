"""Stores of calls that change.

`same_stores.py PHASE FOLDER` prints what became of each.

The phase `begin` makes the stores with 1.0; `same` calls again, and must go on; `other`
calls with 3.0, and must refuse or compute the other values.
"""

import cmath
import dataclasses
import functools as ft
import json
import math
import statistics
import sys
import threading
import types

import equinox as eqx
import jax
import jax.extend
import jax.numpy as jnp
import numpy as np

import eqx_pipe as ep

LINE = np.linspace(1, 2, 3)
X = {"x": ep.Linspace(1.0, 2.0, 3)}
NUMBER = jax.ShapeDtypeStruct((), np.float32)
CASES = {}


def case(make):
    CASES[make.__name__] = make
    return make


def called(call, x, io=False):
    if io:
        return jax.experimental.io_callback(call, NUMBER, x)
    return jax.pure_callback(call, NUMBER, x, vmap_method="sequential")


class Holder:
    def __init__(self, rate):
        self.rate = rate

    def __call__(self, x):
        return np.float32(x * self.rate)

    def scaled(self, x):
        return np.float32(x * self.rate)

    def schedule(self, population, key):
        return population.next(active=population.metrics["c"] > -self.rate)


class Slotted:
    __slots__ = ("rate",)

    def __init__(self, rate):
        self.rate = rate

    def __call__(self, population, key):
        return population.next(active=population.metrics["c"] > -self.rate)


def swept(fn, space, store, **options):
    return np.asarray(ep.sweep(fn, space, store=store, **options).values[...])


# Functions of points: what Python runs within their programs.


@case
def a_closure(v, store):
    return swept(lambda p: p["x"] * v, X, store), v * LINE


@case
def a_callback(v, store):
    fn = lambda p: called(lambda x: np.float32(x * v), p["x"])  # noqa: E731
    return swept(fn, X, store), v * LINE


@case
def a_callback_with_effects(v, store):
    seen = []

    def note(x):
        seen.append(x)
        return np.float32(x * v)

    return swept(lambda p: called(note, p["x"], io=True), X, store), v * LINE


@case
def a_method_as_callback(v, store):
    return swept(lambda p: called(Holder(v).scaled, p["x"]), X, store), v * LINE


@case
def an_object_as_callback(v, store):
    return swept(lambda p: called(Holder(v), p["x"]), X, store), v * LINE


@case
def a_partial_as_callback(v, store):
    call = ft.partial(lambda rate, x: np.float32(x * rate), v)
    return swept(lambda p: called(call, p["x"]), X, store), v * LINE


@case
def a_function_of_the_same_name_in_a_callback(v, store):
    root = math.sqrt if v == 1.0 else cmath.sqrt
    rate = lambda: 1.0 if isinstance(root(1.0), float) else 3.0  # noqa: E731
    call = lambda x: np.float32(x * rate())  # noqa: E731
    return swept(lambda p: called(call, p["x"]), X, store), v * LINE


@case
def a_converter_in_a_callback(v, store):
    class Config(eqx.Module):
        rate: float = eqx.field(converter=lambda rate: rate * v)

    call = lambda x: np.float32(x * Config(1.0).rate)  # noqa: E731
    return swept(lambda p: called(call, p["x"]), X, store), v * LINE


@case
def a_callback_in_a_jitted_function(v, store):
    inner = jax.jit(lambda x: called(lambda y: np.float32(y * v), x))
    return swept(lambda p: inner(p["x"]), X, store), v * LINE


@case
def a_module_that_a_callback_reads(v, store):
    settings = types.ModuleType("settings")
    settings.rate = v
    call = lambda x: np.float32(x * settings.rate)  # noqa: E731
    return swept(lambda p: called(call, p["x"]), X, store), v * LINE


@case
def a_rule_of_vmap(v, store):
    @jax.custom_batching.custom_vmap
    def ruled(x):
        return x

    @ruled.def_vmap
    def _(size, batched, x):
        return x * v, True

    return swept(lambda p: ruled(p["x"]), X, store), v * LINE


# Axes: what they compute, and the order of values.


@case
def a_mapped_axis(v, store):
    space = {"x": ep.Mapped(lambda x: x * v, X["x"])}
    return swept(lambda p: p["x"] * 1.0, space, store), v * LINE


@case
def a_random_axis(v, store):
    sampler = lambda key, shape: v * jnp.ones(shape)  # noqa: E731
    space = ep.Space({"x": ep.Random(sampler, 3)}, key=jax.random.key(0))
    return swept(lambda p: p["x"] * 1.0, space, store), v * np.ones(3)


def times(rate, lock=None):
    def act(x):
        with lock or threading.Lock():
            return x * rate

    return act


@case
def functions_that_change_places(v, store):
    acts = [times(1.0), times(2.0)][:: 1 if v == 1 else -1]
    fn = lambda p: p["act"](p["x"])  # noqa: E731
    return swept(fn, {"act": ep.Static(acts), **X}, store), [f(LINE) for f in acts]


@case
def functions_with_locks_that_change_places(v, store):
    lock = threading.Lock()
    acts = [times(1.0, lock), times(2.0, lock)][:: 1 if v == 1 else -1]
    fn = lambda p: p["act"](p["x"])  # noqa: E731
    return swept(fn, {"act": ep.Static(acts), **X}, store), [f(LINE) for f in acts]


@case
def a_growth_with_another_axis(v, store):
    values = np.arange(1, 4 if v == 1 else 6, dtype=np.float32)
    space = {"x": ep.Mapped(lambda x: x * v, ep.Values(values))}
    return swept(lambda p: p["x"] * 1.0, space, store), v * values


@case
def a_growth_with_another_callback(v, store):
    values = np.arange(1, 4 if v == 1 else 6, dtype=np.float32)
    fn = lambda p: called(lambda x: np.float32(x * v), p["x"])  # noqa: E731
    return swept(fn, {"x": ep.Values(values)}, store), v * values


# Reducers, trainings and searches.


def reducer(update=1.0, finish=1.0, **options):
    return ep.reduce.Reducer(
        init=lambda struct: jnp.float32(0),
        update=lambda state, x: state + x * update,
        merge=lambda a, b: a + b,
        finish=lambda state: np.asarray(state) * finish,
        **options,
    )


@case
def how_a_reducer_finishes(v, store):
    space = X | {"b": ep.Values([1.0, 2.0])}
    reduce = reducer(finish=v, over=("x",))
    found = swept(lambda p: p["x"] * p["b"], space, store, reduce=reduce)
    return found, v * 4.5 * np.array([1, 2])


HELD = {
    "a_numpy_number": (np.float32, float),
    "a_jitted_function": (lambda v: jax.jit(lambda x: x * v), lambda fn: fn(1.0)),
    "a_jaxpr": (
        lambda v: jax.make_jaxpr(lambda x: x * v)(1.0),
        lambda jaxpr: jax.extend.core.jaxpr_as_fun(jaxpr)(1.0)[0],
    ),
    "a_set": (lambda v: frozenset({v, 0.5}), max),
    "a_dtype": (lambda v: np.dtype("f4" if v == 1 else "f8"), lambda x: x.itemsize / 4),
    "a_function": (
        lambda v: (lambda x: x) if v == 1 else (lambda x: -x),
        lambda fn: fn(1.0),
    ),
    "a_function_of_python": (
        lambda v: statistics.mean if v == 1 else statistics.median,
        lambda fn: fn([1.0, 1.0]),
    ),
    "a_numpy_function": (
        lambda v: np.add if v == 1 else np.subtract,
        lambda fn: fn(0.5, 0.5),
    ),
}


def finished_by(make, factor, v, store):
    held, space = make(v), X | {"b": ep.Values([1.0, 2.0])}
    reduce = reducer(over=("x",))
    finish = lambda state: np.asarray(state) * np.float32(factor(held))  # noqa: E731
    reduce = dataclasses.replace(reduce, finish=finish)
    found = swept(lambda p: p["x"] * p["b"], space, store, reduce=reduce)
    return found, v * 4.5 * np.array([1, 2])


for _name, (_make, _factor) in HELD.items():
    CASES[f"a_reducer_that_finishes_by_{_name}"] = ft.partial(
        finished_by, _make, _factor
    )


@case
def how_a_reducer_updates(v, store):
    return swept(lambda p: p["x"], X, store, reduce=reducer(update=v)), v * 4.5


@case
def what_a_reducer_reads(v, store):
    reduce = ep.reduce.Sum(by=lambda y: y * v)
    return swept(lambda p: p["x"], X, store, reduce=reduce), v * 4.5


def trained(store, scheduler=None, init=lambda p: jnp.float32(0), rate=1.0, call=None):
    def step(p, carry):
        carry = carry + p["x"] * rate if call is None else called(call, carry)
        return carry, {"c": carry}

    options = {"every": 2, "scheduler": scheduler, "store": store}
    return ep.train(ep.Training(init, step), X, 4, **options).trained, [4, 4, 4]


@case
def a_scheduler(v, store):
    return trained(store, Holder(v).schedule)


@case
def a_scheduler_with_slots(v, store):
    return trained(store, Slotted(v))


@case
def the_step_of_a_training(v, store):
    return trained(store, rate=v)


@case
def the_start_of_a_training(v, store):
    return trained(store, init=lambda p: jnp.float32(v))


@case
def a_callback_of_a_step(v, store):
    return trained(store, call=Holder(v))


@case
def the_designs_of_a_search(v, store):
    method = ep.search.Design(np.array([[0.1], [0.2], [0.3], [0.4 * v / 3]]))
    fn, space = (lambda p: p["x"]), {"x": ep.Uniform(0.0, 1.0)}
    options = {"num": 2, "rounds": 2, "mode": "min", "store": store}
    ep.search.explore(fn, space, method, **options)
    return 0.0, 0.0


def main(phase, folder):
    for name, make in CASES.items():
        try:
            found, expected = make(3.0 if phase == "other" else 1.0, f"{folder}/{name}")
        except ValueError as error:
            outcome = f"refused: {error}"
        else:
            near = np.allclose(np.ravel(found), np.ravel(expected), rtol=1e-4)
            outcome = "right" if near else f"wrong: {found} in place of {expected}"
        print(json.dumps([name, outcome]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
