"""Stores that grow: the points of a store among those of a larger space.

Points are recognised by their coordinates, dim by dim, which must be bitwise identical:
numbers as xarray shows them, Python values by the digests in the record of a store.
"""

import collections
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt8

from ..._errors import value_error
from ..._spaces import Space
from ..compute.cases import has_any
from ..plan import Plan
from ..store import Origin, Store, StoreLayout, in_place
from .contents import ValueContents
from .identity import check_same, function_texts, outputs_changes

_Positions = Int64[np.ndarray, " positions"]
_DIGEST = "S32"  # the letters of a digest


class NoGrowth(Exception):
    """The error if a space does not contain the points of a store; may have no text."""


@dataclasses.dataclass(frozen=True)
class _Column:
    """A coordinate: its dim, its form, and the bytes of each value."""

    dim: str
    form: str
    rows: UInt8[np.ndarray, "positions bytes"]
    shown: Sequence[Any]


def origin_of(
    store: Store, now: Mapping[str, Any], space: Space, coordinates: Mapping[str, Any]
) -> Origin:
    """Return the origin of the points of a larger space.

    Raises `NoGrowth` if the space does not contain the points of the store. `now` is
    the identity of the sweep, and `coordinates` are the coordinates of its space, with
    their dims.
    """
    record, texts = store.record, now["static"]
    if _differs(record["space"], now["space"]) or record["dims"] != list(space.dims):
        raise NoGrowth
    # Without the coordinates of dims of outputs.
    old = {
        name: _column(own[0], store.coordinate(name), record["static"].get(name))
        for name, (own, _) in record["coordinates"].items()
        if own[0] in space.dims
    }
    new = {
        name: _column(own[0], values, texts.get(name))
        for name, (own, values, _) in coordinates.items()
        if own[0] in space.dims
    }
    forms = [{k: (c.dim, c.form) for k, c in each.items()} for each in (old, new)]
    if forms[0] != forms[1]:
        raise NoGrowth
    positions = []
    for dim in space.dims:
        names = [name for name, column in new.items() if column.dim == dim]
        positions.append(_matched(dim, names, old, new))
    if record["lengths"] == list(space.dims.values()):
        raise NoGrowth
    return Origin(tuple(positions), tuple(record["lengths"]))


def _differs(was: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Return whether two spaces differ in anything but their axes."""
    for name in {*was, *now}:
        free = name.partition(" ")[0] in ("dims", "slice", "points", "axis")
        free |= name == "key of the space" and was.get(name) == "no key"
        if not free and was.get(name) != now.get(name):
            return True
    return False


def _column(dim: str, values: np.ndarray, texts: Mapping[str, str] | None) -> _Column:
    shown = values.tolist()
    if texts is not None:
        # Compare digests of values, since the shown texts of two may be equal.
        values = np.array([texts.get(str(x), "") for x in shown], _DIGEST)
    inner = values.shape[1:]
    width = math.prod(inner) * values.dtype.itemsize
    rows = np.frombuffer(values.tobytes(), np.uint8).reshape(len(values), width)
    return _Column(dim, f"{values.dtype}{list(inner)}", rows, shown)


def _matched(
    dim: str,
    names: Sequence[str],
    old: Mapping[str, _Column],
    new: Mapping[str, _Column],
) -> _Positions:
    """Return the old position of each position on a dim, or -1; equal ones in order."""
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


@dataclasses.dataclass(frozen=True)
class Grown:
    """The larger store that a store becomes; if values are `moved`, in other files.

    `plan` has the batch size of the old store and the chunks of the larger one.
    """

    plan: Plan
    layout: StoreLayout
    origin: Origin
    moved: bool


def growth_in(plan: Plan, store: Store, now: Mapping[str, Any]) -> Grown | None:
    """Return the larger store that this one would become, or `None` if it stays.

    Raises a `StructureError` for the store of another sweep. Nothing is written. `now`
    is the identity of the sweep.
    """
    was, why = store.record, ""
    fixed = not {"saved", "search"}.isdisjoint({*was, *now})
    if not fixed and was["space"] != now["space"]:
        same = was["key"] == now["key"]
        same &= was.get("output_coords") == now.get("output_coords")
        try:
            if same and not outputs_changes(was["function"], now["function"]):
                _check_reduced(plan, was, now)
                return _grown(plan, store, now)
        except NoGrowth as no:
            why = str(no)
    check_same(store.path, was, now, plan.request.resume is not None, why)
    _check_batch_size(plan, store)
    return None


def _check_reduced(plan: Plan, was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise `NoGrowth` unless the store reduces points like the new sweep."""
    if "reduce" in was and "reduce" in now:
        raise NoGrowth(
            "`reduce`: a store of a reduction does not grow, as its blocks are those "
            "of its space; one of `Mean(over=...)` does along the dims that are kept"
        )
    if was.get("cells") != now.get("cells") or "reduce" in {*was, *now}:
        raise NoGrowth
    request = plan.request
    for name in request.whole.axes().keys() - request.space.axes().keys():
        if was["space"].get(f"axis {name}") != now["space"][f"axis {name}"]:
            raise NoGrowth(
                f"`space`: values are reduced over `{name}`, so with another one each "
                "cell is to be computed anew"
            )


def _grown(plan: Plan, store: Store, now: Mapping[str, Any]) -> Grown:
    request, points = plan.request, plan.points
    contents = ValueContents(plan)
    origin = origin_of(store, now, request.space, contents.coordinates)
    kept, geometry = [at >= 0 for at in origin.positions], points.geometry
    pairs = zip(points.cases, points.traced, strict=True)
    had = [x for x in pairs if has_any(geometry, points.groups, x[0], kept)]
    if had:  # an empty store has no values that depend on a function
        function = {"jax": now["jax"], "function": function_texts(had)}
        then = {**store.record, **function}
        check_same(store.path, store.record, then, request.resume is not None)
    # If the old batch held all points, its size was not chosen.
    size = store.chunks.size // max(1, len(had))
    if store.record["batch_size"] * len(plan.devices) < size:
        _check_batch_size(plan, store)
        plan = plan.with_batch_size(store.record["batch_size"])
    chunks = None
    if origin.appends:
        lengths = tuple(request.space.dims.values())
        chunks = in_place(store.chunks, lengths, plan.chunks)
    plan = plan if chunks is None else plan.with_chunks(chunks)
    layout = ValueContents(plan).layout(now)
    return Grown(plan, layout, origin, chunks is None)


def _check_batch_size(plan: Plan, store: Store) -> None:
    """Raise a `ValueError` if an explicit batch size differs from that of a store."""
    request, kept = plan.request, store.record["batch_size"]
    if isinstance(request.batch_size, int) and plan.batch_size != kept:
        raise value_error(
            "sweep",
            f"`batch_size` is {request.batch_size}, and the store `{store.path}` was "
            f"begun with {kept}.",
            "Leave it out, so that all values are those of one run, or give "
            "another path.",
        )
