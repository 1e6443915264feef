"""Files of results: the layout of a store, a finished store, and reading any store."""

import datetime
import functools as ft
import importlib.metadata
import os
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._errors import message, nearest, value_error
from .._spaces import Space
from .._store import (
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
    commit_chunk,
    disk_errors,
    exists,
    lay_out,
    open_store,
    settle,
)
from .._tree import nbytes, struct_of
from .._types import PyTree
from .names import NamedDims, check_names, coordinates_of, names_of, storable
from .schema import read_tree, schema_of, space_from

ERRORS = "errors"
"""The attribute of a dataset with the error texts."""

SAVE, LOAD = "SweepResult.save", "SweepResult.load"
_FIELDS = (ERRORS, "eqx_pipe_store", "coordinates", "batch_size", "devices")
_FIELDS += ("seconds", "started", "function")
"""The attributes of a store that are fields of a result, or irrelevant to it."""

_CHUNK_BYTES = 64 * 1024 * 1024
"""The maximum bytes of the values in a chunk, unless one point has more."""


def layout_of(
    function: str,
    outputs: PyTree,
    row: Sequence[Any],
    space: Space,
    named: NamedDims,
    chunks: Chunks,
    made: Mapping[str, Any],
    record: Mapping[str, Any],
) -> StoreLayout:
    """Return the layout of a store of outputs, whose leaves have `row` at a point.

    `named` are the dims of outputs, `made` is their provenance, and `record` identifies
    the sweep. Raises a `ValueError` for names that a file cannot have.
    """
    names, status = names_of(outputs, space, named)
    variables = []
    for (name, dims), leaf in zip(names.items(), row, strict=True):
        kept = storable(np.empty((0, *leaf.shape), leaf.dtype))
        variables.append(Variable(name, kept.dtype, kept.shape[1:], dims))
    coordinates = coordinates_of(space, named)
    inner = [dim for dims in names.values() for dim in dims]
    check_names(function, [*space.dims, *coordinates, *names, *inner])
    return StoreLayout(
        dims=tuple(space.dims),
        chunks=chunks,
        coordinates=coordinates,
        variables=variables,
        status=status,
        attributes=attributes(space, made),
        record={**record, "schema": schema_of(outputs, list(names), space, named)},
    )


def attributes(space: Space, made: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a dataset: provenance and versions."""
    texts = {"space": repr(space), "space_mode": space.mode, "points": space.size}
    return {**texts, **versions(), **made}


def versions() -> dict[str, str]:
    """Return the versions of the packages that a sweep uses."""
    return {
        "platform": jax.default_backend(),
        "eqx_pipe": _installed("eqx_pipe"),
        "jax": jax.__version__,
        "equinox": _installed("equinox"),
        "python": platform.python_version(),
    }


@ft.cache  # it reads and parses a file
def _installed(package: str) -> str:
    return importlib.metadata.version(package)


def save(
    path: StoreLike, result: Any, made: Mapping[str, Any], overwrite: bool
) -> None:
    """Write a `SweepResult` to a store; `made` has its attributes."""
    check_zarr(SAVE)
    values, space, status = result.values, result.space, result.status
    files = as_files(SAVE, path, "path")
    where = files.path_of()
    suffix = os.path.splitext(where)[1]
    if suffix != ".zarr" and isinstance(path, str | os.PathLike):
        raise value_error(
            SAVE,
            f"`path` is {where!r}, with the suffix {suffix!r}.",
            "Give a path that ends in `.zarr`. For NetCDF: "
            "`result.to_xarray().to_netcdf(path)`.",
        )
    leaves = jtu.tree_leaves(values)
    structs = jtu.tree_map(ft.partial(struct_of, drop=1), values)
    row = [struct_of(storable(leaf[:0]), drop=1) for leaf in leaves]
    most = max(1, _CHUNK_BYTES // max(1, sum(map(nbytes, row))))
    lengths = tuple(space.dims.values())
    chunks = choose_chunks(lengths, min(space.size, most), most)
    named, record = result.output_coords, {"saved": True}
    layout = layout_of(SAVE, structs, row, space, named, chunks, made, record)

    def fill(store: Store) -> None:
        for number in range(len(store.chunks)):
            first, last = store.chunks.span(number)
            rows = [storable(leaf[first:last]) for leaf in leaves]
            failed = {
                text: points[(points >= first) & (points < last)] - first
                for text, points in result._errors.items()
            }
            status_here = status[first:last]
            if not commit_chunk(store, number, rows, status_here, failed, is_new=True):
                raise Taken("another process, which saves a result there")

    with disk_errors(where, "be written", SAVE):
        _put(files, layout, fill, overwrite)


def _put(files: Files, layout: StoreLayout, fill: Any, overwrite: bool) -> None:
    """Write a new store, or replace an existing one."""
    path, old = files.path_of(), None
    begun = exists(files) or os.path.isfile(path)
    if begun and not overwrite:
        raise _taken(f"{path!r} already exists.")
    try:
        if begun:
            old = open_store(SAVE, files)
        else:
            check_vacant(SAVE, files, ())
    except ValueError as error:
        wrong = f"only a result of eqx_pipe can be overwritten, not {path!r}."
        raise _taken(wrong) from error
    try:
        files.make()
        with files.lock("all"):
            lay_out(files, layout, fill, old)
            if old is not None:
                settle(files)
    except Taken as taken:
        raise _taken(f"a sweep fills the store {path!r} ({taken}).") from None


def _taken(wrong: str) -> FileExistsError:
    cure = "Choose another path, remove it yourself, or give `overwrite=True` for a "
    cure += "result that was saved before."
    return FileExistsError(message(SAVE, wrong, cure))


def check_folder(files: Files) -> None:
    """Raise unless there may be the store of a sweep in a folder."""
    if not isinstance(files, Folder):
        return
    folder = files.path
    try:
        os.lstat(folder)
    except (FileNotFoundError, NotADirectoryError):
        wrong = f"{str(folder)!r} does not exist."
        results = sorted(p.name for p in folder.parent.glob("*.zarr"))
        cure = "A result is the folder of `save` or `store=`, and relative paths begin "
        cure += f"where Python runs. {nearest(folder.name, results)}"
        raise FileNotFoundError(message(LOAD, wrong, cure)) from None
    others = {"round-0000.zarr": "search.SearchResult", "checkpoint": "TrainResult"}
    for name in others:
        if (folder / name).exists():
            wrong = f"{str(folder)!r} is not the store of a sweep."
            raise value_error(LOAD, wrong, f"Read it by `{others[name]}.load`.")


def fields_in(store: Store) -> dict[str, Any]:
    """Return the fields of the result in a store."""
    gaps, errors, done = store.account()
    names, attributes = store.names(), store.root["attributes"]
    schema = store.record["schema"]

    def stored(name: str, dtype: Any, kind: str | None = None) -> Any:
        array = StoredArray(store, names.index(name), dtype, kind, done)
        return array[...] if "saved" in store.record else array

    def leaf(node: dict[str, Any]) -> Any:
        return stored(node["array"], jnp.dtype(node["dtype"]), node.get("key"))

    seconds = attributes.get("seconds", "nan")  # unknown while a sweep runs
    return dict(
        values=read_tree(schema["outputs"], leaf),
        space=space_from(schema, store.coordinate),
        _gaps=gaps,
        batch_size=int(attributes["batch_size"]),
        num_devices=int(attributes["devices"]),
        started=datetime.datetime.fromisoformat(attributes["started"]).timestamp(),
        seconds=float(seconds),
        function=attributes.get("function", ""),
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
