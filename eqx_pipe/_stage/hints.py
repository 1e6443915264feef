"""Why a call of a stage failed: what people most likely forgot or meant."""

import re
from typing import Any

import equinox as eqx
import jax.tree_util as jtu
from equinox import nn

from .._errors import MissingKeyError, asks_for_key, is_located, message, nearest
from .._tree import leaf_text
from .._types import Key, PyTree
from .base import Lift, state_indices
from .signature import key_argument, of_type, takes_key

# In JAX's words: the error itself does not hold the name.
_UNBOUND = re.compile(r"unbound axis name: (.+?)(?:\. |\.?$)", re.MULTILINE)
_BATCH = "put the stage into `eqx_pipe.batched(...)`, or call `jax.vmap(pipe)(batch)`."


def add_hint(error: BaseException, args: tuple[Any, ...]) -> None:
    """Adds a note to what a stage raised on `args`, if its cause is a likely one."""
    unbound = _UNBOUND.search(str(error)) if isinstance(error, NameError) else None
    if unbound:
        name = unbound[1]
        error.add_note(
            f"It asks for an axis named `{name}`: put it into `eqx_pipe.batched(..., "
            f'axis_name="{name}")`, or have it ask for the name of the batch.'
        )
    if isinstance(error, TypeError | ValueError | AssertionError):
        hint = _forgotten_batch(error, args)
        if hint:
            error.add_note(hint)


def _forgotten_batch(error: BaseException, args: tuple[Any, ...]) -> str | None:
    """What to say if a layer for one example was probably given a batch."""
    layer, rank, x = _innermost_layer(error)
    if layer is not None:
        # `Conv` gives its input an axis more, once its rank is right.
        convolves = isinstance(layer, nn.Conv | nn.ConvTranspose)
        if x.ndim <= rank or (convolves and "rank" not in str(error)):
            return None
        return (
            f"`{type(layer).__name__}` takes one example, an array of rank {rank}, and "
            f"got {leaf_text(x)}. For a batch {_BATCH}"
        )
    arrays = [leaf for leaf in jtu.tree_leaves(args) if eqx.is_array(leaf)]
    if "contracting dimensions" not in str(error) or not arrays:
        return None
    if any(array.ndim < 2 for array in arrays):
        return None
    return f"If the first axis of {leaf_text(arrays[0])} is a batch, {_BATCH}"


def _innermost_layer(error: BaseException) -> tuple[Any, int, Any]:
    """The layer of Equinox in which it was raised, the rank it takes, its input."""
    found, trace = (None, 0, None), error.__traceback__
    while trace is not None:
        code, held = trace.tb_frame.f_code, trace.tb_frame.f_locals
        # Elsewhere a layer may be half made.
        called = code.co_name == "__call__" and code.co_argcount > 1
        rank = _rank(held.get("self")) if called else None
        x = held.get(code.co_varnames[1]) if called else None
        if rank is not None and hasattr(x, "ndim"):
            found = held["self"], rank, x
        trace = trace.tb_next
    return found


def _rank(layer: Any) -> int | None:
    """The rank of the arrays that a layer takes, where it takes only one."""
    match layer:
        case nn.Embedding():
            return 0
        case nn.Linear():
            return 0 if layer.in_features == "scalar" else 1
        case nn.GRUCell() | nn.LSTMCell():
            return 1
        case nn.MultiheadAttention() | nn.RotaryPositionalEmbedding():
            return 2
        case nn.LayerNorm() | nn.RMSNorm():
            return len(layer.shape)
        case nn.Conv() | nn.ConvTranspose() | nn.Pool():
            return layer.num_spatial_dims + 1
        case nn.AdaptivePool():
            return len(layer.target_shape) + 1
    return None


def no_attribute(stage: Any, name: str) -> str:
    """What to say of an attribute that a composite lacks; it has stages by index."""
    kind = type(stage)
    # Half made by `copy` or `pickle`, a module lacks its fields, `children` needs them.
    if name.startswith("_") or name in kind.__dataclass_fields__:
        return f"`{kind.__name__}` has no attribute `{name}`"
    function, wrong = kind.__name__.lower(), f"a `{kind.__name__}` has no `.{name}`"
    names = list(stage.children())
    if name in names and hasattr(kind, "__getitem__"):
        return message(
            function, f"{wrong}, but a stage of that name.", f'Write `pipe["{name}"]`.'
        )
    for field, value in vars(stage).items():
        if isinstance(value, eqx.Module) and hasattr(value, name):
            cure = f"Write `pipe.{field}.{name}`."
            return message(function, f"{wrong}, but its `.{field}` has.", cure)
    return message(function, f"{wrong}, nor a stage of it.", nearest(name, names))


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
