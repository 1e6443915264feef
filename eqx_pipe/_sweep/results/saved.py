"""Results in files: saved as a finished store, and loaded from any store.

A store has arrays by name. Loading a result from it also requires the structure of the
outputs and of the points, the dtypes that files do not support, and the kinds of PRNG
keys. They are written as JSON, the schema, so that reading them runs no code.
"""

import base64
import datetime
import functools as ft
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np

from ..._errors import message, nearest, value_error
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
from ..._tree import is_key_array, key_kind, nbytes, path_name, struct_of
from ..._types import PyTree
from ..store import (
    Chunks,
    Files,
    Folder,
    Store,
    StoredArray,
    StoreLayout,
    StoreLike,
    Taken,
    Variable,
    as_files,
    check_vacant,
    check_zarr,
    choose_chunks,
    disk_errors,
    exists,
    lay_out,
    open_store,
    settle,
    well_formed,
)
from .label import (
    ERRORS,
    CellPoints,
    CellValues,
    KnownCoords,
    attributes,
    check_names,
    names_of,
    storable,
)

if TYPE_CHECKING:
    from .result import SweepResult
else:
    SweepResult = Any

_SAVE, _LOAD = "SweepResult.save", "SweepResult.load"
_FIELDS = (ERRORS, "eqx_pipe_store", "coordinates", "batch_size", "devices")
_FIELDS += ("seconds", "started", "function")
"""The attributes of a store that are fields of a result, or irrelevant to it."""

_CHUNK_BYTES = 64 * 1024 * 1024
"""The maximum bytes of the values in a chunk, unless one point has more."""


# Keep the record of a store small, since every reader of the store reads it.
_MOST_BYTES = 1024


def layout_of(
    function: str,
    outputs: PyTree,
    row: Sequence[Any],
    space: Space,
    known: KnownCoords,
    chunks: Chunks,
    made: Mapping[str, Any],
    record: Mapping[str, Any],
) -> StoreLayout:
    """Return the layout of a store of outputs, whose leaves have `row` at a point.

    `known` are the dims of outputs, `made` is their provenance, and `record` identifies
    the sweep. Raises a `ValueError` for names that a file cannot have.
    """
    names = names_of(outputs, space, known)
    variables = []
    for (name, dims), leaf in zip(names.outputs.items(), row, strict=True):
        kept = storable(np.empty((0, *leaf.shape), leaf.dtype))
        variables.append(Variable(name, kept.dtype, kept.shape[1:], dims))
    coordinates = names.coordinates()
    inner = [dim for dims in names.outputs.values() for dim in dims]
    check_names(function, [*space.dims, *coordinates, *names.outputs, *inner])
    return StoreLayout(
        dims=tuple(space.dims),
        chunks=chunks,
        coordinates=coordinates,
        variables=variables,
        status=names.status,
        attributes=attributes(space, made),
        record={
            **record,
            "schema": schema_of(outputs, list(names.outputs), space, known),
        },
    )


