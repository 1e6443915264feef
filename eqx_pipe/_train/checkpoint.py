"""The checkpoints of trainings in a folder or bucket: the newest, and the one before.

A checkpoint is a file of leaves (`_leaves.py`) with the settings, the carries and the
name of its curves, which a `SweepResult.save` has written before under an unused name.
If a file of the newest one is damaged, the one before counts.
"""

import contextlib
import dataclasses
import errno
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import _leaves
from .._errors import StructureError, describe_value, log_once, value_error
from .._results import SweepResult
from .._store import MALFORMED, Files, Taken, Undecodable, disk_errors, settle
from .._sweep import as_texts, check_settings

KEY, BEFORE = "checkpoint", "checkpoint.before"
"""The keys of the newest checkpoint, which is replaced atomically, and the other."""

CHECKPOINTS = {KEY, BEFORE}

CURVES = re.compile(r"curves-\d{9}-[0-9a-f]{32}\.zarr")


class Saved(NamedTuple):
    """A checkpoint: its key, the arrays, other entries, and the curves in memory."""

    key: str
    arrays: list[np.ndarray]
    entries: dict[str, Any]
    curves: SweepResult


Check = Callable[[Saved], object]
"""A function that raises for a checkpoint that does not fit."""


def newest(files: Files, function: str, check: Check) -> Saved | None:
    """Return the newest whole checkpoint, or `None` if there is none.

    Logs which is damaged. Raises a `ValueError` that names the damage if none is whole,
    and an `OSError` for a file that the system cannot read.
    """
    with disk_errors(files.path_of(), "be read", function):
        read = [_read(files, KEY, check, function)]
        if not isinstance(read[0], Saved):
            read.append(_read(files, BEFORE, check, function))
    last, wrong = read[-1], "; ".join(x for x in read if isinstance(x, str))
    if isinstance(last, Saved) and len(read) > 1:
        wrong = wrong or f"`{files.path_of(KEY)}` is missing"
        text = "eqx_pipe.%s: %s. The checkpoint before it is used, of step %d."
        log_once(f"{function} {wrong}", text, function, wrong, last.entries["step"])
    elif wrong:
        wrong = f"the store `{files.path_of()}` has no whole checkpoint: {wrong}."
        cure = "Restore it from a copy, or delete the store."
        raise value_error(function, wrong, cure)
    return last if isinstance(last, Saved) else None


def damage(files: Files) -> list[str]:
    """Return the damage of both checkpoints, by reading them."""
    with disk_errors(files.path_of(), "be read", "verify"):
        keys = KEY, BEFORE
        checkpoints = [_read(files, key, lambda saved: None, "verify") for key in keys]
    lost = f"`{files.path_of(KEY)}` is missing"
    checkpoints[0] = lost if checkpoints[0] is None else checkpoints[0]
    return [text for text in checkpoints if isinstance(text, str)]


def write(
    files: Files,
    arrays: Sequence[np.ndarray],
    entries: Mapping[str, Any],
    curves: SweepResult,
    tag: str | None,
    is_first: bool,
) -> str | None:
    """Write a checkpoint, and return its tag; that with the `tag` stays as the other.

    Raises `Taken` if another process has written one since.
    """
    if not is_first and KEY not in files.names():
        raise FileNotFoundError(errno.ENOENT, "it was deleted", files.path_of())
    data = _leaves.pack(arrays, entries)
    try:
        curves.save(files.below(entries["curves"]))
        if not is_first:
            files.copy(KEY, BEFORE)
        old = files.names()
        tag = files.swap(KEY, data, tag)
    except OSError:  # make room on a full disk; in a bucket, a reply may be lost
        if not files.conditional:
            files.remove_all(entries["curves"])
        raise
    if tag is None:  # perhaps a repeated request, whose reply was lost
        tag = files.tag(KEY)
        if files.get(KEY, math.inf) != data:
            raise Taken("another process")
    tidy(files, entries, old)
    return tag


def tidy(files: Files, entries: Mapping[str, Any], old: Collection[str]) -> None:
    """Remove the `old` curves of other checkpoints, and files of a killed process."""
    if old:
        settle(files)
    for name in {*old} - {entries.get("curves"), entries.get("before")}:
        if CURVES.fullmatch(name):
            files.remove_all(name)


def _read(files: Files, key: str, check: Check, function: str) -> Saved | str | None:
    """Return a checkpoint, or a text about its damage; `None` if it is missing."""
    path = files.path_of(key)
    try:
        data = files.get(key, math.inf)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except Undecodable as error:
        return f"`{path}` is damaged: {error}"
    try:
        saved = _whole(files, key, data, function)
        check(saved)
        return saved
    except StructureError:  # that of another training, or format
        raise
    except (OSError, *MALFORMED) as error:
        if isinstance(error, OSError) and error.errno not in _LOST:
            raise
        # A process that fills the store may have replaced it meanwhile.
        with contextlib.suppress(OSError, Undecodable):
            if files.get(key, math.inf) != data:
                return _read(files, key, check, function)
        # Without a cure, which is that of a sweep.
        text = re.sub(r"^`[\w.]+`: ", "", str(error)).split(". ")[0].rstrip(".")
        return text if path[: -len(key)] in text else f"`{path}` is damaged: {text}"


_LOST = (None, errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
"""The numbers of errors for files that are missing or damaged."""

_KINDS = {
    **dict.fromkeys(("step", "decided", "seen"), int),
    **dict.fromkeys(("curves", "before", "ended"), str),
    "settings": dict,
    "columns": list,
}


def _whole(files: Files, key: str, data: bytes, function: str) -> Saved:
    """Return a checkpoint from its bytes; raise an error if it is not whole."""
    arrays, entries = _leaves.unpack(data)
    for name, kind in _KINDS.items():
        if type(entries.get(name)) is not kind:
            raise ValueError(f"its entry {name!r} is no {kind.__name__}")
    if not 0 <= entries["step"] < 2**31:
        raise ValueError(f"its step is {entries['step']}")
    texts = [*entries["settings"].values(), *entries["columns"]]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("its settings are no texts")
    # Before the curves, which another version cannot read, either.
    settings, now = entries["settings"], as_texts({})
    check_settings(function, "training", files.path_of(), settings, now)
    name = entries["curves"]
    if not CURVES.fullmatch(name):  # also a path to other files
        raise ValueError(f"its curves are {describe_value(name)}")
    curves = SweepResult.load(files.below(name))
    if np.any(curves.missing):  # they cannot be computed again
        raise ValueError(f"a file of `{files.path_of(name)}/status` is missing")
    # Now, since files are read when a result is indexed, and may be removed by then.
    values = {name: np.asarray(x) for name, x in curves.values.items()}
    curves = dataclasses.replace(curves, values=values)
    size, kinds = len(curves), ("bool", "int64", "int64")
    first = [(x.dtype.name, x.shape) for x in arrays[:3]]
    columns = arrays[3 : 3 + len(entries["columns"])]
    fits = first == [(kind, (size,)) for kind in kinds]
    fits = fits and all(0 <= x.min() <= x.max() < 2**31 for x in arrays[1:3])
    if not fits or [len(x) for x in columns] != [size] * len(entries["columns"]):
        raise ValueError("its arrays are not those of its curves")
    return Saved(key, arrays, entries, curves)
