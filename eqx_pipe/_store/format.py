"""The format of a store: its metadata and record, and the bytes of its files.

All metadata are in `zarr.json`. It is written last: without it the other files are not
a store, and replacing it makes a store grow. Its record has a checksum over all of it.

Values use the codecs `zstd` and `crc32c` of Zarr. A status file is gzip with a comment
in its header (RFC 1952), which gzip readers skip. So one file, replaced atomically,
contains the status of each row for any reader, and the manifest of its chunk. Its size
modulo `_UNIT` is `_ALL_OK` if and only if all rows are ok, so a listing with sizes
finds the chunks with failed or missing rows, and no index can be lost.

A store may come from anybody. Sizes are checked before memory is allocated.
"""

import base64
import contextlib
import dataclasses
import json
import math
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .._errors import StructureError, value_error
from .disk import ROOT, Undecodable, is_name, most_bytes
from .objects import Files
from .partition import Chunks

FORMAT = 10
"""The version of the format of stores."""

RECORD = "eqx_pipe_store"
"""The attribute with the record of a store: a checksum and JSON, as text."""

SIDES = ({"name": "default", "root": "c."}, {"name": "v2", "root": ""})
"""The two ways in which Zarr names the files of chunks: `c.0.1` and `0.1`.

When the layout of an array changes, its new files have names of the other kind, next to
the old files. All files of an array are in one folder, which can be listed at once.
"""

MOST_CHUNKS = 2**24
"""The maximum number of chunks, whose names are listed one by one."""


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
    arrays = status_of(layout), *layout.variables
    nodes = {x.name: _array_node(layout, x, sides.get(x.name, 0)) for x in arrays}
    files: dict[str, bytes] = {}
    coordinates: dict[str, Any] = {}
    for name, (dims, values, attrs) in layout.coordinates.items():
        values = values.astype(object) if values.dtype.kind == "U" else values
        side, raw = sides.get(name, 0), raw_of(values)
        node = _coordinate_node(values.shape, values.dtype, dims, side, attrs)
        entry = {"dims": list(dims), "dtype": node["data_type"], "shape": node["shape"]}
        entry |= {"bytes": len(raw), "digest": coordinate_digest(name, raw)}
        nodes[name], coordinates[name] = node, entry
        if values.size:
            files[coordinate_key(name, values.ndim, side)] = compress(raw)
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
        "coordinates": coordinates,
        "cut": cut,
        "sides": {name: sides.get(name, 0) for name in nodes},
        **layout.record,
    }
    items = layout.coordinates.items()
    marked = [name for name, (dims, *_) in items if [*dims] != [name]]
    attributes = {
        **layout.attributes,
        "coordinates": " ".join([layout.status, *marked]),
    }
    metadata = {"kind": "inline", "must_understand": False, "metadata": nodes}
    root = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
    return files, root | {"consolidated_metadata": metadata}, record


def status_of(layout: StoreLayout) -> Variable:
    """Return the array with the status of points."""
    return Variable(layout.status, np.dtype(np.int8))


def _array_node(layout: StoreLayout, variable: Variable, side: int) -> dict[str, Any]:
    """Return Zarr's metadata of the status, or of an array of values."""
    codecs = STATUS_CODECS if variable.name == layout.status else VALUE_CODECS
    both = layout.chunks.lengths, layout.chunks.shape
    shape, chunk = ((*lengths, *variable.inner) for lengths in both)
    dims = *layout.dims, *variable.inner_dims
    return _node(shape, chunk, variable.dtype, dims, codecs, side, {})


def _coordinate_node(
    shape: Sequence[int], dtype: np.dtype, dims: Sequence[str], side: int, attrs: Any
) -> dict[str, Any]:
    """Return Zarr's metadata of a coordinate, which has one chunk."""
    return _node(shape, shape, dtype, dims, VALUE_CODECS, side, attrs)