def write_result(result: SweepResult, path: StoreLike, overwrite: bool) -> None:
    """Write a result to a folder or bucket; see `SweepResult.save`."""
    check_zarr(_SAVE)
    files, space = as_files(_SAVE, path, "path"), result.space
    where = files.path_of()
    suffix = os.path.splitext(where)[1]
    if suffix != ".zarr" and isinstance(path, str | os.PathLike):
        raise value_error(
            _SAVE,
            f"`path` is {where!r}, with the suffix {suffix!r}.",
            "Give a path that ends in `.zarr`. For NetCDF: "
            "`result.to_xarray().to_netcdf(path)`.",
        )
    leaves, status = jtu.tree_leaves(result._outputs), result.status[...]
    structs = jtu.tree_map(ft.partial(struct_of, drop=1), result._outputs)
    row = [struct_of(storable(leaf[:0]), drop=1) for leaf in leaves]
    most = max(1, _CHUNK_BYTES // max(1, sum(map(nbytes, row))))
    lengths = tuple(space.dims.values())
    chunks = choose_chunks(lengths, min(space.size, most), most)
    made, known = result._provenance, result.output_coords
    layout = layout_of(_SAVE, structs, row, space, known, chunks, made, {"saved": True})

    def fill(store: Store) -> None:
        for number in range(len(store.chunks)):
            first, last = store.chunks.span(number)
            values = [storable(leaf[first:last]) for leaf in leaves]
            errors = {
                text: points[(points >= first) & (points < last)] - first
                for text, points in result._errors.items()
            }
            if not store.add(number, values, status[first:last], errors):
                raise Taken("another process, which saves a result there")

    with disk_errors(where, "be written", _SAVE):
        _put(files, layout, fill, overwrite)


def _put(files: Files, layout: StoreLayout, fill: Any, overwrite: bool) -> None:
    """Write a new store, or replace an existing one."""
    old, begun = None, exists(files) or os.path.isfile(files.path_of())
    if begun and not overwrite:
        raise _taken(files, "", "already exists")
    try:
        if begun:
            old = open_store(_SAVE, files)
        else:
            check_vacant(_SAVE, files, ())
    except ValueError as error:
        wrong = "only a result of eqx_pipe can be overwritten, not"
        raise _taken(files, wrong, "") from error
    try:
        files.make()
        with files.lock("all"):
            lay_out(files, layout, fill, old)
            if old is not None:
                settle(files)
    except Taken as taken:
        raise _taken(files, "a sweep fills the store", f"({taken})") from None


def _taken(files: Files, wrong: str, more: str) -> FileExistsError:
    return FileExistsError(
        message(
            _SAVE,
            f"{wrong} {files.path_of()!r} {more}".strip() + ".",
            "Choose another path, remove it yourself, or give `overwrite=True` for a "
            "result that was saved before.",
        )
    )


def read_fields(path: StoreLike) -> dict[str, Any]:
    """Return the fields of the result at a path; see `SweepResult.load`."""
    check_zarr(_LOAD)
    files = as_files(_LOAD, path, "path")
    folder = files.path_of()
    with disk_errors(folder, "be read", _LOAD):
        if isinstance(files, Folder):
            _check_folder(files.path)
        store = open_store(_LOAD, files)
        if "reduce" in store.record:
            raise value_error(
                _LOAD,
                f"the store {folder!r} keeps the states of a reduction.",
                "Call the same sweep with the same `reduce` and `store`: it computes "
                "only missing points. `xarray.open_zarr` shows the states.",
            )
        with well_formed(_LOAD, store.files):
            return _fields(store)


def _check_folder(folder: Path) -> None:
    """Raise unless there may be a store in a folder."""
    try:
        os.lstat(folder)
    except (FileNotFoundError, NotADirectoryError):
        wrong = f"{str(folder)!r} does not exist."
        raise FileNotFoundError(message(_LOAD, wrong, _hint(folder))) from None
    if (folder / "round-0000.zarr").is_dir():
        raise value_error(
            _LOAD,
            f"{str(folder)!r} is the folder of a search.",
            "Read it by `search.SearchResult.load`.",
        )


def _hint(path: Path) -> str:
    """Return a suggestion for a path that does not exist."""
    folder = path.parent
    if not folder.is_dir():
        return f"The folder {str(folder)!r} does not exist either: check the path."
    results = [p.name for p in folder.iterdir() if p.suffix == ".zarr"]
    if not results:
        return (
            "That folder contains no `.zarr`. Give the path that `SweepResult.save` or "
            "`sweep(..., store=)` was given; relative paths start from where Python "
            "runs."
        )
    # A folder may contain thousands of results.
    return nearest(path.name, sorted(results)[:20])


def _fields(store: Store) -> dict[str, Any]:
    """Return the fields of the result in a store."""
    gaps, errors, done = store.account()
    names, attributes = store.names(), store.root["attributes"]
    schema = store.record["schema"]

    def stored(name: str, dtype: Any, kind: str | None = None) -> Any:
        array = StoredArray(store, names.index(name), dtype, kind, done)
        return array[...] if "saved" in store.record else array

    def leaf(node: dict[str, Any]) -> Any:
        return stored(node["array"], jnp.dtype(node["dtype"]), node.get("key"))

    cells = [stored(name, np.dtype(np.int64))[...] for name in schema["cells"]]
    seconds = attributes.get("seconds", "nan")  # unknown while a sweep runs
    return dict(
        values=_read(schema["outputs"], leaf),
        space=space_from(schema, store.coordinate),
        _gaps=gaps,
        batch_size=int(attributes["batch_size"]),
        num_devices=int(attributes["devices"]),
        started=datetime.datetime.fromisoformat(attributes["started"]).timestamp(),
        seconds=float(seconds),
        function=attributes.get("function", ""),
        cells=CellPoints(*cells) if cells else None,
        made=tuple((k, v) for k, v in attributes.items() if k not in _FIELDS),
        _errors=errors,
        output_coords={
            path: {dim: _coords(store, dim) for dim in dims}
            for path, dims in schema["output_dims"].items()
        },
    )


def _coords(store: Store, dim: str) -> np.ndarray | None:
    if dim not in store.record["coordinates"]:
        return None
    values = store.coordinate(dim)
    return values.astype(np.str_) if values.dtype.kind == "O" else values


def schema_of(
    outputs: PyTree, names: list[str], space: Space, known: KnownCoords
) -> dict[str, Any]:
    """Return the schema of a result.

    `outputs` are the shapes and dtypes of one output, and `names` the variables of its
    leaves, in order. `known` are the named dims of outputs.
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

    space = Space(_read(schema["space"], part), schema["mode"])
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
        return {
            "axis": full,
            "dim": dim,
            "is_log": axis.is_log,
            "draws": axis.replicates,
            "attrs": axis.attrs,
            **_kind(leaf),
        }

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
