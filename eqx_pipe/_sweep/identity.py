"""The identity of a sweep in the record of its store, and the growth of a store.

A store belongs to one space, key, function and set of reducers. It grows if the space
contains the points of the store, which are recognised by their coordinates, dim by dim.
They must be bitwise identical: numbers as xarray shows them, Python values by the
digests in the record.
"""

import base64
import collections
import dataclasses
import json
import math
import re
import sys
import types
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Int64, UInt8, UInt32

from .._errors import bullets, structure_error, value_error
from .._jaxprs import UNSURE, array_text, digest, fingerprint_of, text_of
from .._kernel import has_kernels, machine_text
from .._reduce import ReducerTree
from .._same import differences, record_of
from .._spaces import Space, axis_name, is_axis, static_column
from .._tree import as_data, is_key_array, path_name, tree_text
from .._types import Key
from .compute.cases import Case, has_any
from .compute.reduce_programs import trace_reducers
from .compute.trace import Traced
from .store import FORMAT, Origin, Store, coordinate_digest, in_place, raw_of
from .work import Plan

_LONG, _SHORT = 200, 100
"""The maximum length of a constant in a message, and of a setting."""
_NO_KEY = "no key"
_PYTHON = "{}.{}".format(*sys.version_info)
"""The version, with which the same code has other bytecode."""


def identity_of(plan: Plan) -> dict[str, Any]:
    """Return the identity of a sweep as JSON, without that of its contents."""
    points, search = plan.points, plan.request.search
    return {
        **({} if search is None else {"search": dict(search)}),
        "space": _space_texts(points.space),
        "key": _NO_KEY if points.key is None else _key_text(points.key),
        "static": _static_texts(plan.request.space),
        "function": {
            **function_texts(
                points.space, zip(points.cases, points.traced, strict=True)
            ),
            "holds": record_of(plan.request.fn).parts,
            "kernels": kernels_text(points.traced, points.devices[0].platform),
        },
        "jax": jax.__version__,
        "python": _PYTHON,
    }


def _static_texts(space: Space) -> dict[str, dict[str, str]]:
    """Return for each `Static` axis the digests of its values, by the text shown."""
    digests_by_axis: dict[str, dict[str, str]] = {}
    for name, axis in space.axes().items():
        if axis.is_static:
            static: Any = axis
            values = [static.value(i, None) for i in range(len(axis))]
            shown = map(str, static_column(values).tolist())
            digests = map(_static_digest, values)
            digests_by_axis[name] = dict(zip(shown, digests, strict=True))
    return digests_by_axis


def _static_digest(value: Any) -> str:
    """Return the digest of a static value; if unsure, its programs decide, in order."""
    record = record_of(value)
    return f"{UNSURE}{digest(text_of(value))[:16]}" if record.unsure else record.digest


def case_texts(space: Space, cases: Iterable[Case]) -> list[str]:
    """Return what identifies the static values of each case."""
    geometry, texts = space.geometry, []
    for case in cases:
        found = []
        pairs = zip(geometry.axes.values(), geometry.axis_dims, strict=True)
        found = [_digest_at(a, case.plain[dim]) for a, dim in pairs if a.is_static]
        texts.append(" ".join(found))
    return texts


def _digest_at(axis: Any, at: int) -> str:
    text = _static_digest(axis.value(at, None))
    return f"{text} at {at}" if text.startswith(UNSURE) else text


def _space_texts(space: Space) -> dict[str, str]:
    """Return a text for each part of a space."""
    texts = {
        "mode": space.mode,
        "dims": ", ".join(f"{name}: {n}" for name, n in space.dims.items()),
        "slice": str(space.span),
        "key of the space": _NO_KEY if space.key is None else _key_text(space.key),
    }
    if space.rows is not None:
        texts["points"] = f"#{digest(text_of(space.rows))[:8]}"
    for path, leaf in jtu.tree_flatten_with_path(space.tree, is_leaf=is_axis)[0]:
        if is_axis(leaf):
            # The text of an axis does not contain its dtype.
            dtypes = {str(x.dtype) for x in jtu.tree_leaves(leaf) if eqx.is_array(x)}
            text = " ".join([repr(leaf), *sorted(dtypes)])
            for fn in _functions(leaf):  # they count by the values, not by their names
                text = re.sub(rf"(?<!\w){re.escape(fn)}(?!\w)", "function", text)
            name = f"axis {axis_name(path)}"
            texts[name] = f"{text} #{digest(text_of(leaf))[:8]}"
        else:
            text = text_of(leaf)
            if len(text) > _LONG:
                text = f"{text[:_LONG]} #{digest(text)[:8]}"
            texts[f"leaf {path_name(path)}"] = text
    structure = jtu.tree_structure(space.tree, is_leaf=is_axis)
    texts["structure"] = digest(text_of(structure))
    return texts


