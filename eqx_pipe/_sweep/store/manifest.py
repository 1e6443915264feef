"""What the status file of a chunk says about it: its manifest."""

import base64
import dataclasses
import zlib
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Int8, Int64

from .ranges import points_in, ranges_of

RowErrors: TypeAlias = Mapping[str, Int64[np.ndarray, " _failed"]]
"""What was raised, and at which rows of a chunk or points of the grid, in order."""


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What a status file says about its chunk.

    It has the status of each row, and `rows` of them were written: a chunk may have
    become longer since. `digests` has for each array those that its values may have:
    one, or two while the chunk is mended. `function` is the digest of what computed it.
    """

    status: Int8[np.ndarray, " rows"]
    rows: int
    digests: list[list[int]]
    errors: RowErrors
    function: str


def packed_errors(errors: RowErrors) -> dict[str, Any]:
    """Return errors by rows as JSON: texts, and ranges with the number of each."""
    ranges = [
        (k, first, stop)
        for k, rows in enumerate(errors.values())
        for first, stop in ranges_of(rows)
    ]
    packed = zlib.compress(np.array(ranges, "<i8").tobytes())
    return {"texts": list(errors), "where": base64.b64encode(packed).decode()}


def unpacked_errors(said: Mapping[str, Any]) -> RowErrors:
    """Return the errors by rows that a manifest has."""
    if not said.get("texts"):
        return {}
    packed = zlib.decompress(base64.b64decode(said["where"]))
    ranges = np.frombuffer(packed, "<i8").reshape(-1, 3)
    return {
        text: points_in(ranges[ranges[:, 0] == k, 1:])
        for k, text in enumerate(said["texts"])
    }
