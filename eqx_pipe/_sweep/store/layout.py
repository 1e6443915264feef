"""The files of a store without values: metadata, coordinates and the record.

All metadata are in `zarr.json`. It is written last: without it the other files are not
a store, and replacing it makes a store grow. Its record has a checksum over all of it.
"""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..._errors import value_error
from .chunk_bytes import STATUS_CODECS, VALUE_CODECS, checksum, compress, raw_of
from .chunks import Chunks
from .disk import GROWING, ROOT, Folder

FORMAT = 5
"""The version of the format of stores."""

RECORD = "eqx_pipe_store"
"""The attribute with the record of a store: a checksum and JSON, as text."""

SIDES = ({"name": "default", "root": "c."}, {"name": "v2", "root": ""})
"""The two ways in which Zarr names the files of chunks: `c.0.1` and `0.1`.

When the layout of an array changes, its new files have names of the other kind, next to
the old files. All files of an array are in one folder, which can be listed at once.
"""

_COORDINATE = 2**22
"""The maximum number of values in a file of a coordinate."""


@dataclasses.dataclass(frozen=True)
class Variable:
    """An array with a leading axis for each dim of the grid, then its `inner` shape."""

    name: str
    dtype: np.dtype
    inner: tuple[int, ...] = ()
    inner_dims: tuple[str, ...] = ()

    @property
    def fill(self) -> np.generic:
        """The value of missing rows."""
        return self.dtype.type(0 if self.dtype.kind in "biu" else np.nan)

    def empty(self, count: int) -> np.ndarray:
        """Return the values of `count` missing rows."""
        return np.full((count, *self.inner), self.fill, self.dtype)


@dataclasses.dataclass(frozen=True)
class StoreLayout:
    """The layout of a store without values.

    `coordinates` have dims, values and attributes; `status` is the name of the array
    with the status of points; `record` identifies the sweep, as JSON.
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
) -> tuple[dict[str, bytes], dict[str, Any], dict[str, Any]]:
    """Return the files of a store without values, its metadata, and the record.

    `cut` identifies the assignment of points to files, and `sides` has the arrays whose
    files do not have default names.
    """
    # The status comes first, so that loading arrays in order reads it before values.
    arrays = (Variable(layout.status, np.dtype(np.int8)), *layout.variables)
    nodes = {
        array.name: _array_node(layout, array, sides.get(array.name, 0))
        for array in arrays
    }
    files: dict[str, bytes] = {}
    coordinates: dict[str, Any] = {}
    for name, (dims, values, attrs) in layout.coordinates.items():
        side = sides.get(name, 0)
        nodes[name], raw = _coordinate(dims, values, attrs, side)
        raw = {f"{name}/{key}": part for key, part in raw.items()}
        files |= {key: compress(part) for key, part in raw.items()}
        parts = [[key, coordinate_digest(name, part)] for key, part in raw.items()]
        coordinates[name] = [list(dims), parts]
    files |= {
        f"{name}/{ROOT}": json.dumps(node).encode() for name, node in nodes.items()
    }
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
        "coordinates": coordinates,
        "cut": cut,
        "sides": {name: sides.get(name, 0) for name in nodes},
        **layout.record,
    }
    marked = [
        name for name, (dims, *_) in layout.coordinates.items() if [*dims] != [name]
    ]
    root = {
        "zarr_format": 3,
        "node_type": "group",
        "attributes": {
            **layout.attributes,
            "coordinates": " ".join([layout.status, *marked]),
        },
        "consolidated_metadata": {
            "kind": "inline",
            "must_understand": False,
            "metadata": nodes,
        },
    }
    return files, root, record


def _array_node(layout: StoreLayout, variable: Variable, side: int) -> dict[str, Any]:
    """Return Zarr's metadata of the status, or of an array of values."""
    codecs = STATUS_CODECS if variable.name == layout.status else VALUE_CODECS
    return _node(
        (*layout.chunks.lengths, *variable.inner),
        (*layout.chunks.shape, *variable.inner),
        variable.dtype,
        (*layout.dims, *variable.inner_dims),
        codecs,
        side,
        {},
    )


