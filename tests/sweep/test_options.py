"""The options of a sweep: one list of names, types, defaults and checks."""

import dataclasses
import inspect
import typing

import jax.numpy as jnp
import pytest

import eqx_pipe as ep
from eqx_pipe._sweep.options import CHECKS, SweeperOptions, SweepOptions
from eqx_pipe._sweep.request import Request

SPACE = ep.Linspace(0, 1, 3)


def test_sweep_lists_the_options_that_plan_and_sweeper_take():
    parameters = inspect.signature(ep.sweep).parameters.values()
    options = {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}
    hints, listed = typing.get_type_hints(ep.sweep), typing.get_type_hints(SweepOptions)
    assert {name: hints[name] for name in options} == listed
    assert set(options) == set(CHECKS)
    assert typing.get_type_hints(SweeperOptions).items() <= listed.items()
    for field in dataclasses.fields(Request):
        if field.name in options and field.name != "output_coords":  # None: no names
            assert field.default == options[field.name].default, field.name
    for function, own in ((ep.plan, SweepOptions), (ep.sweeper, SweeperOptions)):
        (given,) = typing.get_args(typing.get_type_hints(function)["options"])
        assert given is own


def test_messages_name_the_function_that_was_called(unchecked):
    search = ep.search.Design([[0.5]])
    calls = {
        "plan": lambda: ep.plan(jnp.sin, SPACE, shard=(4, 2)),
        "sweep": lambda: ep.sweep(jnp.sin, SPACE, store=3),
        "sweeper": lambda: ep.sweeper(jnp.sin, SPACE, on_error="rais"),
        "search.explore": lambda: ep.search.explore(
            jnp.sin, ep.Uniform(0, 1), search, rounds=1, num=1, batch_size=0
        ),
    }
    for name, call in calls.items():
        with pytest.raises((TypeError, ValueError), match=f"`eqx_pipe.{name}`: `"):
            call()


def test_other_options_are_refused(unchecked):
    with pytest.raises(TypeError, match="no argument 'stor'. Did you mean `store`"):
        ep.plan(jnp.sin, SPACE, stor="a.zarr")  # pyright: ignore
    with pytest.raises(TypeError, match="`eqx_pipe.sweeper`.*no argument 'store'"):
        ep.sweeper(jnp.sin, SPACE, store="a.zarr")  # pyright: ignore
