"""The files of a store that hold no values: metadata, coordinates and the record.

All metadata stand in one file, `zarr.json`, which xarray and we read. It is written
last: with it the other files are a store, and replacing it has a store grow. A checksum
over all of it is part of the record.
"""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..._errors import value_error
from .chunks import Chunks
from .codec import STATUS_CODECS, VALUE_CODECS, checksum, compress, raw_of
from .disk import ROOT, Files

FORMAT = 3
"""The version of the format of stores."""

RECORD = "eqx_pipe_store"
"""The attribute that says what a store is for: a checksum and JSON, as text."""

SIDES = ({"name": "default", "root": "c/"}, {"name": "v2", "root": ""})
"""The two ways in which Zarr names the files of chunks: `c/0/1` and `0/1`.

An array that is laid out anew has its files beside the old ones, under the names of the
other kind.
"""

_COORDINATE = 2**22
"""Numbers in a file of a coordinate, at most."""


@dataclasses.dataclass(frozen=True)
class Variable:
    """An array with a leading axis for each dim of the grid, then its `inner` shape."""

    name: str
    dtype: np.dtype
    inner: tuple[int, ...] = ()
    inner_dims: tuple[str, ...] = ()

    @property
    def fill(self) -> np.generic:
        """The value of rows that are missing."""
        return self.dtype.type(0 if self.dtype.kind in "biu" else np.nan)


@dataclasses.dataclass(frozen=True)
class StoreLayout:
    """All that is known of a store before there is any value.

    `coordinates` have dims, values and attributes; `status` is the name of the array
    that says which points are there; `record` says what the store is for, as JSON.
    """

    dims: tuple[str, ...]
    chunks: Chunks
    coordinates: Mapping[str, tuple[Sequence[str], np.ndarray, Mapping[str, Any]]]
    variables: Sequence[Variable]
    status: str
    attributes: Mapping[str, Any]
    record: Mapping[str, Any]


def files_of(
    layout: StoreLayout, cut: str, sides: Mapping[str, int]
) -> tuple[dict[str, bytes], bytes]:
    """Return the files of a store without values, and the `zarr.json` that makes it.

    `cut` is an id of how the points lie in files, and `sides` has the arrays whose
    files have other names than usual.
    """
    files: dict[str, bytes] = {}
    nodes: dict[str, Any] = {}
    digests: dict[str, Any] = {}
    marked = [layout.status]
    # The status is first: who loads all in order reads it before values.
    for variable in (Variable(layout.status, np.dtype(np.int8)), *layout.variables):
        nodes[variable.name] = _array_node(
            layout, variable, sides.get(variable.name, 0)
        )
    for name, (dims, values, attrs) in layout.coordinates.items():
        values = values.astype(object) if values.dtype.kind == "U" else values
        nodes[name], raw = _coordinate(name, dims, values, attrs, sides.get(name, 0))
        files |= {key: compress(part) for key, part in raw.items()}
        digests[name] = [list(dims), coordinate_digest(name, list(raw.values()))]
        marked += [] if tuple(dims) == (name,) else [name]
    for name, node in nodes.items():
        files[f"{name}/{ROOT}"] = json.dumps(node).encode()
    record = {
        "format": FORMAT,
        "dims": list(layout.dims),
        "lengths": list(layout.chunks.lengths),
        "split": layout.chunks.split,
        "count": layout.chunks.count,
        "status": layout.status,
        "variables": [
            [v.name, v.dtype.str, list(v.inner), list(v.inner_dims)]
            for v in layout.variables
        ],
        "coordinates": digests,
        "cut": cut,
        "sides": {name: side_of(node) for name, node in nodes.items()},
        **layout.record,
    }
    root = {
        "zarr_format": 3,
        "node_type": "group",
        "attributes": {**layout.attributes, "coordinates": " ".join(marked)},
        "consolidated_metadata": {
            "kind": "inline",
            "must_understand": False,
            "metadata": nodes,
        },
    }
    return files, _sealed(root, json.dumps(record))


def _array_node(layout: StoreLayout, variable: Variable, side: int) -> dict[str, Any]:
    """Return Zarr's metadata of the status, or of an array of values."""
    codecs = STATUS_CODECS if variable.name == layout.status else VALUE_CODECS
    return _node(
        (*layout.chunks.lengths, *variable.inner),
        # Zarr takes axes of size 0, but not chunks of it.
        (*layout.chunks.shape, *variable.inner),
        variable.dtype,
        (*layout.dims, *variable.inner_dims),
        codecs,
        side,
        {},
    )