def _coordinate(
    dims: Sequence[str], values: np.ndarray, attrs: Any, side: int
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return Zarr's metadata of a coordinate, and the contents of its files."""
    values = values.astype(object) if values.dtype.kind == "U" else values
    inner = values.shape[1:]
    count = max(1, min(len(values), _COORDINATE // max(1, math.prod(inner))))
    chunks = (count, *inner)
    node = _node(values.shape, chunks, values.dtype, dims, VALUE_CODECS, side, attrs)
    # In Zarr the last chunk is as long as the others.
    rest = [(0, -len(values) % count), *[(0, 0)] * len(inner)]
    fill: Any = {"constant_values": ""} if values.dtype.kind == "O" else {}
    parts = np.pad(values, rest, **fill).reshape(-1, *chunks) if values.size else []
    root, behind = SIDES[side]["root"], ".0" * len(inner)
    return node, {f"{root}{k}{behind}": raw_of(part) for k, part in enumerate(parts)}


def _node(
    shape: Sequence[int],
    chunks: Sequence[int],
    dtype: np.dtype,
    dims: Sequence[str],
    codecs: list[Any],
    side: int,
    attrs: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the metadata of an array in Zarr's format 3."""
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
            # Zarr supports axes of size 0, but not chunks of size 0.
            "configuration": {"chunk_shape": [max(1, n) for n in chunks]},
        },
        "chunk_key_encoding": {
            "name": SIDES[side]["name"],
            "configuration": {"separator": "."},
        },
        "fill_value": fills.get(dtype.kind, 0),
        "codecs": [first, *codecs],
        "attributes": dict(attrs),
        "dimension_names": list(dims),
        "storage_transformers": [],
    }


def coordinate_digest(name: str, raw: bytes) -> int:
    """Return the digest of a part of a coordinate together with its name."""
    return checksum(raw, checksum(f"{name} ".encode()))


def sealed(root: Mapping[str, Any], record: Mapping[str, Any]) -> bytes:
    """Return `zarr.json` with a record, which begins with a checksum of the file."""
    text = json.dumps(record)
    return json.dumps(_with_record(root, f"{_seal(root, text)} {text}")).encode()


def _with_record(root: Mapping[str, Any], record: str) -> dict[str, Any]:
    return {**root, "attributes": {**root["attributes"], RECORD: record}}


def _seal(root: Mapping[str, Any], record: str) -> str:
    text = json.dumps(_with_record(root, record), sort_keys=True)
    return f"{checksum(text.encode()):08x}"


def read_root(function: str, files: Folder) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the metadata of a store and its record.

    Raises a `ValueError` if it is not a store, if it was changed, or for another
    version of the format.
    """
    place = files.place()
    try:
        root = json.loads(files.get(ROOT))
        text = root["attributes"].get(RECORD)
    except (FileNotFoundError, NotADirectoryError):
        if files.exists(GROWING) and files.is_vacant():
            raise value_error(
                function,
                f"the store `{place}` is not complete: its creation has not finished.",
                "Wait until the sweep that creates it has begun to compute. If it was "
                "stopped, call the same sweep again.",
            ) from None
        raise _foreign(function, place, "has no `zarr.json`") from None
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(function, place, f"it cannot be read ({error})") from error
    if text is None:
        raise _foreign(function, place, "was not created by a sweep")
    seal, _, text = str(text).partition(" ")
    if seal != _seal(root, text):
        raise _damaged(function, place, "its checksum differs")
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
        f"`{place}` is not a store: it {what}.",
        "It is left as it is. Give a path where there is nothing yet, or a store "
        "that `sweep(..., store=)` has created.",
    )


def _damaged(function: str, place: str, what: str) -> ValueError:
    """Return the error for metadata that differ from those written."""
    return value_error(
        function,
        f"`{place}/{ROOT}` is damaged or was changed: {what}.",
        "Put it back from a copy of the store, or give another path. A copy that "
        "xarray or Zarr wrote is not a store: copy the folder (`cp -r`). "
        "`xarray.open_zarr` may still show the values.",
    )
