"""The answer of a store to a call: it resumes, grows, or says what differs.

A store grows if the space contains its points, which are recognised by their
coordinates, dim by dim. They must be bitwise identical: numbers as xarray shows them,
Python values by the digests in the record. `grow_store` (`_store/growth.py`) moves the
files.
"""

import base64
import collections
import dataclasses
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt8, UInt32

from .._errors import bullets, structure_error, value_error
from .._results import coordinates_of
from .._same import differences
from .._store import Origin, Store, coordinate_digest, in_place, raw_of
from .identity import HELD, NO_KEY, VERSIONS, function_texts
from .plan import Plan
from .request import Request
from .trace.cases import has_any

_Positions = Int64[np.ndarray, " positions"]
_DIGEST = "S32"  # the letters of a digest


class NoGrowth(Exception):
    """The error if a space does not contain the points of a store; may have no text."""


@dataclasses.dataclass(frozen=True)
class GrownPlan:
    """The plan that fills a store after it has grown.

    It has the batch size and the keys of the old store, and the chunks of the larger
    one. `origin` has the old place of each point; if values are `moved`, chunks are
    others, and have other files. `Growth` of stores is the same without the sweep.
    """

    plan: Plan
    origin: Origin
    moved: bool


def plan_in(plan: Plan, store: Store) -> Plan:
    """Return the plan that fills a store of the same sweep.

    The store decides what is computed together, not this call: so every process and
    restart computes the same batches, which round alike.
    """
    tables = _tables(plan, _digits_of(store.record))
    plan = plan.with_batch_size(store.record["batch_size"])
    return plan.with_chunks(store.chunks).with_key_digits(tables)


def growth_in(plan: Plan, store: Store, now: Mapping[str, Any]) -> GrownPlan | None:
    """Return the plan of the larger store that this becomes, or `None` if it stays.

    Raises a `StructureError` for the store of another sweep. Nothing is written. `now`
    is the identity of the sweep.
    """
    was = store.record
    if "saved" in was:
        wrong = (
            f"`{store.path}` was written by `SweepResult.save`, as a finished result."
        )
        cure = "Give another path: a sweep resumes only stores that `store=` created."
        raise structure_error("sweep", wrong, cure)
    why = _moved(store, now, plan.request)
    if "search" not in {*was, *now} and (was["space"] != now["space"] or why):
        same = was["key"] == now["key"]
        same &= was.get("output_coords") == now.get("output_coords")
        try:
            if same and not outputs_changes(was["function"], now["function"]):
                _check_reduced(plan, was, now)
                return _grown(plan, store, now)
        except NoGrowth as no:
            why = str(no) or why
    check_same(store.path, was, now, plan.request.resume is not None, why)
    _check_batch_size(plan, store)
    return None


def _grown(plan: Plan, store: Store, now: Mapping[str, Any]) -> GrownPlan:
    request, points = plan.request, plan.points
    origin = _origin_of(store, now, request)
    kept, geometry = [at >= 0 for at in origin.positions], points.geometry
    pairs = zip(points.cases, points.traced, strict=True)
    had = [x for x in pairs if has_any(geometry, points.static_values, x[0], kept)]
    if had:  # an empty store has no values that depend on a function
        function = function_texts(points.space, had)
        function = {"jax": now["jax"], "function": now["function"] | function}
        then = {**store.record, **function}
        check_same(store.path, store.record, then, request.resume is not None)
    # If the old batch held all points, its size was not chosen.
    size = store.chunks.size // max(1, len(had))
    if store.record["batch_size"] * len(points.devices) < size:
        _check_batch_size(plan, store)
        plan = plan.with_batch_size(store.record["batch_size"])
    chunks = None
    if origin.appends:
        lengths = tuple(request.space.dims.values())
        chunks = in_place(store.chunks, lengths, plan.chunks)
    plan = plan if chunks is None else plan.with_chunks(chunks)
    if points.key is not None:
        digits = _digits_after(store.record, origin)
        if not geometry.is_part:
            plan = plan.with_key_digits(_tables(plan, digits))
        elif _axes(store.record["space"]) != _axes(now["space"]):
            raise NoGrowth(
                "`space`: with a key, the store of a part of a grid grows only within "
                "that grid, whose positions determine the draws of points"
            )
    return GrownPlan(plan, origin, chunks is None)