def coordinate_key(name: str, ndim: int, side: int) -> str:
    """Return the key of the only file of a coordinate."""
    return f"{name}/{SIDES[side]['root']}{'.'.join('0' * ndim)}"


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
    """Return the digest of a coordinate together with its name."""
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


def read_root(function: str, files: Files) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the metadata of a store and its record.

    Raises a `ValueError` if it is not a store, if it was changed, or for another
    version of the format.
    """
    try:
        root = json.loads(files.get(ROOT))
        text = root["attributes"].get(RECORD)
        seal, _, text = (text or "").partition(" ")
        is_whole, record = seal == _seal(root, text), json.loads(text or "null")
    except (FileNotFoundError, NotADirectoryError):
        raise foreign(function, files, f"has no `{ROOT}`") from None
    except MALFORMED as error:
        raise damaged(function, files, f"it cannot be read ({error})") from error
    if record is None:
        raise foreign(function, files, "was not created by a sweep")
    if not is_whole:
        raise damaged(function, files, "its checksum differs")
    if isinstance(record, dict) and record.get("format") != FORMAT:
        raise value_error(
            function,
            f"the store `{files.path_of()}` has the format {record.get('format')!r}, "
            f"this version of eqx_pipe knows the format {FORMAT}.",
            "Use the version that created it (its attribute `eqx_pipe`), or give a "
            "path where there is nothing yet.",
        )
    with well_formed(function, files):
        _check(root, record)
    return root, record


MALFORMED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
MALFORMED += (RecursionError, MemoryError)
"""The errors that metadata cause if somebody has written them by hand."""


@contextlib.contextmanager
def well_formed(function: str, files: Files) -> Iterator[None]:
    """Raise a `ValueError` that names the store if its metadata are malformed.

    A checksum detects damage, but not a change by somebody who computes it again.
    """
    try:
        yield
    except StructureError:  # the store of another sweep
        raise
    except MALFORMED as error:
        if str(error).startswith(f"`eqx_pipe.{function}`"):  # it has a fix
            raise
        what = f"it describes no store of a sweep ({type(error).__name__}: {error})"
        raise damaged(function, files, what) from error


def _check(root: Mapping[str, Any], record: Mapping[str, Any]) -> None:
    """Raise a `MALFORMED` error for metadata that no sweep writes."""

    def require(is_right: bool, what: str) -> None:
        if not is_right:
            raise ValueError(what)

    def are_sizes(numbers: Sequence[Any]) -> bool:
        return all(type(n) is int and 0 <= n < 2**63 for n in numbers)

    dims, lengths, split = record["dims"], record["lengths"], record["split"]
    variables, coordinates = variables_of(record), record["coordinates"]
    names = [record["status"], *(v.name for v in variables), *coordinates]
    nodes, sides = root["consolidated_metadata"]["metadata"], record["sides"]
    require(all(map(is_name, [*names, record["cut"]])), "a name")
    require(len({*names}) == len(names), "two arrays of one name")
    require(nodes.keys() == sides.keys() == {*names}, "other arrays")
    require(len(dims) == len(lengths) > split, "other dims")
    require(are_sizes([*lengths, split, record["count"] - 1]), "a size")
    require(math.prod(lengths) < 2**63, "its points")
    chunks = chunks_of(record)
    require(len(chunks) <= MOST_CHUNKS, "its chunks")
    require(chunks.points <= most_bytes(), "a chunk larger than the memory")
    layout = StoreLayout(tuple(dims), chunks, {}, variables, record["status"], {}, {})
    arrays = status_of(layout), *variables
    expected = {x.name: _array_node(layout, x, sides[x.name]) for x in arrays}
    for name, recorded in coordinates.items():
        shape, length = recorded["shape"], dict(zip(dims, lengths, strict=True))
        require(are_sizes([*shape, recorded["bytes"], recorded["digest"]]), name)
        require(length.get(recorded["dims"][0], shape[0]) == shape[0], name)
        kind = coordinate_dtype(recorded), recorded["dims"], sides[name]
        expected[name] = _coordinate_node(shape, *kind, nodes[name]["attributes"])
    for name, node in expected.items():
        require(nodes[name] == node, name)


def chunks_of(record: Mapping[str, Any]) -> Chunks:
    """Return the chunks of a store."""
    return Chunks(tuple(record["lengths"]), record["split"], record["count"])


def variables_of(record: Mapping[str, Any]) -> list[Variable]:
    """Return the arrays of values of a store; their dtypes are numbers."""
    variables = []
    for name, dtype, inner, dims in record["variables"]:
        variable = Variable(name, np.dtype(dtype), tuple(inner), tuple(dims))
        if variable.dtype.kind not in "biufc" or any(n < 0 for n in inner):
            raise ValueError(f"an array {dtype}{inner}")
        variables.append(variable)
    return variables


def coordinate_dtype(recorded: Mapping[str, Any]) -> np.dtype:
    """Return the dtype of a coordinate in the record; texts are objects."""
    name = recorded["dtype"]
    dtype = np.dtype(object if name == "string" else name)
    if dtype.kind not in "biufcO" or (dtype.kind == "O") != (name == "string"):
        raise ValueError(f"a coordinate {name}")
    return dtype


def foreign(function: str, files: Files, what: str) -> ValueError:
    """Return the error for a path where something else is."""
    return value_error(
        function,
        f"`{files.path_of()}` is not a store: it {what}.",
        "It is left as it is. Give a path where there is nothing yet, or a store "
        "that `sweep(..., store=)` has created.",
    )


def damaged(function: str, files: Files, what: str) -> ValueError:
    """Return the error for metadata that differ from those written."""
    return value_error(
        function,
        f"`{files.path_of(ROOT)}` is damaged or was changed: {what}.",
        "Put it back from a copy of the store, or give another path. A copy that "
        "xarray or Zarr wrote is not a store: copy the folder (`cp -r`). "
        "`xarray.open_zarr` may still show the values.",
    )


VALUE_CODECS = [
    {"name": "zstd", "configuration": {"level": 1, "checksum": False}},
    {"name": "crc32c"},
]
STATUS_CODECS = [{"name": "gzip", "configuration": {"level": 1}}]

_UNIT, _ALL_OK, _ODD = 64, 1, 28
"""The unit of the size of status files, and the remainders of both kinds, see above.

