"""The differences of a call from the one that created its store, as an error."""

import json
from collections.abc import Mapping
from typing import Any

from .._errors import bullets, structure_error
from .._same import differences
from .identity import HELD, NO_KEY, VERSIONS


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
