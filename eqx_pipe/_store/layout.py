"""How a new store is made: all at once, so that nobody ever sees half of it."""

import contextlib
import dataclasses
import json
import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .chunks import Chunks
from .folder import as_zarr, quiet
from .record import FORMAT, RECORD


@dataclasses.dataclass(frozen=True)
class Variable:
    """An array with a leading axis for each dim of the grid, or the status."""

    name: str
    dtype: np.dtype
    inner: tuple[int, ...] = ()
    inner_dims: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class StoreLayout:
    """All that is known of a store before there is any value.

    `record` says what the store is for and must be JSON; `status` is the name of the
    array that says which points are there.
    """

    dims: tuple[str, ...]
    chunks: Chunks
    coordinates: Mapping[str, Any]
    variables: Sequence[Variable]
    status: str
    attributes: Mapping[str, Any]
    record: Mapping[str, Any]


def create(path: Path, layout: StoreLayout) -> None:
    """Makes a store at `path`, unless another process has made one meanwhile."""
    path = Path(os.path.realpath(path))  # where a link leads
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.parent / f".{path.name}.{uuid.uuid4().hex}.partial"
    try:
        _write(aside, layout)
        with contextlib.suppress(FileExistsError, OSError):
            # Onto a folder with something in it this fails: the other's store stands.
            os.rename(aside, path)
            return
        if not any(path.iterdir()):  # an empty folder, on Windows
            path.rmdir()
            os.rename(aside, path)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _write(path: Path, layout: StoreLayout) -> None:
    import zarr

    _write_coordinates(path, layout)
    folder = as_zarr(path)
    group = zarr.open_group(folder, mode="r+", use_consolidated=False)
    for variable in layout.variables:
        _array(group, layout, variable)
    _array(group, layout, Variable(layout.status, np.dtype(np.int8)))
    marked = str(group.attrs.get("coordinates", "")).split()
    group.attrs["coordinates"] = " ".join([*marked, layout.status])
    record = {
        "format": FORMAT,
        "split": layout.chunks.split,
        "count": layout.chunks.count,
        "lengths": layout.chunks.lengths,
        "variables": [variable.name for variable in layout.variables],
        "status": layout.status,
        **layout.record,
    }
    group.attrs[RECORD] = json.dumps(record)
    with quiet():
        zarr.consolidate_metadata(folder)


def _write_coordinates(path: Path, layout: StoreLayout) -> None:
    # By xarray, which knows how to write texts and which coordinates to mark as such.
    import xarray

    coordinates = {
        name: (dims, value.astype(object) if value.dtype.kind == "U" else value, attrs)
        for name, (dims, value, attrs) in layout.coordinates.items()
    }
    dataset = xarray.Dataset(coords=coordinates, attrs=dict(layout.attributes))
    with quiet():
        dataset.to_zarr(as_zarr(path), zarr_format=3, consolidated=False)


def _array(group: Any, layout: StoreLayout, variable: Variable) -> None:
    from zarr.codecs import Crc32cCodec, ZstdCodec

    is_status = variable.name == layout.status
    fill = 0 if is_status or variable.dtype.kind in "biu" else np.nan
    group.create_array(
        variable.name,
        shape=(*layout.chunks.lengths, *variable.inner),
        chunks=(*layout.chunks.shape, *(max(1, n) for n in variable.inner)),
        dtype=variable.dtype,
        fill_value=variable.dtype.type(fill),
        dimension_names=(*layout.dims, *variable.inner_dims),
        # The checksum tells a chunk that was cut off or damaged.
        compressors=[ZstdCodec(level=1), Crc32cCodec()],
    )