def _functions(axis: Any) -> list[str]:
    """Return the names of the functions that an axis applies."""
    held, names = vars(axis).values(), []
    for value in held:
        names += _functions(value) if is_axis(value) else []
        names += [value.__name__] if hasattr(value, "__name__") else []
    return names


def function_texts(
    space: Space, traced: Iterable[tuple[Case, Traced]]
) -> dict[str, Any]:
    """Return the identity of a function of a point, for any lengths of axes."""
    pairs = list(traced)
    names = case_texts(space, (case for case, _ in pairs))
    programs, constants, points = [], set[str](), set[str]()
    unsure = ""
    for name, (_, each) in zip(names, pairs, strict=True):
        program = fingerprint_of(each.own)
        texts = program.texts()
        programs.append("\n".join([name, *texts]))
        for text in texts:
            if text.startswith(UNSURE):
                unsure = text[len(UNSURE) :].rpartition(" ")[0]
        constants.update(map(array_text, program.constants))
        points.add(f"{tree_text(each.point)}\n{jtu.tree_structure(each.point)}")
    first = pairs[0][1]
    outputs = jtu.tree_unflatten(first.structure, first.outputs)
    return {
        "program": digest("\n".join(sorted(programs))),
        "unsure": unsure,
        "constants": sorted(constants),
        "point": digest("\n".join(sorted(points))),
        "outputs": tree_text(outputs),
        "structure": digest(text_of(first.structure)),
    }


def kernels_text(traced: Iterable[Traced], platform: str) -> str:
    """Return what the rounding of kernels depends on; "" without native code."""
    has = platform == "cpu" and any(has_kernels(each.own) for each in traced)
    return machine_text() if has else ""


def reducing_identity(reducers: ReducerTree, traced: Traced) -> dict[str, Any]:
    """Return the identity of reducers: their programs, for any batch size."""
    # Use a fixed batch size, so that the text does not depend on that of the sweep.
    reducing = trace_reducers(reducers, traced, 2)
    programs = [reducing.absorb.program, reducing.merge.program]
    texts = [text for program in programs for text in program.texts()]
    texts += map(array_text, reducing.init)
    kinds = [type(reducer).__name__ for reducer in reducers.reducers]
    states = jtu.tree_unflatten(reducing.structure, reducing.init)
    return {
        "reducers": str(jtu.tree_unflatten(reducers.structure, kinds)),
        "states": tree_text(states),
        "text": digest("\n".join(texts)),
        "holds": [record_of(reducer).parts for reducer in reducers.reducers],
    }


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
    if "saved" in was:
        raise structure_error(
            "sweep",
            f"`{path}` was written by `SweepResult.save`, as a finished result.",
            "Give another path: a sweep resumes only stores that `store=` created.",
        )
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
    follows |= (was["key"] == _NO_KEY) != (now["key"] == _NO_KEY)
    known = lines and follows
    function = "" if known else _function_change(was, now, trusting)
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
        wrong = f"the store `{path}` has the format {was.get('format')!r}, and this "
        wrong += f"version of eqx_pipe knows the format {now['format']}."
        cure = "Use the version that created it, or give another path."
        raise structure_error(function, wrong, cure)
    names = [name for name, text in now.items() if was.get(name, text) != text]
    names = [name for name in names if name not in (HELD, *_VERSIONS)]
    if not names or trusting and {*names} <= {"training"}:
        return
    held = [json.loads(each.get(HELD, "{}")) for each in (was, now)]
    lines = []
    for x in names:
        shown = [each[x].partition(" #")[0] for each in (was, now)]
        of = ("init", "step", "evaluate") if x == "training" else (x,)
        parts = {name: [each.get(name, {}) for each in held] for name in of}
        found = {name: differences(*pair) for name, pair in parts.items()}
        line = f"`{x}`: {was[x]} in the store, now {now[x]}"
        if x == "training":
            texts = [f"in `{name}`, {text}" for name, text in found.items() if text]
            line = f"`{x}`: {'; '.join(texts) or 'it computes other values'}"
        elif shown[0] != shown[1]:
            line = f"`{x}`: {shown[0]} in the store, now {shown[1]}"
        elif found[x]:
            line = f"`{x}`: {shown[0]}, in which {found[x]}"
        lines.append(line)
    lines += [
        f"{x} {was.get(x)} in the store, now {now[x]}: the same in another form?"
        for x in _VERSIONS[:2]
        if x in now and was.get(x) != now[x]
    ]
    wrong = f"the store `{path}` was created by a different {what}:{bullets(lines)}"
    cure = f"Give another path, or the arguments of that {what}."
    if {*names} <= {"training"}:
        cure += ' If only a mistake was mended, `resume="failed"` continues, and '
        cure += 'tries failed trainings again; `resume="force"` does not.'
    raise structure_error(function, wrong, cure)


