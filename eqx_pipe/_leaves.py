"""Arrays in one file: a JSON header, and their raw bytes, under a checksum.

A file is the line `eqx_pipe leaves 1`, the length of the header as a line, the header,
and the bytes of the arrays, one after the other. The header has the shapes and dtypes,
the CRC-32 of the header's other entries and of the bytes, and what the writer adds.
Reading a file runs no code.
"""

import json
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

_MAGIC = b"eqx_pipe leaves 1\n"


class DamagedLeaves(ValueError):
    """The error for bytes that no `pack` returned."""


def pack(arrays: Sequence[Any], entries: Mapping[str, Any]) -> bytes:
    """Return arrays, and entries that JSON supports, as the bytes of a file."""
    leaves = [np.ascontiguousarray(x).reshape(np.shape(x)) for x in arrays]
    forms = [[x.dtype.name, list(x.shape)] for x in leaves]
    header: dict[str, Any] = {"leaves": forms, "entries": dict(entries)}
    raw = [x.reshape(-1).view(np.uint8).data for x in leaves]
    header["crc"] = _checksum(header, raw)
    text = json.dumps(header, sort_keys=True).encode()
    return b"".join([_MAGIC, f"{len(text)}\n".encode(), text, *raw])


def unpack(data: bytes) -> tuple[list[np.ndarray], dict[str, Any]]:
    """Return the arrays and entries; raise `DamagedLeaves` if a bit differs."""
    try:
        if not data.startswith(_MAGIC):
            raise ValueError("it does not begin as a file of leaves")
        length, _, rest = data[len(_MAGIC) :].partition(b"\n")
        header, body = json.loads(rest[: int(length)]), rest[int(length) :]
        crc, at, arrays = header.pop("crc"), 0, []
        if crc != _checksum(header, [body]):
            raise ValueError("its checksum differs")
        for name, shape in header["leaves"]:
            dtype, count = jnp.dtype(name), math.prod(shape)
            end = at + count * dtype.itemsize
            array = np.frombuffer(bytearray(body[at:end]), np.uint8).view(dtype)
            arrays.append(array.reshape(shape))
            at = end
        if at != len(body):
            raise ValueError(f"it has {len(body)} bytes in place of {at}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedLeaves(str(error)) from error
    return arrays, header["entries"]


def _checksum(header: Mapping[str, Any], raw: Iterable[Any]) -> int:
    crc = zlib.crc32(json.dumps(header, sort_keys=True).encode())
    for part in raw:
        crc = zlib.crc32(part, crc)
    return crc
