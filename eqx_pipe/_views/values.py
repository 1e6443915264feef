"""What it takes to trace a pipeline of which only shapes are wanted."""

from typing import Any

import equinox as eqx
import jax.random as jr

from .._errors import value_error
from .._stage import is_stateful
from .._types import Key, MaybeState


def key_and_state(
    function: str, pipe: Any, state: MaybeState
) -> tuple[Any, MaybeState, Key]:
    """The pipeline, a state for it, and a key for the stages that want one."""
    if state is None and is_stateful(pipe):
        try:
            pipe, state = eqx.nn.make_with_state(lambda: pipe)()
        except ValueError:  # it has been through `make_with_state` already
            raise value_error(
                function,
                "a stage inside is stateful, and shapes were asked for without a "
                "state.",
                f"Call `{function}(pipe, x, state=state)`.",
            ) from None
    return pipe, state, jr.key(0)