def _coordinate(
    name: str, dims: Sequence[str], values: np.ndarray, attrs: Any, side: int
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return Zarr's metadata of a coordinate, and what its files hold."""
    inner = values.shape[1:]
    count = max(1, min(len(values), _COORDINATE // max(1, math.prod(inner))))
    node = _node(
        values.shape, (count, *inner), values.dtype, dims, VALUE_CODECS, side, attrs
    )
    files = {}
    for key, start in _coordinate_keys(name, values.shape, count, side):
        fill = "" if values.dtype.kind == "O" else Variable("", values.dtype).fill
        part = np.full((count, *inner), fill, values.dtype)
        some = values[start : start + count]
        part[: len(some)] = some
        files[key] = raw_of(part)
    return node, files


def _coordinate_keys(
    name: str, shape: Sequence[int], count: int, side: int
) -> list[tuple[str, int]]:
    """Return the files of a coordinate, each with its first position."""
    if 0 in shape:
        return []
    behind = "/0" * (len(shape) - 1)
    starts = range(0, shape[0], count)
    return [
        (f"{name}/{SIDES[side]['root']}{k}{behind}", start)
        for k, start in enumerate(starts)
    ]


def coordinate_files(
    root: Mapping[str, Any], name: str
) -> list[tuple[str, tuple[int, ...]]]:
    """Return the files of a coordinate, each with the shape of what it holds."""
    node = nodes_of(root)[name]
    shape, part = node["shape"], node["chunk_grid"]["configuration"]["chunk_shape"]
    keys = _coordinate_keys(name, shape, part[0], side_of(node))
    return [(key, tuple(part)) for key, _ in keys]


def _node(
    shape: Sequence[int],
    chunks: Sequence[int],
    dtype: np.dtype,
    dims: Sequence[str],
    codecs: list[Any],
    side: int,
    attrs: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the metadata of an array as Zarr's format 3 has them."""
    text = dtype.kind == "O"
    endian = {} if dtype.itemsize == 1 else {"configuration": {"endian": "little"}}
    first = {"name": "vlen-utf8"} if text else {"name": "bytes", **endian}
    fills = {"b": False, "O": "", "f": "NaN", "c": ["NaN", 0.0]}
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": "string" if text else dtype.name,
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": [max(1, n) for n in chunks]},
        },
        "chunk_key_encoding": {
            "name": SIDES[side]["name"],
            "configuration": {"separator": "/"},
        },
        "fill_value": fills.get(dtype.kind, 0),
        "codecs": [first, *codecs],
        "attributes": dict(attrs),
        "dimension_names": list(dims),
        "storage_transformers": [],
    }


def nodes_of(root: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of all arrays of a store."""
    return root["consolidated_metadata"]["metadata"]


def side_of(node: Mapping[str, Any]) -> int:
    """Return which names the files of an array have."""
    return int(node["chunk_key_encoding"]["name"] == SIDES[1]["name"])


def coordinate_digest(name: str, raw: Sequence[bytes]) -> int:
    """Return the digest of a coordinate: of its name and the bytes of its files."""
    return checksum(b"".join(raw), checksum(f"{name} ".encode()))


def _sealed(root: dict[str, Any], record: str) -> bytes:
    """Return `zarr.json` with its record, which begins with a checksum of it all."""
    attributes = {**root["attributes"], RECORD: f"{_seal(root, record)} {record}"}
    return json.dumps({**root, "attributes": attributes}).encode()


def _seal(root: dict[str, Any], record: str) -> str:
    attributes = {**root["attributes"], RECORD: record}
    text = json.dumps({**root, "attributes": attributes}, sort_keys=True)
    return f"{checksum(text.encode()):08x}"


def read_root(function: str, files: Files) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the metadata of a store and its record.

    Raises a `ValueError` if something else is there, if a bit of it has changed, or if
    it has another version of the format.
    """
    place = files.place()
    try:
        data = files.get(ROOT)
    except (FileNotFoundError, NotADirectoryError):
        raise _foreign(function, place, "has no `zarr.json`") from None
    return parse_root(function, place, data)


def parse_root(
    function: str, place: str, data: bytes
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what `read_root` does, from the bytes of `zarr.json`."""
    try:
        root = json.loads(data)
        text = root["attributes"].get(RECORD)
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise damaged(function, place, f"it cannot be read ({error})") from error
    if text is None:
        raise _foreign(function, place, "was not created by a sweep")
    seal, _, text = str(text).partition(" ")
    if seal != _seal(root, text):
        raise damaged(function, place, "its checksum differs")
    record = json.loads(text)
    if record["format"] != FORMAT:
        raise value_error(
            function,
            f"the store `{place}` has the format {record['format']!r}, this "
            f"version of eqx_pipe knows the format {FORMAT}.",
            "Use the version that created it (its attribute `eqx_pipe`), or give a "
            "path where there is nothing yet.",
        )
    return root, record


def _foreign(function: str, place: str, what: str) -> ValueError:
    return value_error(
        function,
        f"`{place}` is no store: it {what}.",
        "It is left as it is. Give a path where there is nothing yet, or a store "
        "that `sweep(..., store=)` has created.",
    )


def damaged(function: str, place: str, what: str) -> ValueError:
    """Return the error for metadata that are not what was written."""
    return value_error(
        function,
        f"`{place}/{ROOT}` is damaged or was changed: {what}.",
        "Put it back from a copy of the store, or give another path. What xarray or "
        "Zarr has copied is no store: copy the folder (`cp -r`). `xarray.open_zarr` "
        "may still show the values.",
    )