_VERSIONS = "jax", "python", "format"
"""Settings that do not count by themselves."""
HELD = "~held"
"""The name of short texts of what functions hold, which do not count."""


def as_texts(
    settings: Mapping[str, object],
    function: str = "",
    others: Mapping[str, object] = types.MappingProxyType({}),
) -> dict[str, str]:
    """Return settings as texts, by which a store recognises them.

    A text is the same in every process. A function counts by its name, and by all that
    it computes with: its code, constants, defaults, globals and the values that it
    closes over. Objects that are not understood raise a `StructureError`. The texts
    also have what `others` hold, for messages.
    """
    texts, held = {}, {name: record_of(x).parts for name, x in others.items()}
    for name, value in settings.items():
        if value is None or isinstance(value, str | int):
            texts[name] = str(value)
            continue
        if eqx.is_array(value) or isinstance(value, Space | Mapping):
            data = as_data(value)
            shown = str(data.tolist()) if eqx.is_array(data) else repr(data)
            shown, text = re.sub(r" at 0x\w+", "", shown), digest(text_of(data))
        else:
            (text, held[name], unsure), shown = record_of(value), type(value).__name__
            if unsure:
                wrong = f"`{name}` holds {unsure}, which a store cannot recognise."
                cure = "Let it hold numbers, texts, arrays, functions and Modules only."
                raise structure_error(function, wrong, cure)
        shown, cut = " ".join(shown.split()), "..." if len(shown) > _SHORT else ""
        texts[name] = f"{shown[:_SHORT]}{cut} #{text[:8]}"
    versions = {"python": _PYTHON, "format": str(FORMAT)}
    return texts | versions | {HELD: json.dumps(held)}


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
        return f"`fn` calls Python code that holds {after['unsure']}, which a store "
        "cannot recognise"
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


def _key_text(key: Key) -> str:
    typed = is_key_array(key)
    data, kind = (jr.key_data(key), jr.key_impl(key)) if typed else (key, "raw")
    return f"{kind} {[int(x) for x in data.reshape(-1)]}"


