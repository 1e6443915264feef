"""The structure of a result, also as JSON: what names and dtypes do not contain.

A store has arrays by name. Loading a result from it also requires the structure of the
outputs and of the points, the dtypes that files do not support, and the kinds of PRNG
keys. They are written as JSON, so that reading them runs no code.
"""

import base64
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Int64

from ..._spaces import (
    Axis,
    LoadedValues,
    Space,
    Static,
    at_least_one,
    axis_name,
    axis_structs,
    is_axis,
)
from ..._tree import is_key_array, path_name
from ..._types import PyTree
from .output_coords import KnownCoords

# Keep the record of a store small, since every reader of the store reads it.
_MOST_BYTES = 1024


class CellPoints(eqx.Module):
    """The number of points in the reduction of each cell.

    `points` is the number of computed points, fewer than the cell has if a reducer
    stopped it; `failed` is the number of these that failed and are left out.
    """

    points: Int64[np.ndarray, " cells"]
    failed: Int64[np.ndarray, " cells"]


class CellValues(eqx.Module):
    """The outputs of a sweep that reduces some dims.

    They are the reductions of cells, and as `cells` their numbers of points.
    """

    values: PyTree
    cells: PyTree


def schema_of(
    outputs: PyTree, names: list[str], space: Space, known: KnownCoords
) -> dict[str, Any]:
    """Return the schema of a result.

    `outputs` is the pytree of outputs or of their shapes and dtypes, and `names` are
    the variables of its leaves, in order. `known` are the named dims of outputs.
    """
    name = iter(names)

    def variable(leaf: Any, _: Any) -> Any:
        return {"array": next(name), **_kind(leaf)}

    def part(leaf: Any, path: Any) -> Any:
        return _axis(leaf, path, space) if is_axis(leaf) else _constant(leaf)

    if isinstance(outputs, CellValues):
        outputs = outputs.values
    return {
        "mode": "zip" if space.geometry.is_part else space.mode,
        "outputs": _written(outputs, variable),
        "space": _written(space.tree, part),
        "cells": list(name),
        "output_dims": {path: list(dims) for path, dims in known.items()},
    }


def outputs_from(
    schema: dict[str, Any], read: Callable[[str, Any, Any], Any]
) -> PyTree:
    """Return the outputs, with a leading axis over the points.

    `read(name, dtype, kind)` returns an array of a dtype, as PRNG keys if there is a
    `kind`.
    """

    def leaf(node: dict[str, Any]) -> Any:
        return read(node["array"], jnp.dtype(node["dtype"]), node.get("key"))

    return _read(schema["outputs"], leaf)


def space_from(schema: dict[str, Any], read: Callable[[str], Any]) -> Space:
    """Return the space, with `Values` and `Static` axes from coordinates."""

    empty = False

    def part(node: dict[str, Any]) -> Any:
        nonlocal empty
        attrs = node.get("attrs", {})
        label, unit = attrs.get("long_name"), attrs.get("units")
        if "axis" in node:
            values, empty = at_least_one(_as_kind(read(node["axis"]), node))
            own = {name: node[name] for name in ("is_log", "draws", "dim")}
            return LoadedValues(values, **own, label=label, unit=unit)
        if "static" in node:
            values, empty = at_least_one(np.asarray(read(node["static"])))
            values = values.tolist()
            return Static(values, dim=node["dim"], label=label, unit=unit)
        return _leaf(node)

    space = Space(_read(schema["space"], part), schema["mode"])
    return space[:0] if empty else space


def _as_kind(array: Any, kind: dict[str, Any]) -> Any:
    """Return an array in its original dtype, or as PRNG keys."""
    array = np.asarray(array).astype(jnp.dtype(kind["dtype"]), copy=False)
    if "key" not in kind:
        return array
    return jr.wrap_key_data(jnp.asarray(array), impl=kind["key"])


def _kind(leaf: Any) -> dict[str, Any]:
    if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return {"dtype": str(leaf.dtype)}
    # JAX returns the kind of arrays and traced arrays only.
    kinds: list[str] = []
    key = jax.ShapeDtypeStruct((), leaf.dtype)
    jax.eval_shape(lambda x: kinds.append(str(jr.key_impl(x))), key)
    return {"dtype": "uint32", "key": kinds[0]}


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
        own = {"is_log": axis.is_log, "draws": axis.replicates, "attrs": axis.attrs}
        return {"axis": full, "dim": dim, **_kind(leaf), **own}

    return _written(structs, part)


def _constant(leaf: Any) -> Any:
    """Return a constant of the space; large arrays and other objects as text."""
    if type(leaf) in (bool, int, float, str):
        # NaN and infinity are allowed, since Python's JSON reads the schema.
        return {"value": leaf}
    if not hasattr(leaf, "dtype") or not hasattr(leaf, "shape"):
        return {"value": repr(leaf)}
    if is_key_array(leaf):
        return {**_constant(jr.key_data(leaf)), "key": str(jr.key_impl(leaf))}
    shape, dtype = list(leaf.shape), str(leaf.dtype)
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return {"struct": shape, "dtype": dtype}
    array = np.asarray(leaf)
    if array.dtype.kind not in "biufcV":
        return {"value": repr(leaf)}
    if array.nbytes > _MOST_BYTES:
        return {"struct": shape, "dtype": dtype}
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    where = "jax" if isinstance(leaf, jax.Array) else "numpy"
    return {"data": data, "shape": shape, "dtype": dtype, "of": where}


def _leaf(node: dict[str, Any]) -> Any:
    if "value" in node:
        return node["value"]
    dtype = jnp.dtype(node["dtype"])
    if "struct" in node:
        return jax.ShapeDtypeStruct(tuple(node["struct"]), dtype)
    array = np.frombuffer(base64.b64decode(node["data"]), dtype).reshape(node["shape"])
    if "key" in node:
        return jr.wrap_key_data(jnp.asarray(array), impl=node["key"])
    fits = jax.dtypes.canonicalize_dtype(dtype) == dtype
    return jnp.asarray(array) if node["of"] == "jax" and fits else array


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


def _read(node: Any, leaf: Callable[[Any], Any]) -> Any:
    if node is None:
        return None
    if "dict" in node:
        return {key: _read(child, leaf) for key, child in node["dict"]}
    if "list" in node:
        return [_read(child, leaf) for child in node["list"]]
    if "tuple" in node:
        return tuple(_read(child, leaf) for child in node["tuple"])
    return leaf(node)
