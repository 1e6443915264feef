"""What a pipeline is made of, as plain data."""

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._check import check_callable
from .._compose.frozen import Frozen
from .._compose.stacked import Stacked
from .._stage import Composite, Lift, is_stateful
from .._stage.base import is_state_index
from .._stage.hidden import constants
from .._stage.text import function_name
from .._tree import join_path, leaf_text, leaves_with_names, path_name
from .._types import PyTree, StageLike


def kind_of(stage: Any) -> str:
    """`chain` for one of our combinators, `Linear` for a layer, `function`."""
    if isinstance(stage, Composite | Frozen):
        return type(stage).__name__.lower()
    if is_function(stage):
        return "function"
    return type(stage).__name__


def is_function(stage: Any) -> bool:
    """Whether a stage is a plain function, perhaps lifted."""
    return isinstance(stage, Lift) or not isinstance(stage, eqx.Module)


def title_of(stage: Any) -> str:
    """The name of a plain function, the kind of any other stage."""
    return function_name(stage) if is_function(stage) else kind_of(stage)


def children_of(stage: Any) -> dict[str, Any]:
    """The stages (of a foreign module, the modules) right below, by path."""
    if isinstance(stage, Stacked):
        return {**stage.children(), "0": jtu.tree_map(_unstacked, stage.stages)}
    if isinstance(stage, Composite):
        return dict(stage.children())
    if is_function(stage) or isinstance(stage, Frozen):
        return {}
    return {
        name: value
        for name, value in _parts(stage)
        if isinstance(value, eqx.Module) and not isinstance(value, eqx.nn.StateIndex)
    }


def as_json(value: Any) -> Any:
    """`value` as something that `json.dumps` takes, the same in every process."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(k): as_json(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(v) for v in value]
    if isinstance(value, np.generic):
        return as_json(value.item())
    if is_array(value):
        return leaf_text(value)
    if isinstance(value, np.dtype):
        return value.name
    if callable(value):
        return function_name(value)
    # Addresses differ from process to process.
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))[:200]


def describe(pipe: StageLike) -> dict[str, Any]:
    """Says what a pipeline is made of.

    The same pipeline gives the same description in every process, whatever the values
    of its parameters, and `json.dumps` takes it.

    **Arguments:**

    - `pipe`: any stage: a pipeline, an `equinox.nn` layer, a plain function.

    **Returns:** a dict with these entries.

    - `"path"`: the names and positions that lead here, joined by dots; `""` at the top.
    - `"kind"`: `"chain"`, `"parallel"`, ... for our combinators, `"function"` for a
        plain function, and the name of the class for any other module.
    - `"settings"`: what it was told besides parameters and children, by name. Functions
        appear by their name.
    - `"stateful"`: whether it takes and returns a state.
    - `"parameters"`: `{"count": ..., "dtypes": {dtype: count}}` of the floating-point
        and complex arrays in it and below, the leaves that gradients reach. State does
        not count.
    - `"arrays"`: the arrays that it holds itself, as `{"weight": "float32[3,4]"}`.
    - `"closes_over"`: the arrays and modules that a plain function closes over, names
        as globals, or was given by `functools.partial`, as `{"scale": "float32[3]",
        "save": "SaveAt"}`. They are constants, no parameters.
    - `"children"`: a list of such dicts, in order. The one child of a `repeat` or
        `ensemble` is described as a single stage, while the whole counts the parameters
        of all.

    **Raises:** `TypeError` if `pipe` is not a stage.

    !!! example

        >>> import equinox as eqx, eqx_pipe as ep, jax.numpy as jnp, jax.random as jr
        >>> pipe = ep.chain(head=eqx.nn.Linear(3, 2, key=jr.key(0)), act=jnp.tanh)
        >>> d = ep.describe(pipe)
        >>> d["kind"], d["parameters"]
        ('chain', {'count': 8, 'dtypes': {'float32': 8}})
        >>> [(child["path"], child["kind"]) for child in d["children"]]
        [('head', 'Linear'), ('act', 'function')]
    """
    check_callable("describe", "pipe", pipe)
    return _describe(pipe, "")


def _describe(stage: Any, path: str) -> dict[str, Any]:
    if isinstance(stage, Composite):
        settings = stage.settings()
        arrays = [] if isinstance(stage, Stacked) else _parts(stage)
    elif isinstance(stage, Frozen):
        settings = {"stage": title_of(stage.stage)}
        arrays = leaves_with_names(stage.stage)
    elif is_function(stage):
        settings = {"name": function_name(stage)}
        arrays = leaves_with_names(stage)
    else:
        arrays = _parts(stage)
        settings = {name: value for name, value in arrays if not _is_part(value)}
    return {
        "path": path,
        "kind": kind_of(stage),
        "settings": as_json(settings),
        "stateful": is_stateful(stage),
        "parameters": _count(stage),
        "arrays": {name: leaf_text(x) for name, x in arrays if is_array(x)},
        "closes_over": _closed_over(stage),
        "children": [
            _describe(child, join_path(path, segment))
            for segment, child in children_of(stage).items()
        ],
    }


def _closed_over(stage: Any) -> dict[str, str]:
    if isinstance(stage, Composite):  # of which the children tell
        return {}
    return constants(stage.stage if isinstance(stage, Frozen) else stage)


def _count(stage: Any) -> dict[str, Any]:
    dtypes = Counter()
    for leaf in jtu.tree_leaves(stage, is_leaf=is_state_index):
        if is_array(leaf) and jnp.issubdtype(leaf.dtype, jnp.inexact):
            dtypes[str(leaf.dtype)] += math.prod(leaf.shape)
    return {"count": dtypes.total(), "dtypes": dict(sorted(dtypes.items()))}


def _parts(module: eqx.Module) -> list[tuple[str, Any]]:
    """The fields of a module; containers that hold arrays or modules item by item."""
    parts = []
    for field in dataclasses.fields(module):
        value = getattr(module, field.name, None)
        items = jtu.tree_flatten_with_path(value, is_leaf=_is_part)[0]
        if any(_is_part(item) for _, item in items):
            for path, item in items:
                dotted = ".".join(n for n in (field.name, path_name(path)) if n)
                parts.append((dotted, item))
        else:
            parts.append((field.name, value))
    return parts


def _is_part(x: Any) -> bool:
    return isinstance(x, eqx.Module) or is_array(x)


def is_array(x: Any) -> bool:
    """Whether `x` is an array, or stands for one in shape and dtype."""
    return isinstance(x, jax.ShapeDtypeStruct | np.ndarray) or eqx.is_array(x)


def _unstacked(leaf: PyTree) -> PyTree:
    return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) if is_array(leaf) else leaf
