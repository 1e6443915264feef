"""Check values that are accepted as stages, and turn functions into modules."""

from collections.abc import Callable
from typing import cast

import equinox as eqx

from .._check import check_callable
from .._errors import type_error
from .._types import AnyStage, StageLike
from .hidden import check_nothing_hidden
from .hints import say_if_not_layer
from .signature import why_not
from .stage import Lift, is_composite, is_stateful

_ONE_INPUT = (
    "A stage takes one input, and perhaps `key=`. Make a function of several inputs a "
    "node of `eqx_pipe.graph`, pass it entries of a dict by `eqx_pipe.feed`, or call "
    "it in a Module or function of one input, which may be a tuple."
)


def as_stage(
    function: str,
    argument: str,
    value: object,
    cure: str = _ONE_INPUT,
    *,
    num_inputs: int = 1,
    named: tuple[str, ...] = (),
    given: str = "one input",
    raises: Callable[[str, str, str], Exception] = type_error,
) -> AnyStage:
    """Return `value` as a child stage; functions become modules.

    `function` and `argument` name the caller and its argument in errors. Raise if a
    callable does not take `num_inputs` inputs by position, and the `named` ones by
    keyword; in the error, `given` lists its inputs and `cure` is the fix.
    """
    check_callable(function, argument, value)
    check_nothing_hidden(function, argument, value)
    value = cast(StageLike, value)
    wrong = _misfit(value, num_inputs, named)
    if wrong:
        error = raises(function, f"`{argument}` gets {given}, but {wrong}.", cure)
        say_if_not_layer(value, error)
        raise error
    return as_module(value)


def as_module(value: StageLike) -> AnyStage:
    """Return a module unchanged, and a function as a module."""
    return cast(AnyStage, value if isinstance(value, eqx.Module) else Lift(value))


def _misfit(
    stage: StageLike, num_inputs: int, named: tuple[str, ...] = ()
) -> str | None:
    """Return why a stage cannot take this number of inputs, or `None` if it can.

    `named` are the names of additional inputs by keyword; see `call`.
    """
    if is_composite(stage):
        fits = num_inputs == (0 if named else 1)
        return None if fits else "a pipeline takes one"
    if "key" in named:
        return "`key` is the name of the PRNG key, which is passed on by itself"
    if not isinstance(stage, eqx.Module):
        return why_not(stage, num_inputs, named)
    if isinstance(stage, Lift):
        return why_not(stage.fn, num_inputs, named)
    if is_stateful(stage) and named:
        return why_not(stage, num_inputs, (*named, "state"))
    return why_not(stage, num_inputs + is_stateful(stage), named)
