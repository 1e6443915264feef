"""The options of a sweep: one list of names, types, defaults and checks."""

import inspect
import typing

import jax.numpy as jnp
import pytest

import eqx_pipe as ep

SPACE = ep.Linspace(0, 1, 3)


def options_of(function):
    """Return the types of the options that a function takes as keywords."""
    (given,) = typing.get_args(typing.get_type_hints(function)["options"])
    return typing.get_type_hints(given)


def test_sweep_lists_the_options_that_plan_and_sweeper_take():
    parameters = inspect.signature(ep.sweep).parameters.values()
    options = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    hints = typing.get_type_hints(ep.sweep)
    assert {name: hints[name] for name in options} == options_of(ep.plan)
    own = options_of(ep.sweeper)
    assert own.items() <= options_of(ep.plan).items()
    assert ep.plan(jnp.sin, SPACE, **options) == ep.plan(jnp.sin, SPACE)
    run = ep.sweeper(jnp.sin, SPACE, **{name: options[name] for name in own})
    assert run(SPACE).batch_size == ep.sweep(jnp.sin, SPACE, **options).batch_size


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


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), True, "1"])
def test_a_timeout_is_a_positive_number_of_seconds(timeout, unchecked):
    with pytest.raises(ValueError, match="Give a positive number of seconds"):
        ep.plan(jnp.sin, SPACE, timeout=timeout)
