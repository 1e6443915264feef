"""Whether the points of a store are among those of a larger space, and where.

Points are recognised by their coordinates, dim by dim and bit by bit: numbers as
xarray shows them, Python values by the text that the record of a store has for them.
"""

import collections
import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt8

from ..._errors import optional
from ..._jaxprs.text import Writer, digest
from ..._spaces import Space, static_column
from ..._store.folder import as_zarr, quiet_zarr
from ..._store.grow import Origin
from ..compute.cases import Case, has_any
from ..compute.points import Points

_Positions = Int64[np.ndarray, " positions"]
_DIGEST = "S32"  # the letters of a digest


class NoGrowth(Exception):
    """Why points of a store are not among those of a space; empty if that is plain."""


@dataclasses.dataclass(frozen=True)
class Growth:
    """A larger space: where its points come from, and whether it only goes on.

    If it `appends`, positions that there were are what they were.
    """

    origin: Origin
    appends: bool

    def had(self, points: Points, case: Case) -> bool:
        """Return whether a store has points of a case."""
        kept = [at >= 0 for at in self.origin.positions]
        return has_any(points.geometry, points.groups, case, kept)


@dataclasses.dataclass(frozen=True)
class _Column:
    """A coordinate: its dim, its form, and the bytes of each value."""

    dim: str
    form: str
    rows: UInt8[np.ndarray, "positions bytes"]
    shown: Sequence[Any]


def static_texts(space: Space) -> dict[str, dict[str, str]]:
    """For each `Static` axis what is shown of its values, and what they are."""
    found: dict[str, dict[str, str]] = {}
    for name, axis in space.axes().items():
        if axis.is_static:
            static: Any = axis
            values = [static.value(i, None) for i in range(len(axis))]
            shown = map(str, static_column(values).tolist())
            found[name] = dict(zip(shown, map(_text_of, values), strict=True))
    return found


def growth_of(
    path: Path,
    record: Mapping[str, Any],
    now: Mapping[str, Any],
    space: Space,
    coordinates: Mapping[str, Any],
) -> Growth:
    """How the space of a store grew; raises `NoGrowth` if it did not.

    `record` and `now` are those of the store and of the sweep, and `coordinates` those
    of the space, with their dims.
    """
    if _differs(record["space"], now["space"]):
        raise NoGrowth
    was, old = _kept(path, record)
    texts = static_texts(space)
    new = {
        name: _column(dims[0], values, texts.get(name))
        for name, (dims, values, _) in coordinates.items()
        if dims[0] in space.dims  # and not a dim of outputs
    }
    if was.keys() != space.dims.keys() or old.keys() != new.keys():
        raise NoGrowth
    positions = []
    for dim in space.dims:
        names = [name for name, column in new.items() if column.dim == dim]
        if any((old[n].dim, old[n].form) != (new[n].dim, new[n].form) for n in names):
            raise NoGrowth
        positions.append(_matched(dim, names, old, new))
    larger = any(was[dim] != n for dim, n in space.dims.items())
    if not larger:
        raise NoGrowth
    order = list(was)
    strides = [
        math.prod(was[d] for d in order[order.index(dim) + 1 :]) for dim in space.dims
    ]
    kept = all(
        np.array_equal(at[: was[dim]], np.arange(was[dim]))
        for dim, at in zip(space.dims, positions, strict=True)
    )
    appends = kept and order == list(space.dims)
    return Growth(Origin(tuple(positions), tuple(strides)), appends)


def _differs(was: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Whether something else than the axes of two spaces differs."""
    for name in {*was, *now}:
        free = name.partition(" ")[0] in ("dims", "slice", "points", "axis")
        free |= name == "key of the space" and was.get(name) == "no key"
        if not free and was.get(name) != now.get(name):
            return True
    return False


def _kept(
    path: Path, record: Mapping[str, Any]
) -> tuple[dict[str, int], dict[str, _Column]]:
    """The dims of a store in order, and its coordinates."""
    xarray = optional("sweep", "xarray")
    # A unit such as "days" is no request for times.
    options = {"decode_times": False, "decode_timedelta": False, "chunks": None}
    with quiet_zarr():
        data = xarray.open_zarr(as_zarr(path), **options)
        status = data[record["status"]]
        was = dict(zip(map(str, status.dims), status.shape, strict=True))
        texts = record.get("static", {})
        columns = {
            str(name): _column(str(array.dims[0]), array.values, texts.get(name))
            for name, array in data.coords.items()
            if name != record["status"] and array.dims[0] in was
        }
    return was, columns


def _column(dim: str, values: np.ndarray, texts: Mapping[str, str] | None) -> _Column:
    shown = values.tolist()
    if texts is not None:
        # By what the values are, not by the text that is shown: two may look alike.
        values = np.array([texts.get(str(x), "") for x in shown], _DIGEST)
    form = f"{values.dtype}{list(values.shape[1:])}"
    return _Column(dim, form, _rows(values), shown)


def _rows(values: np.ndarray) -> UInt8[np.ndarray, "positions bytes"]:
    """The bytes of each value."""
    count = math.prod(values.shape[1:])
    flat = np.ascontiguousarray(values).reshape(len(values), count)
    width = flat.shape[1] * flat.dtype.itemsize
    return flat.view(np.uint8).reshape(len(values), width)


def _matched(
    dim: str,
    names: Iterable[str],
    old: Mapping[str, _Column],
    new: Mapping[str, _Column],
) -> _Positions:
    """For each position on a dim its old one, or -1; equal ones in their order."""
    names = list(names)
    before = np.concatenate([old[name].rows for name in names], axis=1)
    after = np.concatenate([new[name].rows for name in names], axis=1)
    found, count = np.full(len(after), -1, np.int64), len(before)
    if np.array_equal(after[:count], before):
        found[:count] = np.arange(count)
        return found
    places: dict[bytes, collections.deque[int]] = {}
    for i, row in enumerate(after):
        places.setdefault(row.tobytes(), collections.deque()).append(i)
    for i, row in enumerate(before):
        at = places.get(row.tobytes())
        if not at:
            values = ", ".join(f"`{name}` = {old[name].shown[i]!r}" for name in names)
            raise NoGrowth(
                f"`space`: the store has {values} on the dim `{dim}`, which is not "
                "among the values now"
            )
        found[at.popleft()] = i
    return found


def _text_of(value: object) -> str:
    return digest(Writer().value(value))
