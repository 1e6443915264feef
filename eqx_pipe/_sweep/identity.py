"""The identity of a sweep in the record of its store, and how it differs.

A store belongs to one space, key, function and set of reducers.
"""

import json
import re
import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.random as jr
import jax.tree_util as jtu

from .._errors import bullets, structure_error
from .._jaxprs import UNSURE, array_text, digest, fingerprint_of, text_of
from .._kernel import machine_text
from .._reduce import ReducerTree
from .._same import differences, record_of
from .._spaces import Space, axis_name, is_axis, static_column
from .._store import FORMAT
from .._tree import as_data, is_key_array, path_name, tree_text
from .._types import Key
from .plan import Plan
from .trace.cases import Case
from .trace.reducers import trace_reducers
from .trace.trace import Traced

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
        pairs = zip(geometry.axes.values(), geometry.axis_dims, strict=True)
        digests = [_digest_at(a, case.plain[dim]) for a, dim in pairs if a.is_static]
        texts.append(" ".join(digests))
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
    has = platform == "cpu" and any(each.has_kernels for each in traced)
    return machine_text() if has else ""


def reducing_identity(reducers: ReducerTree, traced: Traced) -> dict[str, Any]:
    """Return the identity of reducers: their programs, for any batch size."""
    # Use a fixed batch size, so that the text does not depend on that of the sweep.
    reducing = trace_reducers(reducers, traced, 2)
    programs = [reducing.absorb.fingerprint, reducing.merge.fingerprint]
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
    free = HELD, *_VERSIONS
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


def _key_text(key: Key) -> str:
    typed = is_key_array(key)
    data, kind = (jr.key_data(key), jr.key_impl(key)) if typed else (key, "raw")
    return f"{kind} {[int(x) for x in data.reshape(-1)]}"


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