def _differing(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
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
    names = _differing(was, now)
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
    if {name for name in _differing(*both)} <= {"text", "holds"} and trusting:
        if was["jax"] != now["jax"] or was["python"] != now["python"]:
            return []
    if "text" not in _differing(*both):  # what they hold may be written in another way
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
        name: _column(dim, store.coordinate(name), record["static"].get(name))
        for name, variable in record["coordinates"].items()
        if (dim := variable["dims"][0]) in space.dims
    }
    new = {
        name: _column(dims[0], values, texts.get(name))
        for name, (dims, values, _) in coordinates.items()
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


@dataclasses.dataclass(frozen=True)
class Grown:
    """The larger store that a store becomes; if values are `moved`, in other files.

    `plan` has the batch size and the keys of the old store, and the chunks of the
    larger one.
    """

    plan: Plan
    origin: Origin
    moved: bool


def key_digits_of(
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


def with_key_digits(plan: Plan, digits: Mapping[str, UInt32[np.ndarray, " _"]]) -> Plan:
    """Return the plan with the digits of some dims that keys are folded with."""
    if not key_digits_text(digits):
        return plan
    grid = plan.points.geometry.grid_dims.items()
    tables = [digits.get(dim, np.arange(n, dtype=np.uint32)) for dim, n in grid]
    return plan.with_key_digits(tuple(tables))


def _axes(texts: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in texts.items() if name.startswith("axis ")}


def _digits_after(
    record: Mapping[str, Any], origin: Origin
) -> dict[str, UInt32[np.ndarray, " _"]]:
    """Return the digits of a larger grid: new positions get digits not in use."""
    after = {}
    pairs = zip(key_digits_of(record).items(), origin.positions, strict=True)
    for (dim, before), at in pairs:
        new, first = np.zeros(len(at), np.uint32), int(max(before, default=-1)) + 1
        new[at >= 0] = before[at[at >= 0]]
        new[at < 0] = first + np.arange(np.sum(at < 0))
        after[dim] = new
    return after


def growth_in(
    plan: Plan,
    store: Store,
    now: Mapping[str, Any],
    coordinates: Callable[[], Mapping[str, Any]],
) -> Grown | None:
    """Return the larger store that this one would become, or `None` if it stays.

    Raises a `StructureError` for the store of another sweep. Nothing is written. `now`
    is the identity of the sweep; `coordinates` returns those of its space.
    """
    was = store.record
    why = "" if "saved" in was else _moved(store, now, plan.request.space, coordinates)
    fixed = not {"saved", "search"}.isdisjoint({*was, *now})
    if not fixed and (was["space"] != now["space"] or why):
        same = was["key"] == now["key"]
        same &= was.get("output_coords") == now.get("output_coords")
        try:
            if same and not outputs_changes(was["function"], now["function"]):
                _check_reduced(plan, was, now)
                return _grown(plan, store, now, coordinates)
        except NoGrowth as no:
            why = str(no) or why
    check_same(store.path, was, now, plan.request.resume is not None, why)
    _check_batch_size(plan, store)
    return None


def _moved(
    store: Store,
    now: Mapping[str, Any],
    space: Space,
    coordinates: Callable[[], Mapping[str, Any]],
) -> str:
    """Return how the values of axes differ, in spite of equal texts."""
    was = store.record
    if was["space"] != now["space"]:
        return ""
    for name, (dims, values, _) in coordinates().items():
        if dims[0] not in space.dims or name not in was["coordinates"]:
            continue
        values = values.astype(object) if values.dtype.kind == "U" else values
        known = was["coordinates"][name]
        if coordinate_digest(name, raw_of(values)) != known["digest"]:
            old = store.coordinate(name).reshape(-1)[:3].tolist()
            new = values.reshape(-1)[:3].tolist()
            return f"`space`, axis {name}: {old}... in the store, now {new}..."
    for name, texts in now["static"].items():
        if was["static"].get(name) != texts:
            return f"`space`, axis {name}: other values of these names, or order"
    return ""


def _check_reduced(plan: Plan, was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise `NoGrowth` unless the store reduces points like the new sweep."""
    if "reduce" in was and "reduce" in now:
        raise NoGrowth(
            "`reduce`: a store of a reduction does not grow, as its blocks are those "
            "of its space; one of `Mean(over=...)` does along the dims that are kept"
        )
    cells = [each.get("cells", {}) for each in (was, now)]
    if {*_differing(*cells)} - {"holds"} or "reduce" in {*was, *now}:
        raise NoGrowth
    request = plan.request
    for name in request.whole.axes().keys() - request.space.axes().keys():
        if was["space"].get(f"axis {name}") != now["space"][f"axis {name}"]:
            raise NoGrowth(
                f"`space`: values are reduced over `{name}`, so with another one each "
                "cell is to be computed anew"
            )


def _grown(
    plan: Plan,
    store: Store,
    now: Mapping[str, Any],
    coordinates: Callable[[], Mapping[str, Any]],
) -> Grown:
    request, points = plan.request, plan.points
    origin = origin_of(store, now, request.space, coordinates())
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
            plan = with_key_digits(plan, digits)
        elif _axes(store.record["space"]) != _axes(now["space"]):
            raise NoGrowth(
                "`space`: with a key, the store of a part of a grid grows only within "
                "that grid, whose positions determine the draws of points"
            )
    return Grown(plan, origin, chunks is None)


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