def _check_reduced(plan: Plan, was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise `NoGrowth` unless the store reduces points like the new sweep."""
    if "reduce" in was and "reduce" in now:
        raise NoGrowth(
            "`reduce`: a store of a reduction does not grow, as its blocks are those "
            "of its space; one of `Mean(over=...)` does along the dims that are kept"
        )
    cells = [each.get("cells", {}) for each in (was, now)]
    if {*differing(*cells)} - {"holds"} or "reduce" in {*was, *now}:
        raise NoGrowth
    request = plan.request
    for name in request.whole.axes().keys() - request.space.axes().keys():
        if was["space"].get(f"axis {name}") != now["space"][f"axis {name}"]:
            raise NoGrowth(
                f"`space`: values are reduced over `{name}`, so with another one each "
                "cell is to be computed anew"
            )


def _check_batch_size(plan: Plan, store: Store) -> None:
    """Raise a `ValueError` if an explicit batch size differs from that of a store."""
    request, kept = plan.request, store.record["batch_size"]
    if isinstance(request.batch_size, int) and plan.points.batch_size != kept:
        raise value_error(
            "sweep",
            f"`batch_size` is {request.batch_size}, and the store `{store.path}` was "
            f"begun with {kept}.",
            "Leave it out, so that all values are those of one run, or give "
            "another path.",
        )


def _moved(store: Store, now: Mapping[str, Any], request: Request) -> str:
    """Return how the values of axes differ, in spite of equal texts."""
    was = store.record
    if was["space"] != now["space"]:
        return ""
    # A whole reduction has no dims, and may have more points than fit into memory.
    coordinates = {} if "reduce" in now else _coordinates(request)
    for name, (dims, values, _) in coordinates.items():
        if dims[0] not in request.space.dims or name not in was["coordinates"]:
            continue
        values = values.astype(object) if values.dtype.kind == "U" else values
        recorded = was["coordinates"][name]
        if coordinate_digest(name, raw_of(values)) != recorded["digest"]:
            old = store.coordinate(name).reshape(-1)[:3].tolist()
            new = values.reshape(-1)[:3].tolist()
            return f"`space`, axis {name}: {old}... in the store, now {new}..."
    for name, texts in now["static"].items():
        old = was["static"].get(name, {})
        changed = [f"`{shown}`" for shown in texts if old.get(shown) != texts[shown]]
        if changed:
            is_order = {*old.values()} == {*texts.values()}
            shown = ", ".join(changed[:3]) + ", ..." * (len(changed) > 3)
            what = "another order of" if is_order else "other values of the names"
            return f"`space`, axis {name}: {what} {shown} than in the store"
    return ""


def _coordinates(request: Request) -> Mapping[str, Any]:
    """Return the dims, values and attributes of each coordinate of the space."""
    return coordinates_of(request.space, request.output_coords)


def _origin_of(store: Store, now: Mapping[str, Any], request: Request) -> Origin:
    """Return the origin of the points of a larger space.

    Raises `NoGrowth` if the space does not contain the points of the store. `now` is
    the identity of the sweep.
    """
    record, texts, space = store.record, now["static"], request.space
    if _differs(record["space"], now["space"]) or record["dims"] != list(space.dims):
        raise NoGrowth
    # Without the coordinates of dims of outputs.
    old = {
        name: _column(dim, store.coordinate(name), record["static"].get(name))
        for name, variable in record["coordinates"].items()
        if (dim := variable["dims"][0]) in space.dims
    }
    new = {
        name: _column(dims[0], values, texts.get(name))
        for name, (dims, values, _) in _coordinates(request).items()
        if dims[0] in space.dims
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


@dataclasses.dataclass(frozen=True)
class _Column:
    """A coordinate: its dim, its form, and the bytes of each value."""

    dim: str
    form: str
    rows: UInt8[np.ndarray, "positions bytes"]
    shown: Sequence[Any]


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
    origin, count = np.full(len(after), -1, np.int64), len(before)
    if np.array_equal(after[:count], before):
        origin[:count] = np.arange(count)
        return origin
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
        origin[at.popleft()] = i
    return origin


def _digits_of(
    record: Mapping[str, Any],
) -> dict[str, UInt32[np.ndarray, " _positions"]]:
    """Return the digits that keys of points are folded with, for the dims of a store.

    They are the positions, unless the store has grown in between: points keep the
    digits of their first position, so that a point which is lost draws as before.
    """
    digits = {}
    for dim, length in zip(record["dims"], record["lengths"], strict=True):
        digits[dim] = np.arange(length, dtype=np.uint32)
        if dim in record.get("key_digits", {}):
            data = base64.b64decode(record["key_digits"][dim])
            raw = zlib.decompressobj().decompress(data, 4 * length + 4)
            digits[dim] = np.frombuffer(raw, "<u4").astype(np.uint32)
        if len(digits[dim]) != length:
            raise ValueError(f"digits of {dim}")
    return digits


def key_digits_text(digits: Mapping[str, UInt32[np.ndarray, " _"]]) -> dict[str, str]:
    """Return the digits that differ from positions as JSON."""
    return {
        dim: base64.b64encode(zlib.compress(numbers.astype("<u4").tobytes())).decode()
        for dim, numbers in digits.items()
        if not np.array_equal(numbers, np.arange(len(numbers)))
    }


def _tables(
    plan: Plan, digits: Mapping[str, UInt32[np.ndarray, " _"]]
) -> tuple[UInt32[np.ndarray, " _"], ...]:
    """Return the digits that keys are folded with: of all dims, or none at all."""
    if not key_digits_text(digits):
        return ()
    grid = plan.points.geometry.grid_dims.items()
    return tuple(digits.get(dim, np.arange(n, dtype=np.uint32)) for dim, n in grid)


def _digits_after(
    record: Mapping[str, Any], origin: Origin
) -> dict[str, UInt32[np.ndarray, " _"]]:
    """Return the digits of a larger grid: new positions get digits not in use."""
    after = {}
    pairs = zip(_digits_of(record).items(), origin.positions, strict=True)
    for (dim, before), at in pairs:
        new, first = np.zeros(len(at), np.uint32), int(max(before, default=-1)) + 1
        new[at >= 0] = before[at[at >= 0]]
        new[at < 0] = first + np.arange(np.sum(at < 0))
        after[dim] = new
    return after


def _axes(texts: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in texts.items() if name.startswith("axis ")}


def check_same(
    path: str,
    was: Mapping[str, Any],
    now: Mapping[str, Any],
    trusting: bool,
    why: str = "",
) -> None:
    """Raise a `StructureError` with the differences between a sweep and its store.

    With `trusting` (set by `resume=`), the function may differ. `why` explains the
    difference between two spaces.
    """
    searches = (record.get("search", {}) for record in (was, now))
    check_settings("sweep", "search", path, *searches)
    lines = _changes("space", was["space"], now["space"])
    lines += [why] if why else []
    if was["key"] != now["key"]:
        lines.append(f"`key`: {was['key']} in the store, now {now['key']}")
    coords = (record.get("output_coords", {}) for record in (was, now))
    lines += _changes("output_coords", *coords) + _reducer_changes(was, now, trusting)
    lines += outputs_changes(was["function"], now["function"])
    # Another point or an added key changes the program too.
    follows = was["function"]["point"] != now["function"]["point"]
    follows |= (was["key"] == NO_KEY) != (now["key"] == NO_KEY)
    explained = lines and follows
    function = "" if explained else _function_change(was, now, trusting)
    if not lines and not function:
        return
    cure = "Give another path, or the sweep that created it."
    if not lines:
        cure += ' If you know that the values are the same, `resume="force"` goes '
        cure += 'on with it; `resume="failed"` also computes failed points again.'
    lines += [function] if function else []
    wrong = f"the store `{path}` was created by a different sweep:{bullets(lines)}"
    raise structure_error("sweep", wrong, cure)


def check_settings(
    function: str,
    what: str,
    path: str,
    was: Mapping[str, str],
    now: Mapping[str, str],
    trusting: bool = False,
) -> None:
    """Raise a `StructureError` for the store of a search or training with others.

    A setting that only one of the two has does not count, such as a further rung, and
    neither does another version of JAX or Python by itself. With `trusting` (set by
    `resume=`), the functions of a training may differ.
    """
    if was and now and was.get("format") != now["format"]:
        raise structure_error(
            function,
            f"the store `{path}` has the format {was.get('format')!r}, and this "
            f"version of eqx_pipe knows the format {now['format']}.",
            "Use the version that created it, or give another path.",
        )
    free = HELD, *VERSIONS
    names = [x for x, text in now.items() if x not in free and was.get(x, text) != text]
    if not names or trusting and {*names} <= {"training"}:
        return
    held, lines = [json.loads(each.get(HELD, "{}")) for each in (was, now)], []
    for x in names:
        shown = [each[x].partition(" #")[0] for each in (was, now)]
        parts = ("init", "step", "evaluate") if x == "training" else (x,)
        pairs = ([each.get(part, {}) for each in held] for part in parts)
        changes = dict(zip(parts, (differences(*pair) for pair in pairs), strict=True))
        if x == "training":
            texts = [f"in `{part}`, {text}" for part, text in changes.items() if text]
            lines.append(f"`{x}`: {'; '.join(texts) or 'it computes other values'}")
        elif changes[x] and shown[0] == shown[1]:
            lines.append(f"`{x}`: {shown[0]}, in which {changes[x]}")
        else:
            texts = shown if shown[0] != shown[1] else [was[x], now[x]]
            lines.append(f"`{x}`: {texts[0]} in the store, now {texts[1]}")
    lines += [
        f"{x} {was.get(x)} in the store, now {now[x]}: the same in another form?"
        for x in VERSIONS[:2]
        if x in now and was.get(x) != now[x]
    ]
    wrong = f"the store `{path}` was created by a different {what}:{bullets(lines)}"
    cure = f"Give another path, or the arguments of that {what}."
    if {*names} <= {"training"}:
        cure += ' If only a mistake was mended, `resume="failed"` continues, and '
        cure += 'tries failed trainings again; `resume="force"` does not.'
    raise structure_error(function, wrong, cure)


def _function_change(
    was: Mapping[str, Any], now: Mapping[str, Any], trusting: bool
) -> str:
    """Return the difference of functions, unless that of outputs explains it."""
    before, after = was["function"], now["function"]
    same = before["program"] == after["program"]
    kernels = [each.get("kernels", "") for each in (before, after)]
    same_kernels = kernels[0] == kernels[1]
    if trusting or (same and same_kernels) or outputs_changes(before, after):
        return ""
    if not same_kernels:  # they round differently
        had, has = (f"kernels by {x}" if x else "no kernels" for x in kernels)
        return f"`fn` has {had} in the store, now {has}"
    if after["unsure"]:
        held = f"`fn` calls Python code that holds {after['unsure']}"
        return f"{held}, which a store cannot recognise"
    text = differences(before["holds"], after["holds"])
    lines = [text] if text else []
    if before["constants"] != after["constants"]:
        differing = {*before["constants"]} ^ {*after["constants"]}
        shown = ", ".join(sorted({text.split("#")[0] for text in differing})[:4])
        lines = [
            f"`fn`: arrays that it closes over have other values ({shown})",
            *lines,
        ]
    others = [
        f"{name} {was[name]} in the store, now {now[name]}"
        for name in ("jax", "python")
        if was[name] != now[name]
    ]
    form = f", or the same in another form ({', '.join(others)})" * bool(others)
    return f"`fn`: another program{form}{': ' * bool(lines)}{'; '.join(lines)}"


def differing(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [name for name in {**was, **now} if was.get(name) != now.get(name)]


_HIDDEN = {
    "structure": "other containers, or other static fields",
    "text": "the same kinds of reducers with other settings or functions",
    "holds": "",
}
"""Descriptions of entries of an identity that are digests and are not shown."""


def _changes(
    argument: str, was: Mapping[str, str], now: Mapping[str, str]
) -> list[str]:
    """Return the differing texts of an argument, or digests if only these differ."""
    names = differing(was, now)
    return [
        f"`{argument}`, {name}: {was.get(name)} in the store, now {now.get(name)}"
        for name in names
        if name not in _HIDDEN
    ] or [f"`{argument}`: {_HIDDEN[name]}" for name in names]


def _reducer_changes(
    was: Mapping[str, Any], now: Mapping[str, Any], trusting: bool
) -> list[str]:
    """Return the first difference of reducers."""
    both = [x.get("reduce") or x.get("cells") or {} for x in (was, now)]
    held = [each.get("holds", []) for each in both]
    # Another version of JAX may trace the same reducers in another form.
    if {name for name in differing(*both)} <= {"text", "holds"} and trusting:
        if was["jax"] != now["jax"] or was["python"] != now["python"]:
            return []
    if "text" not in differing(*both):  # what they hold may be written in another way
        both = [{k: v for k, v in each.items() if k != "holds"} for each in both]
    lines = _changes("reduce", *both)[:1]
    if lines and _HIDDEN["text"] in lines[0] and len(held[0]) == len(held[1]):
        texts = filter(None, (differences(*pair) for pair in zip(*held, strict=True)))
        lines[0] += "".join(f": {text}" for text in texts)
    return lines


def outputs_changes(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the differences in structure, shapes and dtypes of the output."""
    if all(was[name] == now[name] for name in ("outputs", "structure")):
        return []
    return [f"`fn`: it returns {was['outputs']} in the store, now {now['outputs']}"]
