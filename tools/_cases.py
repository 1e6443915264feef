"""The programs of the record, each with the values that it computes.

A case is a function without arguments, which compiles its programs and computes their
values at fixed inputs. Nothing is built before a case is asked for, so a public name
that is gone fails the cases that use it alone.
"""

import contextlib
import functools as ft
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu

import eqx_pipe as ep

from . import _borrowed, _nestings

RTOL, BFLOAT16_RTOL = 1e-5, 3e-2


class Case(NamedTuple):
    """Compiled programs, what they compute, and the tolerance of that."""

    programs: list[jax.stages.Compiled]
    values: dict[str, Any]
    rtol: float = RTOL


@ft.cache
def computed(name):
    """Return a case by its name; its programs are compiled once for all sections."""
    return all_cases()[name]()


@ft.cache
def all_cases():
    """Return all cases by name."""
    return {**_pipelines(), **_drawn(), **_models(), **_at_a_point(), **_sweeps()}


# Pipelines.


def _both(name, build):
    """Return the cases of a stage, forward and backward.

    `build` returns the stage, its inputs, its keywords, and the tolerance of values.
    """

    def forward():
        stage, inputs, key, rtol = build()
        case = _called(lambda stage, *inputs: stage(*inputs, **key), stage, inputs)
        return case._replace(rtol=rtol)

    def backward():
        stage, inputs, key, rtol = build()

        def slopes(stage, *inputs):
            differentiable, rest = eqx.partition((stage, inputs), eqx.is_inexact_array)

            def loss(differentiable):
                stage, inputs = eqx.combine(differentiable, rest)
                return _sum_of_squares(stage(*inputs, **key))

            of_stage, of_inputs = jax.grad(loss)(differentiable)
            # The parts of a stage are private, so their order is not recorded.
            return _as_one(of_stage), of_inputs

        return _called(slopes, stage, inputs)._replace(rtol=rtol)

    return {f"{name} forward": forward, f"{name} backward": backward}


class Parts(NamedTuple):
    """Gradients of parameters, of which the record keeps numbers free of order."""

    leaves: list[jax.Array]


def _as_one(tree):
    return Parts(jtu.tree_leaves(tree))


def _sum_of_squares(tree):
    leaves = filter(eqx.is_inexact_array, jtu.tree_leaves(tree))
    return sum(jnp.sum(leaf.astype(jnp.float32) ** 2) for leaf in leaves)


def _called(fn, stage, inputs):
    """Compile `fn(stage, *inputs)` with all arrays as arguments, and call it."""
    arrays, rest = eqx.partition((stage, tuple(inputs)), eqx.is_array)

    def call(arrays):
        stage, inputs = eqx.combine(arrays, rest)
        return eqx.filter(fn(stage, *inputs), eqx.is_array)

    program = jax.jit(call).lower(arrays).compile()
    return Case([program], {"output": program(arrays)})


def _keyed(key):
    return {} if key is None else {"key": key}


def _pipelines():
    found = {}
    for name in _names(_borrowed.benchmark_pipelines):
        found |= _both(f"compose {name}", lambda n=name: _benchmark(n))
    for name in _names(_borrowed.image_pipelines):
        found |= _both(f"compose images {name}", lambda n=name: _image(n))

    def masked():
        fn, args = _nestings.trained_in_part()
        return _called(lambda _, *args: _as_one(fn(*args)), None, args)

    return {**found, "compose trainable backward": masked}


@ft.cache
def _names(source):
    return list(source())


def _benchmark(name):
    pipe, x, key = _borrowed.benchmark_pipelines()[name]
    return pipe, (x,), _keyed(key), RTOL


def _image(name):
    pipe = jax.vmap(_borrowed.image_pipelines()[name])
    return pipe, (jr.normal(jr.key(0), (256, 28, 28)),), {}, RTOL


def _drawn():
    found, x = {}, jnp.array([0.4, -1.1, 0.8, 0.3])
    for name, draw in _nestings.nestings().items():

        def build(draw=draw):
            pipe, used = draw()
            rtol = BFLOAT16_RTOL if "precision" in used else RTOL
            return pipe, (x,), _keyed(jr.key(7)), rtol

        found |= _both(f"nesting {name}", build)
    return found


def _models():
    found = {}
    for name, build in _borrowed.models().items():
        found |= _both(f"model {name}", lambda build=build: (*build(), {}, RTOL))
    return found


# Functions of points.

# Those with a loop whose length depends on the point, or whose output is an integer.
_FORWARD_ONLY = {"divergent", "collatz", "pendulum", "powers", "adaptive", "reactions"}
KEY = jr.key(3)


