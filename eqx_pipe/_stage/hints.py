"""Likely causes of a failed call of a stage, or of a missing attribute."""

from typing import Any

import equinox as eqx

from .._errors import MissingKeyError, asks_for_key, is_located, message, nearest
from .._keys import key_argument
from .._types import PyTree
from .signature import takes_key
from .stage import Lift, state_indices


def no_attribute(stage: Any, name: str) -> str:
    """Return the message for an attribute that a composite lacks."""
    kind = type(stage)
    # While `copy` or `pickle` builds a module, it lacks the fields that `children`
    # needs.
    if name.startswith("_") or name in kind.__dataclass_fields__:
        return f"`{kind.__name__}` has no attribute `{name}`"
    function = kind.__name__.lower()
    wrong = f"a `{kind.__name__}` has no attribute `{name}`"
    names = list(stage.children())
    if name in names and hasattr(kind, "__getitem__"):
        return message(
            function,
            f"{wrong}, but a stage with this name.",
            f'Write `pipe["{name}"]`.',
        )
    for field, value in vars(stage).items():
        if isinstance(value, eqx.Module) and hasattr(value, name):
            cure = f"Write `pipe.{field}.{name}`."
            return message(function, f"{wrong}, but its `.{field}` has.", cure)
    wrong += ", and no stage with this name."
    return message(function, wrong, nearest(name, names))


def wants_key(error: Exception, stage: PyTree) -> bool:
    """Return whether a call of `stage` with `key=None` failed for lack of a key.

    An error from a nested pipeline was checked there.
    """
    if isinstance(error, MissingKeyError) or is_located(error):
        return False
    takes = takes_key(stage)
    if isinstance(stage, Lift):
        takes = bool(key_argument(stage.fn, None))
    return takes and asks_for_key(error)


def say_if_not_layer(stage: PyTree, error: Exception) -> None:
    """Add a note to `error` if `stage` holds state without being a `StatefulLayer`."""
    if isinstance(stage, eqx.nn.StatefulLayer) or not isinstance(stage, eqx.Module):
        return
    if state_indices(stage):
        name = type(stage).__name__
        error.add_note(
            f"`{name}` holds an `equinox.nn.StateIndex`, and gets no state: derive "
            "it from `equinox.nn.StatefulLayer`, so that it is called as a stage with "
            "state."
        )
