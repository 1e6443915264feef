"""The identity of a sweep in the record of its store.

A store belongs to one space, key, function and set of reducers. The identities of two
calls are compared in `stored_plan.py`.
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

from .._errors import structure_error
from .._jaxprs import UNSURE, array_text, digest, fingerprint_of, text_of
from .._kernel import machine_text
from .._reduce import ReducerTree
from .._same import record_of
from .._spaces import Geometry, Space, axis_name, is_axis, static_column
from .._store import FORMAT
from .._tree import as_data, is_key_array, path_name, tree_text
from .._types import Key
from .plan import Plan
from .trace.cases import Case
from .trace.reducers import trace_reducers
from .trace.trace import Traced

_LONG, _SHORT = 200, 100
"""The maximum length of a constant in a message, and of a setting."""

NO_KEY = "no key"

_PYTHON = "{}.{}".format(*sys.version_info)
"""The version, with which the same code has other bytecode."""


def identity_of(plan: Plan) -> dict[str, Any]:
    """Return the identity of a sweep as JSON, without that of its contents."""
    points, search = plan.points, plan.request.search
    return {
        **({} if search is None else {"search": dict(search)}),
        "space": _space_texts(points.space),
        "key": NO_KEY if points.key is None else _key_text(points.key),
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


def _case_text(geometry: Geometry, case: Case) -> str:
    """Return what identifies the static values of a case."""
    digests = []
    axes: Any = zip(geometry.axes.values(), geometry.axis_dims, strict=True)
    for axis, dim in axes:
        if axis.is_static:
            text = _static_digest(axis.value(case.plain[dim], None))
            digests.append(text + f" at {case.plain[dim]}" * text.startswith(UNSURE))
    return " ".join(digests)


def _space_texts(space: Space) -> dict[str, str]:
    """Return a text for each part of a space."""
    texts = {
        "mode": space.mode,
        "dims": ", ".join(f"{name}: {n}" for name, n in space.dims.items()),
        "slice": str(space.span),
        "key of the space": NO_KEY if space.key is None else _key_text(space.key),
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
    programs, constants, points = [], set[str](), set[str]()
    unsure = ""
    for case, each in pairs:
        program = fingerprint_of(each.own)
        texts = program.texts()
        programs.append("\n".join([_case_text(space.geometry, case), *texts]))
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


VERSIONS = "jax", "python", "format"
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


def _key_text(key: Key) -> str:
    typed = is_key_array(key)
    data, kind = (jr.key_data(key), jr.key_impl(key)) if typed else (key, "raw")
    return f"{kind} {[int(x) for x in data.reshape(-1)]}"
