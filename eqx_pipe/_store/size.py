"""How large a store will be, before there is any of it."""

import itertools as it
import json
import math
import operator

from .layout import StoreLayout, Variable

_BLOCK = 4096
"""File systems give a file, or a folder, whole blocks of so many bytes."""

_METADATA = 2**13
"""Bytes of what Zarr writes of one array: its `zarr.json`, and a copy at the root."""

_OWN = 10
"""How many small files and folders there are besides, such as locks."""

_LINE = 64
"""Bytes of the line of a chunk in the ledger, if nothing in it failed."""


def value_bytes(layout: StoreLayout) -> int:
    """The bytes of all values as they are stored, before they are compressed."""
    points = math.prod(layout.chunks.lengths)
    return sum(points * _row(variable) for variable in layout.variables)


def disk_bytes(layout: StoreLayout) -> tuple[int, int]:
    """The bytes that a store takes on a disk at most, and how many files it has.

    As if nothing could be compressed, and no point failed; in whole blocks, with
    folders.
    """
    chunks, coarse = layout.chunks, layout.chunks.coarse()
    full = [v for v in layout.variables if 0 not in v.inner]
    total = files = 0
    for cut, row, inner in [
        (coarse, 1, ()),
        *((chunks, _row(variable), variable.inner) for variable in full),
    ]:
        across = [*cut.lengths[: cut.split], cut.in_row]
        across += [1] * (len(cut.lengths) - cut.split - 1 + len(inner))
        folders = sum(it.accumulate(across[:-1], operator.mul)) + 2
        total += _BLOCK * folders + len(cut) * _blocks(_compressed(cut.points * row))
        files += len(cut)
    for _, values, _ in layout.coordinates.values():
        each = 8 if values.dtype.kind != "O" else 16 + max(map(_text, values.flat))
        total += _blocks(_compressed(values.size * max(each, values.dtype.itemsize)))
        total += 2 * _BLOCK
        files += 1
    names = len(full) + len(layout.coordinates) + 1
    said = json.dumps([dict(layout.attributes), dict(layout.record)])
    total += _blocks(names * _METADATA + 2 * len(said)) + names * _blocks(_METADATA)
    total += _blocks(_LINE * len(chunks)) + _OWN * _BLOCK
    return total, files + names + _OWN


def _row(variable: Variable) -> int:
    """The bytes of a variable at one point."""
    return math.prod(variable.inner) * variable.dtype.itemsize


def _compressed(size: int) -> int:
    """The bytes of a chunk at most, if Zstandard finds nothing in it, and a checksum.

    That is `ZSTD_COMPRESSBOUND` of its manual.
    """
    return size + (size >> 8) + max(0, (2**17 - size) >> 11) + 64


def _blocks(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _text(value: object) -> int:
    return len(str(value).encode())
