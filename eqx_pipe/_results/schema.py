"""The schema of a store: the structure of outputs and of the space, as JSON.

A store has arrays by name. A result in it also has containers, dtypes that files do not
support, and PRNG keys. They are written as JSON, so that reading them runs no code.
"""

import base64
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np

from .._spaces import (
    Axis,
    LoadedValues,
    Space,
    Static,
    at_least_one,
    axis_name,
    axis_structs,
    is_axis,
)
from .._tree import key_kind, path_name
from .._types import PyTree
from .names import NamedDims

# Keep the record of a store small, since every reader of the store reads it.
_MOST_BYTES = 1024


def schema_of(
    outputs: PyTree, names: list[str], space: Space, named: NamedDims
) -> dict[str, Any]:
    """Return the schema of a result.

    `outputs` are the shapes and dtypes of one output, and `names` the variables of its
    leaves, in order. `named` are the named dims of outputs.
    """
    name = iter(names)

    def variable(leaf: object, _: Any) -> Any:
        return {"array": next(name), **_kind(leaf)}

    def part(leaf: object, path: Any) -> Any:
        return _axis(leaf, path, space) if is_axis(leaf) else _constant(leaf)

    return {
        "mode": "zip" if space.geometry.is_part else space.mode,
        "outputs": _written(outputs, variable),
        "space": _written(space.tree, part),
        "output_dims": {path: list(dims) for path, dims in named.items()},
    }


def space_from(schema: dict[str, Any], read: Callable[[str], Any]) -> Space:
    """Return the space, with `Values` and `Static` axes from coordinates."""

    empty = False

    def part(node: dict[str, Any]) -> Any:
        nonlocal empty
        attrs = node.get("attrs", {})
        label, unit = attrs.get("long_name"), attrs.get("units")
        if "axis" in node:
            values, empty = at_least_one(_as_kind(read(node["axis"]), node))
            settings = {name: node[name] for name in ("is_log", "draws", "dim")}
            return LoadedValues(values, **settings, label=label, unit=unit)
        if "static" in node:
            values, empty = at_least_one(np.asarray(read(node["static"])))
            values = values.tolist()
            return Static(values, dim=node["dim"], label=label, unit=unit)
        return _leaf(node)

    space = Space(read_tree(schema["space"], part), schema["mode"])
    return space[:0] if empty else space


def _as_kind(array: Any, kind: dict[str, Any]) -> Any:
    """Return an array in its original dtype, or as PRNG keys."""
    array = np.asarray(array).astype(jnp.dtype(kind["dtype"]), copy=False)
    if "key" not in kind:
        return array
    return jr.wrap_key_data(jnp.asarray(array), impl=kind["key"])


def _kind(leaf: Any) -> dict[str, Any]:
    key = key_kind(leaf)
    if key is None:
        return {"dtype": str(leaf.dtype)}
    return {"dtype": "uint32", "key": str(key)}


def _axis(axis: Axis, path: Any, space: Space) -> Any:
    name = axis_name(path)
    if axis.is_static:
        return {"static": name, "dim": axis.dim, "attrs": axis.attrs}
    structs = axis_structs(name, axis, space.axis_key(name))
    several = jtu.tree_structure(structs) != jtu.tree_structure(0)

    def part(leaf: Any, path: Any) -> Any:
        # If values are pytrees, there is an axis for each leaf, all of one dim.
        full = ".".join([name, *([path_name(path)] if path else [])])
        dim = name if several and axis.dim is None else axis.dim
        same = {"is_log": axis.is_log, "draws": axis.replicates, "attrs": axis.attrs}
        return {"axis": full, "dim": dim, **same, **_kind(leaf)}

    return _written(structs, part)


def _constant(leaf: Any) -> Any:
    """Return a constant of the space; large arrays and other objects as text."""
    if type(leaf) in (bool, int, float, str):
        # NaN and infinity are allowed, since Python's JSON reads the schema.
        return {"value": leaf}
    kind = getattr(getattr(leaf, "dtype", None), "kind", "O")  # none for keys
    if kind not in "biufcV" or not hasattr(leaf, "shape"):
        return {"value": repr(leaf)}
    entry = {"struct": list(leaf.shape), "dtype": str(leaf.dtype)}
    if not isinstance(leaf, jax.ShapeDtypeStruct) and leaf.nbytes <= _MOST_BYTES:
        entry["data"] = base64.b64encode(np.asarray(leaf).tobytes()).decode()
    return entry


def _leaf(node: dict[str, Any]) -> Any:
    if "value" in node:
        return node["value"]
    shape, dtype = tuple(node["struct"]), jnp.dtype(node["dtype"])
    if "data" not in node:
        return jax.ShapeDtypeStruct(shape, dtype)
    return np.frombuffer(base64.b64decode(node["data"]), dtype).reshape(shape)


def _written(node: Any, leaf: Callable[[Any, Any], Any], path: Any = ()) -> Any:
    """Return a pytree as JSON: dicts, lists, tuples; other containers by path."""
    if node is None:
        return None
    if is_axis(node):
        return leaf(node, path)
    children = jtu.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)[0]
    if len(children) == 1 and not children[0][0]:
        return leaf(node, path)
    steps = [(step, _written(child, leaf, (*path, *step))) for step, child in children]
    if type(node) in (list, tuple):
        return {type(node).__name__: [child for _, child in steps]}
    if isinstance(node, dict) and all(isinstance(k, str | int) for k in node):
        # Use the order written, since JAX sorts the keys.
        written = {step[0].key: child for step, child in steps}
        return {"dict": [[key, written[key]] for key in node]}
    return {"dict": [[path_name(step), child] for step, child in steps]}


def read_tree(node: Any, leaf: Callable[[Any], Any]) -> Any:
    if node is None:
        return None
    if "dict" in node:
        return {key: read_tree(child, leaf) for key, child in node["dict"]}
    if "list" in node:
        return [read_tree(child, leaf) for child in node["list"]]
    if "tuple" in node:
        return tuple(read_tree(child, leaf) for child in node["tuple"])
    return leaf(node)
