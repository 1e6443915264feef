"""How a new store is made, all at once, and what its record says of it when it is read.

Nobody ever sees half of a store; and nothing is made of a record before it is checked.
"""

import dataclasses
import json
import math
import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._errors import describe_value, value_error
from .chunks import Chunks
from .folder import as_zarr, is_name, quiet_zarr
from .ledger import LEDGER

FORMAT = 2
"""The version of what is written in a store."""

RECORD = "eqx_pipe_store"
"""The attribute that says what a store is for, as JSON text."""

COUNT = range(1, 2**63)
"""In a schema: what can be counted."""

_SIZE = range(2**63)

_LAYOUT = {
    "lengths": [_SIZE],
    "split": range(64),
    "count": COUNT,
    "variables": [str],
    "status": str,
    "generation": range(2**31),
}

SIDES = ("default", "v2")
"""How Zarr names the files of chunks: `c/0/1` and `0/1`. Where an array is laid out
anew its files stand beside the old ones under the names of the other kind.
"""


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
    array that says which points are there. `generation` counts how often the store has
    grown, and `sides` has the arrays whose files are not named as usual.
    """

    dims: tuple[str, ...]
    chunks: Chunks
    coordinates: Mapping[str, Any]
    variables: Sequence[Variable]
    status: str
    attributes: Mapping[str, Any]
    record: Mapping[str, Any]
    generation: int = 0
    sides: Mapping[str, str] = dataclasses.field(default_factory=dict)


def create(path: Path, layout: StoreLayout) -> None:
    """Makes a store at `path`, unless another process has made one meanwhile."""
    path = Path(os.path.realpath(path))  # where a link leads
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.parent / f".{path.name}.{uuid.uuid4().hex}.partial"
    try:
        write(aside, layout)
        try:
            os.rename(aside, path)
            return
        except OSError:
            # Onto a folder with something in it this fails: the other's store stands.
            if not path.is_dir():
                raise
        if not any(path.iterdir()):  # an empty folder, on Windows
            path.rmdir()
            os.rename(aside, path)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def write(path: Path, layout: StoreLayout) -> None:
    """Writes a store without values where there is nothing."""
    import zarr

    _write_coordinates(path, layout)
    folder = as_zarr(path)
    group = zarr.open_group(folder, mode="r+", use_consolidated=False)
    status = Variable(layout.status, np.dtype(np.int8))
    # The status is first: who loads all, one after the other, reads it before values.
    _array(group, layout, status, layout.chunks.coarse())
    for variable in layout.variables:
        _array(group, layout, variable, layout.chunks)
    (path / numbered(LEDGER, layout.generation)).mkdir()
    marked = str(group.attrs.get("coordinates", "")).split()
    group.attrs["coordinates"] = " ".join([*marked, layout.status])
    record = {
        "format": FORMAT,
        "split": layout.chunks.split,
        "count": layout.chunks.count,
        "lengths": layout.chunks.lengths,
        "variables": [variable.name for variable in layout.variables],
        "status": layout.status,
        "generation": layout.generation,
        **layout.record,
    }
    group.attrs[RECORD] = json.dumps(record)
    with quiet_zarr():
        zarr.consolidate_metadata(folder)


def _write_coordinates(path: Path, layout: StoreLayout) -> None:
    # By xarray, which knows how to write texts and which coordinates to mark as such.
    import xarray

    coordinates = {
        # As objects, since format 3 of Zarr leaves open how texts of fixed width are
        # stored.
        name: (dims, value.astype(object) if value.dtype.kind == "U" else value, attrs)
        for name, (dims, value, attrs) in layout.coordinates.items()
    }
    dataset = xarray.Dataset(coords=coordinates, attrs=dict(layout.attributes))
    with quiet_zarr():
        dataset.to_zarr(as_zarr(path), zarr_format=3, consolidated=False)
    for name, side in layout.sides.items():
        if side != SIDES[0] and name in coordinates:
            _rename_chunks(path / name, side)


def _rename_chunks(path: Path, side: str) -> None:
    """Gives the files of an array the other names."""
    assert side == SIDES[1]
    metadata = json.loads((path / "zarr.json").read_text())
    metadata["chunk_key_encoding"] = encoding(side)
    (path / "zarr.json").write_text(json.dumps(metadata))
    if (path / "c").is_dir():
        for file in (path / "c").iterdir():
            file.rename(path / file.name)
        (path / "c").rmdir()


def encoding(side: str) -> dict[str, Any]:
    """A side, as Zarr's metadata say it."""
    return {"name": side, "configuration": {"separator": "/"}}


