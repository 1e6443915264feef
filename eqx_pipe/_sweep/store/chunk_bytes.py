"""The bytes of a chunk's files, as Zarr reads them: values and status.

Values use the codecs `zstd` and `crc32c` of Zarr. A status file is gzip with a comment
in its header (RFC 1952), which gzip readers skip. So one file, replaced atomically,
contains the status of each row for any reader, and the manifest of its chunk.
"""

import base64
import json
import math
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

VALUE_CODECS = [
    {"name": "zstd", "configuration": {"level": 1, "checksum": False}},
    {"name": "crc32c"},
]
STATUS_CODECS = [{"name": "gzip", "configuration": {"level": 1}}]

# The flags announce a comment. There is no time stamp, so equal chunks are identical.
_HEADER = b"\x1f\x8b\x08\x10\0\0\0\0\0\xff"


class Undecodable(ValueError):
    """The error for bytes that differ from those written."""


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


def array_of(raw: bytes, dtype: np.dtype, inner: Sequence[int]) -> np.ndarray:
    """Return rows of `inner` shape from their bytes.

    Texts must be verified before, since the decoder does not check their number.
    """
    if dtype.kind == "O":
        from numcodecs.vlen import VLenUTF8

        return VLenUTF8().decode(raw).reshape(-1, *inner)
    if len(raw) % (math.prod(inner) * dtype.itemsize):
        raise Undecodable(f"it holds {len(raw)} bytes")
    return np.frombuffer(raw, dtype).reshape(-1, *inner)


def compress(raw: bytes) -> bytes:
    """Return the bytes of a file: compressed, with a checksum."""
    from numcodecs.zstd import Zstd

    data = bytes(Zstd(level=1).encode(raw))
    return data + struct.pack("<I", checksum(data))


def decompress(data: bytes) -> bytes:
    """Return the uncompressed bytes; raise `Undecodable` if the file is damaged."""
    from numcodecs.zstd import Zstd

    if len(data) < 4 or struct.unpack("<I", data[-4:])[0] != checksum(data[:-4]):
        raise Undecodable("its checksum differs")
    return bytes(Zstd().decode(data[:-4]))


def pack(manifest: dict[str, Any], status: bytes) -> bytes:
    """Return a status file: gzip with a manifest in the comment of its header.

    The manifest is compressed, as many rows may have failed.
    """
    text = base64.b64encode(zlib.compress(json.dumps(manifest).encode()))
    deflate = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
    comment = b"%08x " % checksum(text) + text + b"\0"
    data = deflate.compress(status) + deflate.flush()
    sizes = struct.pack("<II", zlib.crc32(status), len(status) % 2**32)
    return _HEADER + comment + data + sizes


def unpack(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Return manifest and status; raise `Undecodable` if they are damaged."""
    try:
        end = data.index(b"\0", len(_HEADER))
        check, _, text = data[len(_HEADER) : end].partition(b" ")
        status = zlib.decompress(data[end + 1 : -8], -zlib.MAX_WBITS)
        crc, size = struct.unpack("<II", data[-8:])
    except (ValueError, zlib.error, struct.error) as error:
        raise Undecodable(f"{error}" if data else "it is empty") from error
    whole = data.startswith(_HEADER) and check == b"%08x" % checksum(text)
    if not whole or crc != zlib.crc32(status) or size != len(status) % 2**32:
        raise Undecodable("its checksum differs")
    return json.loads(zlib.decompress(base64.b64decode(text))), status