An odd remainder for files whose rows are all ok: no file twice has such a size.
"""

_MANIFEST_BYTES, _ROW_BYTES = 2**24, 2**12
"""The maximum bytes of a manifest: texts of errors for each row, and the rest."""

_SKIPPABLE = 0x184D2A50
"""The number that begins a frame of user data in zstd (RFC 8878, 3.1.2)."""

# The flags announce a comment. There is no time stamp, so equal chunks are identical.
_HEADER = b"\x1f\x8b\x08\x10\0\0\0\0\0\xff"


def checksum(data: bytes, start: int = 0) -> int:
    """Return the crc32c of some bytes; `start` is the crc32c of the bytes before."""
    import google_crc32c

    return google_crc32c.extend(start, data)


def raw_of(values: np.ndarray) -> bytes:
    """Return the bytes of an array before they are compressed; texts as objects."""
    if values.dtype.kind != "O":
        return values.tobytes()
    from numcodecs.vlen import VLenUTF8

    return bytes(VLenUTF8().encode(values.reshape(-1)))


def array_of(raw: bytes, dtype: np.dtype, shape: Sequence[int]) -> np.ndarray:
    """Return an array from its bytes; raise `Undecodable` for another number."""
    count = math.prod(shape)
    if dtype.kind == "O":
        from numcodecs.vlen import VLenUTF8

        # Before decoding, which allocates memory for the number that the bytes claim.
        if len(raw) < 4 or struct.unpack("<I", raw[:4])[0] != count:
            raise Undecodable("it holds another number of texts")
        return VLenUTF8().decode(raw).reshape(shape)
    return np.frombuffer(raw, dtype, count).reshape(shape)


def compress(raw: bytes, salt: bytes = b"") -> bytes:
    """Return the bytes of a file: compressed, with a checksum.

    A `salt` makes the bytes unique; decoders skip it.
    """
    from numcodecs.zstd import Zstd

    data = bytes(Zstd(level=1).encode(raw))
    if salt:
        data += struct.pack("<II", _SKIPPABLE, len(salt)) + salt
    return data + struct.pack("<I", checksum(data))


def decompress(files: Files, key: str, size: int) -> bytes:
    """Return the `size` uncompressed bytes of a file.

    Raises `Undecodable` if the file is damaged or would have another size.
    """
    from numcodecs.zstd import Zstd

    if size > most_bytes():
        raise Undecodable(f"it holds {size:,} bytes, too many for this machine")
    data = files.get(key, _bound(size))
    if len(data) < 4 or struct.unpack("<I", data[-4:])[0] != checksum(data[:-4]):
        raise Undecodable("its checksum differs")
    raw = np.empty(size, np.uint8)
    try:
        decoded = Zstd().decode(data[:-4], raw)
    except RuntimeError as error:
        raise Undecodable(f"{error}") from error
    if len(decoded) != size:
        raise Undecodable(f"it holds {len(decoded):,} bytes")
    return raw.tobytes()


def _bound(size: int) -> int:
    """Return the maximum size of a file: incompressible bytes take a little more."""
    return size + size // 128 + 1024


def pack(manifest: dict[str, Any], status: bytes, is_ok: bool) -> bytes:
    """Return a status file: gzip with a manifest in the comment of its header.

    The manifest is compressed, as many rows may have failed, and padded, so that the
    size of the file tells whether all rows are ok.
    """
    text = base64.b64encode(zlib.compress(json.dumps(manifest).encode()))
    deflate = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
    data = deflate.compress(status) + deflate.flush()
    size = len(_HEADER) + 9 + len(text) + 1 + len(data) + 8
    text += b" " * (((_ALL_OK if is_ok else _ODD) - size) % _UNIT)
    comment = b"%08x " % checksum(text) + text + b"\0"
    sizes = struct.pack("<II", zlib.crc32(status), len(status) % 2**32)
    return _HEADER + comment + data + sizes


def is_ok_size(size: int) -> bool:
    """Return whether a status file of this size has rows that are all ok."""
    return size > _UNIT and size % _UNIT == _ALL_OK


def unpack(data: bytes, rows: int) -> tuple[dict[str, Any], bytes]:
    """Return manifest and status of `rows` rows; raise `Undecodable` if damaged."""
    try:
        end = data.index(b"\0", len(_HEADER))
        check, _, text = data[len(_HEADER) : end].partition(b" ")
        status = _inflated(data[end + 1 : -8], -zlib.MAX_WBITS, rows)
        crc, size = struct.unpack("<II", data[-8:])
        is_whole = data.startswith(_HEADER) and check == b"%08x" % checksum(text)
        if not is_whole or crc != zlib.crc32(status) or size != rows % 2**32:
            raise Undecodable("its checksum differs")
        most = _MANIFEST_BYTES + _ROW_BYTES * rows
        manifest = _inflated(base64.b64decode(text), zlib.MAX_WBITS, most)
        return json.loads(manifest), status
    except (ValueError, RecursionError, zlib.error, struct.error) as error:
        raise Undecodable(f"{error}" if data else "it is empty") from error


def _inflated(data: bytes, wbits: int, most: int) -> bytes:
    """Return decompressed bytes, of which there may be at most `most`.

    Bytes after their end raise `Undecodable`, since no sweep has written them.
    """
    inflate = zlib.decompressobj(wbits)
    raw = inflate.decompress(data, most + 1)
    if len(raw) > most or not inflate.eof or inflate.unused_data:
        raise Undecodable("it holds another number of bytes")
    return raw
