"""Whether a store is that of a sweep: its space, key, function, and what it holds."""

import contextlib
import errno
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.random as jr
import jax.tree_util as jtu
import numpy as np

from ..._errors import SweepError, message, value_error
from ..._jaxprs.text import Writer, digest
from ..._spaces import Space, axis_name, is_axis
from ..._store.layout import COUNT, Variable, check_record, damaged
from ..._store.store import Store
from ..._tree import is_key_array, path_name, tree_text
from ..._types import Key
from ..compute.cases import Case
from ..compute.trace import Traced

_LONG = 200
_NO_KEY = "no key"
_KEY_LAW = "folded with the position on each dim"
"""How the keys of points are made; stores that do not say folded the flat index."""


def fingerprint(
    space: Space, key: Key | None, parts: Sequence[Case], traced: Sequence[Traced]
) -> dict[str, Any]:
    """What a sweep is, as JSON."""
    return {
        "space": _space(space),
        "key": _NO_KEY if key is None else _key(key),
        "key_law": _KEY_LAW,
        "function": _function(parts, traced),
        "jax": jax.__version__,
    }


def check_alone(
    path: Path,
    stored: Mapping[str, Any],
    now: Mapping[str, str],
    trusting: bool,
) -> None:
    """Raises a `ValueError` if the function of a larger space is not that of a store.

    `now` is the `fingerprint_alone` of this function at the points that the store has.
    """
    was = stored["alone"]
    if trusting or now == was:
        return
    if stored["jax"] != jax.__version__ and now["point"] == was["point"]:
        _warn_of_jax(path, stored["jax"])
        return
    raise value_error(
        "sweep",
        f"the space of the store `{path}` has grown, and `fn` is another program now, "
        "or closes over other values.",
        "Give the function that made it, or another path. If you know that the values "
        'are the same, `resume="force"` goes on with it.',
    )


def _warn_of_jax(path: Path, version: str) -> None:
    warnings.warn(
        message(
            "sweep",
            f"the store `{path}` was begun with jax {version}, this is "
            f"{jax.__version__}, and the traced function differs in form.",
            "The sweep continues, as such a difference is to be expected between "
            "two versions of JAX; see that the function is the same.",
        ),
        UserWarning,
        stacklevel=2,
    )


def fingerprint_alone(traced: Iterable[tuple[Case, Traced]]) -> dict[str, str]:
    """Return what identifies a function whatever the lengths of the axes, as JSON."""
    writer, points, programs = Writer(), [], []
    for part, each in traced:
        points.append(f"{tree_text(each.point)}\n{jtu.tree_structure(each.point)}")
        programs.append(f"{part.text}\n{writer.program(each.own)}")
    programs += writer.constants
    return {"point": digest("\n".join(points)), "program": digest("\n".join(programs))}


def check_same(
    path: Path,
    stored: Mapping[str, Any],
    now: Mapping[str, Any],
    alone: Callable[[], dict[str, str]],
    trusting: bool,
    why: str = "",
) -> None:
    """Raises a `ValueError` that says in what a sweep differs from that of a store.

    `alone` gives the `fingerprint_alone`. If the user is to be trusted (by
    `resume="force"`) the function may be another. `why` says more of two spaces.
    """
    lines = _differing(stored["space"], now["space"])
    lines += [why] if why else []
    if stored["key"] != now["key"]:
        lines.append(f"`key`: {stored['key']} in the store, now {now['key']}")
    elif now["key"] != _NO_KEY and stored.get("key_law") != now["key_law"]:
        lines.append(
            "`key`: an older version of eqx_pipe made the points' keys in another way "
            f"(from the flat index); now the key is {now['key_law']}, so that points "
            "draw otherwise"
        )
    lines += _named_dims(stored, now)
    reducers, sure = _reducing(stored, now)
    if reducers and (sure or stored["jax"] == now["jax"]):
        lines.append(reducers)
    # What a store has room for is no matter of trust.
    changes = _schema_changes(stored["function"], now["function"])
    lines += changes
    function, certain = _changes(stored, now)
    if function and not changes and lines and _follows(stored, now, alone):
        function = []
    if function and certain and not trusting and not changes:
        lines += function
    elif (function or reducers) and not lines and not trusting:
        _warn_of_jax(path, stored["jax"])
    if lines:
        only = bool(function) and lines == function and not changes
        cure = "Give another path, or the sweep that made it."
        if only:
            cure += ' If you know that the values are the same, `resume="force"` goes '
            cure += 'on with it; `resume="failed"` also computes failed points again.'
        raise value_error(
            "sweep",
            f"the store `{path}` is that of another sweep:\n"
            + "\n".join(f"- {line}" for line in lines)
            + "\n",
            cure,
        )


