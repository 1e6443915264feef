"""The identity of a sweep in the record of its store: space, key, function."""

from collections.abc import Iterable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.random as jr
import jax.tree_util as jtu

from ..._errors import bullets, structure_error
from ..._jaxprs import array_text, digest, fingerprint_of, text_of
from ..._spaces import Space, axis_name, is_axis, static_column
from ..._tree import is_key_array, path_name, tree_text
from ..._types import Key
from ..compute.cases import Case
from ..compute.trace import Traced
from ..plan import Plan

_LONG = 200
_NO_KEY = "no key"


def identity_of(plan: Plan) -> dict[str, Any]:
    """Return the identity of a sweep as JSON, without that of its contents."""
    points, search = plan.points, plan.request.search
    return {
        **({} if search is None else {"search": dict(search)}),
        "space": _space_texts(points.space),
        "key": _NO_KEY if points.key is None else _key_text(points.key),
        "static": _static_texts(plan.request.space),
        "function": function_texts(zip(points.cases, points.traced, strict=True)),
        "jax": jax.__version__,
    }


def _static_texts(space: Space) -> dict[str, dict[str, str]]:
    """Return for each `Static` axis the digests of its values, by the text shown."""
    found: dict[str, dict[str, str]] = {}
    for name, axis in space.axes().items():
        if axis.is_static:
            static: Any = axis
            values = [static.value(i, None) for i in range(len(axis))]
            shown = map(str, static_column(values).tolist())
            digests = (digest(text_of(value)) for value in values)
            found[name] = dict(zip(shown, digests, strict=True))
    return found


def _space_texts(space: Space) -> dict[str, str]:
    """Return a text for each part of a space."""
    found = {
        "mode": space.mode,
        "dims": ", ".join(f"{name}: {n}" for name, n in space.dims.items()),
        "slice": str(space.span),
        "key of the space": _NO_KEY if space.key is None else _key_text(space.key),
    }
    if space.rows is not None:
        found["points"] = f"#{digest(text_of(space.rows))[:8]}"
    for path, leaf in jtu.tree_flatten_with_path(space.tree, is_leaf=is_axis)[0]:
        if is_axis(leaf):
            # The text of an axis does not contain its dtype.
            dtypes = {str(x.dtype) for x in jtu.tree_leaves(leaf) if eqx.is_array(x)}
            text = " ".join([repr(leaf), *sorted(dtypes)])
            name = f"axis {axis_name(path)}"
            found[name] = f"{text} #{digest(text_of(leaf))[:8]}"
        else:
            text = text_of(leaf)
            if len(text) > _LONG:
                text = f"{text[:_LONG]} #{digest(text)[:8]}"
            found[f"leaf {path_name(path)}"] = text
    structure = jtu.tree_structure(space.tree, is_leaf=is_axis)
    found["structure"] = digest(text_of(structure))
    return found


def function_texts(traced: Iterable[tuple[Case, Traced]]) -> dict[str, Any]:
    """Return the identity of a function of a point, for any lengths of axes."""
    pairs = list(traced)
    programs, constants, points = [], set[str](), set[str]()
    for part, each in pairs:
        own = fingerprint_of(each.own)
        held = list(map(array_text, own.constants))
        programs.append("\n".join([part.text, own.text, *held]))
        constants.update(held)
        points.add(f"{tree_text(each.point)}\n{jtu.tree_structure(each.point)}")
    first = pairs[0][1]
    outputs = jtu.tree_unflatten(first.structure, first.outputs)
    return {
        "program": digest("\n".join(sorted(programs))),
        "constants": sorted(constants),
        "point": digest("\n".join(sorted(points))),
        "outputs": tree_text(outputs),
        "structure": digest(text_of(first.structure)),
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
    _check_same_search(path, was, now)
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


def _check_same_search(
    path: str, was: Mapping[str, Any], now: Mapping[str, Any]
) -> None:
    """Raise a `StructureError` for a round of a search with other settings.

    A setting that only one of the two has does not count, such as a further rung.
    """
    before, after = (record.get("search", {}) for record in (was, now))
    lines = [
        f"`{name}`: {before[name]} in the store, now {text}"
        for name, text in after.items()
        if before.get(name, text) != text
    ]
    if lines:
        wrong = f"the store `{path}` was created by a different search:{bullets(lines)}"
        cure = "Give another path, or the arguments of that search."
        raise structure_error("sweep", wrong, cure)


def _function_change(
    was: Mapping[str, Any], now: Mapping[str, Any], trusting: bool
) -> str:
    """Return the difference of functions, unless that of outputs explains it."""
    before, after = was["function"], now["function"]
    same = before["program"] == after["program"]
    if trusting or same or outputs_changes(before, after):
        return ""
    if before["constants"] != after["constants"]:
        differing = {*before["constants"]} ^ {*after["constants"]}
        shown = ", ".join(sorted({text.split("#")[0] for text in differing})[:4])
        return f"`fn`: arrays that it closes over have other values ({shown})"
    if was["jax"] == now["jax"]:
        return "`fn`: another program"
    versions = f"jax {was['jax']} in the store, now {now['jax']}"
    return f"`fn`: another program, or the same in another form ({versions})"


def _key_text(key: Key) -> str:
    typed = is_key_array(key)
    data, kind = (jr.key_data(key), jr.key_impl(key)) if typed else (key, "raw")
    return f"{kind} {[int(x) for x in data.reshape(-1)]}"


_HIDDEN = {
    "structure": "other containers, or other static fields",
    "text": "the same kinds of reducers with other settings or functions",
}
"""Descriptions of entries of an identity that are digests and are not shown."""


def _changes(
    argument: str, was: Mapping[str, str], now: Mapping[str, str]
) -> list[str]:
    """Return the differing texts of an argument, or digests if only these differ."""
    names = [x for x in {**was, **now} if was.get(x) != now.get(x)]
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
    lines = _changes("reduce", *both)[:1]
    # Another version of JAX may trace the same reducers in another form.
    is_form = bool(lines) and _HIDDEN["text"] in lines[0] and was["jax"] != now["jax"]
    return [] if is_form and trusting else lines


def outputs_changes(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the differences in structure, shapes and dtypes of the output."""
    if all(was[name] == now[name] for name in ("outputs", "structure")):
        return []
    return [f"`fn`: it returns {was['outputs']} in the store, now {now['outputs']}"]