def _space():
    return ep.Space({"a": ep.Linspace(0.01, 1, 40), "b": ep.Linspace(0.1, 0.9, 25)})


def _slope(fn):
    """Return the gradient of a function by its point, as a function of points."""

    def slope(p, key):
        return jax.grad(lambda p: _sum_of_squares(fn(p, key)))(p)

    return slope


def _functions():
    """Return the swept functions by name: forward, and backward where it exists."""
    found = {}
    for name, fn in _borrowed.POINT_FUNCTIONS.items():
        found[f"{name} forward"] = fn
        if name not in _FORWARD_ONLY:
            found[f"{name} backward"] = _slope(fn)
    return found


def _at_a_point():
    """Return the program of each function at a point of a traced index."""

    def case(fn):
        def at(space, i):
            return fn(space.point(i), space.point_key(i, key=KEY))

        return _called(at, _space(), (jnp.int32(421),))

    return {
        f"point {name}": lambda fn=fn: case(fn) for name, fn in _functions().items()
    }


def _swept(fn, space, **options):
    with _compiled_ahead() as programs:
        result = ep.sweep(fn, space, **options)
    return Case(programs, {"values": result.values})


@contextlib.contextmanager
def _compiled_ahead():
    """Collect the programs that are compiled ahead of time in this block."""
    found, original = [], jax.stages.Lowered.compile

    def compile_(lowered, *args, **kwargs):
        found.append(original(lowered, *args, **kwargs))
        return found[-1]

    jax.stages.Lowered.compile = compile_
    try:
        yield found
    finally:
        jax.stages.Lowered.compile = original


def _sweeps():
    """Return the programs of sweeps, on two devices with the automatic batch size.

    For some functions also those of a batch size, of reductions, of one device, and of
    the same as a pure function, differentiated by the ends of the axes.
    """
    found = {
        f"sweep {name}": lambda fn=fn: _swept(fn, _space(), key=KEY)
        for name, fn in _functions().items()
    }
    for name, make in _borrowed.SWEEP_CASES.items():
        found[f"sweep case {name}"] = lambda make=make: _swept_case(make())
    one = jax.make_mesh((1,), ("one",), devices=jax.devices()[:1])
    for name in ("closed_form", "kuramoto", "euler_maruyama"):
        fn = _borrowed.POINT_FUNCTIONS[name]
        for words, options in {
            "in batches of 64": {"batch_size": 64},
            "on one device": {"mesh": one},
        }.items():
            found[f"sweep {name} {words}"] = lambda fn=fn, options=options: _swept(
                fn, _space(), key=KEY, **options
            )
        found[f"vmap_space {name} forward"] = lambda fn=fn: _vmapped(fn)
        found[f"vmap_space {name} backward"] = lambda fn=fn: _vmapped(fn, True)
    more = {"reduce": _reduced, "reduce over a dim": _reduced_over}
    return found | more | {"refill": _refilled}


def _swept_case(case):
    few = {
        name: (*given[:2], 32) if isinstance(given, tuple) else given[::8]
        for name, given in case.axes.items()
    }
    return _swept(case.fn, case._replace(axes=few).space())


def _vmapped(fn, backward=False):
    arrays, rest = eqx.partition(_space(), eqx.is_inexact_array)

    def forward(arrays):
        return ep.vmap_space(fn, eqx.combine(arrays, rest), key=KEY)

    def slope(arrays):
        return _as_one(jax.grad(lambda a: _sum_of_squares(forward(a)))(arrays))

    return _called(
        lambda _, arrays: (slope if backward else forward)(arrays), 0, [arrays]
    )


def _reduced():
    reducers = {
        "mean": ep.reduce.Mean(),
        "var": ep.reduce.Var(),
        "sum": ep.reduce.Sum(),
        "max": ep.reduce.Max(),
        "best": ep.reduce.ArgMin(),
        "top": ep.reduce.TopK(3),
        "histogram": ep.reduce.Histogram(jnp.linspace(-3.0, 3.0, 9)),
    }
    fn = _borrowed.POINT_FUNCTIONS["closed_form"]
    return _swept(fn, _space(), key=KEY, reduce=reducers)


def _reduced_over():
    fn = _borrowed.POINT_FUNCTIONS["kuramoto"]
    return _swept(fn, _space(), key=KEY, reduce=ep.reduce.Mean(over="a"))


def _refilled():
    def steps(p):
        return (10 + 200 * p["a"]).astype(jnp.int32)

    fn = ep.refill(
        lambda p: (0, p["b"]),
        lambda p, c: c[0] < steps(p),
        lambda p, c: (c[0] + 1, c[1] + 0.01 * jnp.sin(c[1])),
        lambda p, c: c[1],
    )
    return _swept(fn, _space())