def _space(space: Space) -> dict[str, str]:
    """A text for each thing that makes a space."""
    found = {
        "mode": space.mode,
        "dims": ", ".join(f"{name}: {n}" for name, n in space.dims.items()),
        "slice": str(space.span),
        "key of the space": _NO_KEY if space.key is None else _key(space.key),
    }
    writer = Writer()
    if space.rows is not None:
        found["points"] = f"#{digest(writer.value(space.rows))[:8]}"
    for path, leaf in jtu.tree_flatten_with_path(space.tree, is_leaf=is_axis)[0]:
        if is_axis(leaf):
            # The text of an axis does not say its dtype.
            dtypes = {str(x.dtype) for x in jtu.tree_leaves(leaf) if eqx.is_array(x)}
            text = " ".join([repr(leaf), *sorted(dtypes)])
            found[f"axis {axis_name(path)}"] = (
                f"{text} #{digest(writer.value(leaf))[:8]}"
            )
        else:
            text = writer.value(leaf)
            if len(text) > _LONG:
                text = f"{text[:_LONG]} #{digest(text)[:8]}"
            found[f"leaf {path_name(path)}"] = text
    structure = jtu.tree_structure(space.tree, is_leaf=is_axis)
    found["structure"] = digest(writer.structure(structure))
    return found


def _key(key: Key) -> str:
    typed = is_key_array(key)
    data, kind = (jr.key_data(key), jr.key_impl(key)) if typed else (key, "raw")
    return f"{kind} {[int(x) for x in data.reshape(-1)]}"


def _function(parts: Sequence[Case], traced: Sequence[Traced]) -> dict[str, Any]:
    writer = Writer()
    texts = [
        f"{part.text}\n{writer.program(each.jaxpr)}"
        for part, each in zip(parts, traced, strict=True)
    ]
    outputs = jtu.tree_unflatten(traced[0].structure, traced[0].outputs)
    return {
        "text": digest("\n".join(texts)),
        "operations": writer.operations,
        "constants": writer.constants,
        "outputs": tree_text(outputs),
        "structure": digest(writer.structure(traced[0].structure)),
    }


