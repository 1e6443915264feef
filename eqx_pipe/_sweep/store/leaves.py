"""Arrays as bytes: a header in JSON, then the raw leaves, all under one checksum.

It is the format of states that a computation goes on from. Nothing in it is code, and
a reader knows from the header how many bytes each leaf takes.
"""

import json
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from .disk import Undecodable
from .format import MALFORMED, checksum


def pack_leaves(header: Mapping[str, Any], leaves: Sequence[np.ndarray]) -> bytes:
    """Return a header and arrays as bytes."""
    kinds = [[str(leaf.dtype), list(leaf.shape)] for leaf in leaves]
    text = json.dumps({**header, "leaves": kinds}).encode()
    parts = [struct.pack("<Q", len(text)), text]
    parts += [np.ascontiguousarray(leaf).tobytes() for leaf in leaves]
    data = b"".join(parts)
    return data + struct.pack("<I", checksum(data))


def unpack_leaves(data: bytes) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Return the header and the arrays; raise `Undecodable` for other bytes."""
    if len(data) < 12 or struct.unpack("<I", data[-4:])[0] != checksum(data[:-4]):
        raise Undecodable("its checksum differs")
    try:
        begin = 8 + struct.unpack("<Q", data[:8])[0]
        header, leaves = json.loads(data[8:begin]), []
        for name, shape in header.pop("leaves"):
            dtype, size = jnp.dtype(name), math.prod(shape)
            leaf = np.frombuffer(data, dtype, size, begin).reshape(shape)
            leaves.append(leaf.copy())
            begin += leaf.nbytes
    except MALFORMED as error:
        raise Undecodable(f"it cannot be read ({error})") from error
    if begin != len(data) - 4:
        raise Undecodable("it has another size")
    return header, leaves