def numbered(folder: str, generation: int) -> str:
    """The folder of logs of a store that has grown so often."""
    return f"{folder}-{generation}" if generation else folder


def _array(group: Any, layout: StoreLayout, variable: Variable, chunks: Chunks) -> None:
    from zarr.codecs import Crc32cCodec, ZstdCodec

    fill = 0 if variable.dtype.kind in "biu" else np.nan
    # A chunk of a sweep is one of Zarr's in each array: two writers in one of these
    # would lose data without a word.
    group.create_array(
        variable.name,
        shape=(*layout.chunks.lengths, *variable.inner),
        # Zarr takes axes of size 0, but not chunks of it.
        chunks=(*chunks.shape, *(max(1, n) for n in variable.inner)),
        dtype=variable.dtype,
        fill_value=variable.dtype.type(fill),
        chunk_key_encoding=encoding(layout.sides.get(variable.name, SIDES[0])),
        dimension_names=(*layout.dims, *variable.inner_dims),
        # The checksum tells a chunk that was cut off or damaged.
        compressors=[ZstdCodec(level=1), Crc32cCodec()],
    )


def metadata_of(path: Path) -> dict[str, Any]:
    """The metadata of a group or an array."""
    return json.loads((path / "zarr.json").read_text())


def generation_of(path: Path) -> int:
    """How often the store at a path has grown by now."""
    return json.loads(metadata_of(path)["attributes"][RECORD]).get("generation", 0)


def read_record(function: str, path: Path, text: str) -> dict[str, Any]:
    """The record of the store at `path`, of which the part on its layout is checked."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise damaged(function, path, f"it is no JSON ({error})") from error
    check_record(function, path, record, {"format": int})
    if record["format"] != FORMAT:
        raise value_error(
            function,
            f"the store `{path}` has the format {record['format']!r}, this "
            f"version of eqx_pipe knows the format {FORMAT}.",
            "Use the version that made it (its attribute `eqx_pipe`), or give a "
            "path where there is nothing yet.",
        )
    record.setdefault("generation", 0)
    check_record(function, path, record, _LAYOUT)
    lengths, split, names = record["lengths"], record["split"], record["variables"]
    if split >= len(lengths) or record["count"] > max(1, lengths[split]):
        wrong = f"`split` and `count` are {split} and {record['count']}"
        raise damaged(function, path, f"{wrong} for the lengths {lengths}")
    if math.prod(lengths) not in _SIZE:
        raise damaged(function, path, f"`lengths` is {lengths}")
    names = [*names, record["status"]]
    if len(set(names)) < len(names) or not all(map(is_name, names)):
        wrong = describe_value(names)
        raise damaged(function, path, f"the names of its arrays are {wrong}")
    return record


def check_record(function: str, path: Path, record: Any, schema: Any) -> None:
    """Raises a `ValueError` unless a record is as a schema says."""
    found = misfit(record, schema)
    if found is not None:
        raise damaged(function, path, found)


def misfit(value: Any, schema: Any, place: str = "") -> str | None:
    """Where a value that was read from JSON is not as its schema says, if anywhere.

    A schema is a type; a range, for an integer in it; a list of one schema, for a list
    of any length; a dict with the key `str`, for a dict with any keys; or a dict with
    the keys that there must be, beside others.
    """
    kind = schema if isinstance(schema, type) else type(schema)
    fits = isinstance(value, int if kind is range else kind)
    if not fits or type(value) is bool or (kind is range and value not in schema):
        # A list or a dict may be too deep to be written down.
        nested = isinstance(value, list | dict)
        came = f"a {type(value).__name__}" if nested else describe_value(value)
        return f"{_named(place)} is {came}"
    children: list[tuple[str, Any, Any]] = []
    if isinstance(schema, list):
        children = [(f"{place}[{i}]", x, schema[0]) for i, x in enumerate(value)]
    elif isinstance(schema, dict):
        inner = dict.fromkeys(value, schema[str]) if str in schema else schema
        for key, each in inner.items():
            if key not in value:
                return f"{_named(place)} has no `{key}`"
            children.append((f"{place}.{key}" if place else key, value[key], each))
    found = (misfit(x, each, name) for name, x, each in children)
    return next((text for text in found if text is not None), None)


def _named(place: str) -> str:
    return f"`{place}`" if place else "it"


def damaged(function: str, path: Path, what: str) -> ValueError:
    """The error for a record that is not what it was when the store was made."""
    return value_error(
        function,
        f"the record of the store `{path}` is damaged: {what}.",
        "Put back its `zarr.json` from a copy, or give another path; "
        "`xarray.open_zarr` may still show the values.",
    )