def _differing(stored: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    lines = []
    for name in dict.fromkeys([*stored, *now]):
        was, is_ = stored.get(name), now.get(name)
        if was != is_:
            what = f"`space`, {name}"
            if name == "structure" and lines:  # said already
                continue
            if name == "structure":
                lines.append(f"{what}: other containers, or other static fields")
            else:
                lines.append(f"{what}: {was} in the store, now {is_}")
    return lines


def _named_dims(stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs in the names and coordinates of the dims of outputs."""
    was, is_ = (record.get("output_coords", {}) for record in (stored, now))
    return [
        f"`output_coords`, {path!r}: {was.get(path, 'no names')} in the store, now "
        f"{is_.get(path, 'no names')}"
        for path in sorted({*was, *is_})
        if was.get(path) != is_.get(path)
    ]


def _follows(
    stored: Mapping[str, Any],
    now: Mapping[str, Any],
    alone: Callable[[], dict[str, str]],
) -> bool:
    """Whether a program is another because the space or the key is.

    The program works the points out, so it has the lengths of the axes in it.
    """
    if (stored["key"] == _NO_KEY) != (now["key"] == _NO_KEY):
        return True
    was, is_ = stored["alone"], alone()
    return was["point"] != is_["point"] or was["program"] == is_["program"]


def _reducing(stored: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, bool]:
    """What differs in the reducers, and whether that is certain."""
    was, is_ = (record.get("reduce") or record.get("cells") for record in (stored, now))
    if was == is_:
        return "", True
    if was is None or is_ is None:
        kept = "values" if was is None else f"the reduction {was['reducers']}"
        wanted = "no reduction" if is_ is None else is_["reducers"]
        return f"`reduce`: {kept} in the store, now {wanted}", True
    for name in ("reducers", "states"):
        if was[name] != is_[name]:
            text = f"{was[name]} in the store, now {is_[name]}"
            return f"`reduce`, {name}: {text}", True
    text = f"the same kinds of reducers ({was['reducers']}) with other settings"
    return f"`reduce`: {text} or functions", False


def _schema_changes(was: Mapping[str, Any], is_: Mapping[str, Any]) -> list[str]:
    """What differs in the structure, shapes and dtypes of the output."""
    if all(was[name] == is_[name] for name in ("outputs", "structure")):
        return []
    return [f"`fn`: it gives {was['outputs']} in the store, now {is_['outputs']}"]


def _changes(
    stored: Mapping[str, Any], now: Mapping[str, Any]
) -> tuple[list[str], bool]:
    """What differs in the function, and whether that is certain.

    Another version of JAX may trace the same function to another text.
    """
    was, is_ = stored["function"], now["function"]
    if was == is_:
        return [], True
    changes = _schema_changes(was, is_)
    if changes:
        return changes, True
    if was["constants"] != is_["constants"]:
        differing = set(is_["constants"]) ^ set(was["constants"])
        shown = ", ".join(sorted({text.split("#")[0] for text in differing})[:4])
        return [f"`fn`: arrays that it closes over have other values ({shown})"], True
    before, after = was["operations"], is_["operations"]
    names = sorted({*before, *after})
    counts = [(name, before.get(name, 0), after.get(name, 0)) for name in names]
    changed = [f"`{n}` {a} times, now {b}" for n, a, b in counts if a != b][:6]
    text = "; ".join(changed) or "the same operations, other numbers or another order"
    return [f"`fn`: another program ({text})"], stored["jax"] == now["jax"]


_SWEEP = {
    "space": {str: str},
    "key": str,
    "function": {
        "text": str,
        "operations": {str: int},
        "constants": [str],
        "outputs": str,
        "structure": str,
    },
    "alone": {"point": str, "program": str},
    "jax": str,
    "batch_size": COUNT,
}

_REDUCERS = {"reducers": str, "states": str, "text": str}


def check_sweep(store: Store) -> None:
    """Raises a `ValueError` unless the record says what a sweep's does."""
    named = {"output_coords": {str: str}}
    how = {name: _REDUCERS for name in ("reduce", "cells")} | named
    how = {name: schema for name, schema in how.items() if name in store.record}
    check_record("sweep", store.path, store.record, {**_SWEEP, **how})


def check_batch_size(store: Store, size: int) -> None:
    """Raises a `ValueError` unless the batch size is that of a sweep of `size` points.

    A larger one would be computed all the same, with lanes for nothing.
    """
    schema = {"batch_size": range(1, max(1, size) + 1)}
    check_record("sweep", store.path, store.record, schema)


def check_room(
    store: Store, lengths: tuple[int, ...], variables: Sequence[Variable], status: str
) -> None:
    """Raises a `ValueError` unless the store has a place for what is computed."""
    names = [*(variable.name for variable in variables), status]
    kept = [*store.record["variables"], store.record["status"]]
    if kept != names:
        raise damaged("sweep", store.path, f"its arrays are {kept}, and not {names}")
    if store.chunks.lengths != lengths:
        kept = list(store.chunks.lengths)
        what = f"`lengths` is {kept}, and not {list(lengths)}"
        raise damaged("sweep", store.path, what)
    for array, variable in zip(store.arrays, variables, strict=True):
        inner = tuple(array.shape[len(lengths) :])
        if (array.dtype, inner) != (variable.dtype, tuple(variable.inner)):
            what = (
                f"`{variable.name}` keeps {array.dtype}{list(inner)} for each, and not "
                f"{variable.dtype}{list(variable.inner)}"
            )
            raise damaged("sweep", store.path, what)


def refuse_failed(path: Path, failed: np.ndarray) -> None:
    """Raises a `SweepError` if there are points in a store that have failed."""
    if not len(failed):
        return
    shown = ", ".join(map(str, failed[:5])) + (", ..." if len(failed) > 5 else "")
    what = f"point {shown}" if len(failed) == 1 else f"{len(failed):,} points ({shown})"
    raise SweepError(
        message(
            "sweep",
            f'the store `{path}` was filled with `on_error="mark"`, and `fn` '
            f"failed at {what}.",
            'Go on with `on_error="mark"`, which keeps the other points, or call '
            f"`fn(space.point({failed[0]}))` to see the error. "
            'Mend it, and `resume="failed"` computes these points again.',
        ),
        failed.tolist(),
    )


@contextlib.contextmanager
def continuing(path: Path, what: str) -> Iterator[None]:
    """Says what to do when the disk does not do what it should."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        cure = "Make room there" if full else "See that the folder can be written to"
        raise SweepError(
            message(
                "sweep",
                f"the store `{path}` could not {what}: {error}.",
                f"{cure}, then call the same sweep again. Chunks that are finished are "
                "kept.",
            )
        ) from error
