"""Why a call of a stage failed: for want of a key, or of the convention of layers."""

import equinox as eqx

from .._errors import MissingKeyError, asks_for_key, is_located
from .._types import Key, PyTree
from .base import Lift, state_indices
from .keys import key_argument, of_type, takes_key


def wants_key(error: Exception, stage: PyTree) -> bool:
    """Whether a call of `stage` with `key=None` failed for want of a key.

    An error that comes out of another pipeline was judged there.
    """
    if isinstance(error, MissingKeyError) or is_located(error):
        return False
    takes = takes_key(stage)
    if isinstance(stage, Lift):
        takes = bool(key_argument(stage.fn, None))
    return takes and asks_for_key(error)


def say_if_not_layer(stage: PyTree, error: Exception) -> None:
    """A note on `error` if `stage` holds state and its type does not say so."""
    if isinstance(stage, eqx.nn.StatefulLayer) or not isinstance(stage, eqx.Module):
        return
    if state_indices(stage):
        name = type(stage).__name__
        error.add_note(
            f"`{name}` holds an `equinox.nn.StateIndex`, and is given no state: derive "
            "it from `equinox.nn.StatefulLayer`, so that it is called as a stage with "
            "state."
        )


def say_if_no_key(
    stage: object, keyword: dict[str, Key | None], error: Exception
) -> None:
    """A note on `error` if `**kwargs` led to a function that takes no key."""
    refused = "unexpected keyword argument 'key'" in str(error)
    parameter = of_type(type(stage))
    if keyword and refused and parameter and parameter.kind is parameter.VAR_KEYWORD:
        name = type(stage).__name__
        error.add_note(
            f"`{name}` takes `**kwargs`, so it is given the key that every layer gets. "
            "If it has no use for one, say so by `__call__(self, x, *, key=None)`."
        )
