"""A result written as a store that is finished: no sweep goes on in it."""

import os
from collections.abc import Mapping
from typing import Any

import jax.tree_util as jtu
import numpy as np
from jaxtyping import Int8, Int64

from ..._errors import message, value_error
from ..._files import as_path
from ..._spaces import Space
from ..._types import PyTree
from ..store import (
    Folder,
    Store,
    StoreLayout,
    Taken,
    check_zarr,
    choose_chunks,
    lay_out,
    open_store,
    settle,
)
from .label import storable
from .layout import layout_of
from .output_coords import KnownCoords

_FUNCTION = "SweepResult.save"
_CHUNK_BYTES = 64 * 1024 * 1024
"""Bytes of the values in a chunk, at most, unless one point has more."""


def save(
    path: str | os.PathLike[str],
    overwrite: bool,
    outputs: PyTree,
    space: Space,
    status: Int8[np.ndarray, " points"],
    errors: Mapping[str, Int64[np.ndarray, " _failed"]],
    known: KnownCoords,
    made: Mapping[str, Any],
) -> None:
    """Write outputs at the points of a space; see `SweepResult.save`."""
    check_zarr(_FUNCTION)
    place = as_path(_FUNCTION, path)
    if place.suffix != ".zarr":
        raise value_error(
            _FUNCTION,
            f"`path` is {str(place)!r}, with the suffix {place.suffix!r}.",
            "Give a path that ends in `.zarr`. For NetCDF: "
            "`result.to_xarray().to_netcdf(path)`.",
        )
    leaves = jtu.tree_leaves(outputs)
    row = [storable(leaf[:0])[:0] for leaf in leaves]
    structs = [np.empty(x.shape[1:], x.dtype) for x in row]
    row_bytes = sum(x.nbytes for x in structs)
    lengths = tuple(space.dims.values())
    most = max(1, _CHUNK_BYTES // max(1, row_bytes))
    chunks = choose_chunks(lengths, min(space.size, most), most)
    layout = layout_of(
        _FUNCTION, outputs, structs, space, known, chunks, made, {"saved": True}
    )

    def fill(store: Store) -> None:
        for number in range(len(store.chunks)):
            first, last = store.chunks.span(number)
            values = [storable(leaf[first:last]) for leaf in leaves]
            here = {
                text: points[(points >= first) & (points < last)] - first
                for text, points in errors.items()
            }
            store.commit(number, values, status[first:last], here)

    _put(Folder(place), layout, fill, overwrite)


def _put(files: Folder, layout: StoreLayout, fill: Any, overwrite: bool) -> None:
    """Write a store where there is none, or in the place of another one."""
    if files.is_vacant():
        files.path.mkdir(parents=True, exist_ok=True)
        try:
            return lay_out(files, layout, fill)
        except BaseException:
            files.give_up()
            raise
    if not overwrite:
        raise _taken(files, "there is something at", "already")
    try:
        old = open_store(_FUNCTION, files)
    except ValueError as error:
        wrong = "what is not a result of eqx_pipe is not overwritten:"
        raise _taken(files, wrong, "") from error
    try:
        with files.lock("all"):
            lay_out(files, layout, fill, old)
            settle(files)
    except Taken as taken:
        raise _taken(files, "a sweep fills the store", f"({taken})") from None


def _taken(files: Folder, wrong: str, more: str) -> FileExistsError:
    return FileExistsError(
        message(
            _FUNCTION,
            f"{wrong} {files.place()!r} {more}".rstrip() + ".",
            "Choose another path, remove it yourself, or give `overwrite=True` for a "
            "result that was saved before.",
        )
    )
