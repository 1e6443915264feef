"""The commit of a chunk: what is checked, what is written, and what makes it durable.

A chunk is durable once its status file is, which is put after the values (rules 3 to 8
of `fill.py`). So each of these steps may be the last one of a process that is killed.
"""

import functools as ft
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int8, Int64

from .disk import Undecodable
from .format import compress, pack, raw_of, unpack
from .partition import FAILED, MISSING, OK, ranges_of
from .store import Damaged, RowErrors, Store, Version, common, resized


def commit_chunk(
    store: Store,
    number: int,
    values: Sequence[np.ndarray],
    status: Int8[np.ndarray, " rows"],
    errors: RowErrors | None = None,
    rows: Int64[np.ndarray, " rows"] | None = None,
    is_new: bool = False,
) -> bool:
    """Write a chunk, or some `rows` of it: values, statuses, and errors.

    `errors` have points of the chunk; `rows` that are finished stay as they are.
    If the chunk exists, a status file comes first that adds the new version to the
    present ones, so that a kill, or another process that writes the chunk at this
    moment, loses nothing. In a bucket, returns `False` if another process has changed a
    file since it was read here; a chunk that `is_new` is not read.
    """
    key, errors = store.status_key(number), errors or {}
    before = _Before({}, []) if is_new else _check(store, number, rows is None)
    if before is None:
        return False
    tag = before.tags.get(key)
    if rows is not None:
        try:
            whole = _merged(store, number, before, rows, values, status, errors)
        except Damaged:
            if store.files.tag(key) == tag:
                raise
            return False  # another process has written between the reads
        if whole is None:
            return True
        values, status, errors = whole
    digests = [store.digest(number, k, leaf) for k, leaf in enumerate(values)]
    version = Version(status, digests, errors)
    if before.versions:
        # First promise both contents: values of either are valid from now on.
        tag = _put_status(store, number, [*before.versions, version], tag)
        if tag is None:
            return False
    if not _put_values(store, number, values, before.tags):
        return False
    return _put_status(store, number, [version], tag) is not None


class _Before(NamedTuple):
    """A chunk before a commit: the tags of its files, and its possible versions."""

    tags: Mapping[str, str | None]
    versions: list[Version]


# ---- what is checked -----------------------------------------------------------------


def _check(store: Store, number: int, whole: bool) -> _Before | None:
    """Return a chunk before it is written, as a `whole` or in part.

    Returns `None` if another process has created it meanwhile.
    """
    files = store.files
    # Tags before contents, so that `swap` notices every change.
    keys = [store.status_key(number), *store.value_keys(number)]
    reads = [ft.partial(files.tag, key) for key in keys]
    tags = dict(zip(keys, files.at_once(reads), strict=True))
    if files.conditional and whole and store.is_sound(number):
        return None
    try:
        versions = store.versions_of(number) or []
    except Damaged:
        if not whole:
            raise
        versions = []  # a whole chunk replaces a damaged one
    if files.conditional and not versions:
        # Two processes may create the chunk at once. A status file that is there before
        # the values lets the later one notice, whose swap then fails.
        versions = [Version(np.full(store.chunks.points, MISSING, np.int8), [], {})]
    return _Before(tags, versions)


def _merged(
    store: Store,
    number: int,
    before: _Before,
    rows: Int64[np.ndarray, " rows"],
    values: Sequence[np.ndarray],
    status: Int8[np.ndarray, " rows"],
    errors: RowErrors,
) -> tuple[Sequence[np.ndarray], Int8[np.ndarray, " all"], RowErrors] | None:
    """Return the values, statuses and errors of a chunk with some rows replaced.

    Returns `None` if all of them are finished.
    """
    first, last = store.chunks.span(number)
    now, others = np.full(last - first, MISSING, np.int8), {}
    merged = [variable.empty(last - first) for variable in store.variables]
    if before.versions:
        # Read once: values that are read later may be those of other statuses.
        version, leaves = store.current_of(number, before.versions)
        now = resized(version.status, last - first)
        merged = [leaf[: last - first].copy() for leaf in leaves]
        others = dict(version.errors)
    was = now[rows]
    lacks = (was == MISSING) | ((was == FAILED) & (status != MISSING))
    if not lacks.any():
        return None
    left, rows = rows[~lacks & (status == FAILED)], rows[lacks]
    for text, at in others.items():
        others[text] = at[~np.isin(at // store.each, rows)]
    for into, leaf in zip(merged, values, strict=True):
        into[rows] = leaf[lacks]
    now[rows] = status[lacks]
    for text, at in errors.items():
        earlier = others.get(text, np.zeros(0, np.int64))
        others[text] = np.union1d(earlier, at[~np.isin(at // store.each, left)])
    return merged, now, others


# ---- what is written -----------------------------------------------------------------


def _put_values(
    store: Store,
    number: int,
    values: Sequence[np.ndarray],
    tags: Mapping[str, str | None],
) -> bool:
    """Put values over files with these tags; `False` if another process was faster."""
    puts = []
    for key, k in store.value_keys(number).items():
        whole = store.variables[k].empty(store.chunks.points)
        whole[: len(values[k])] = values[k]
        # Tags may be digests: no content returns, so a late process has an old tag.
        salt = store.files.new_id() if tags.get(key) else ""
        data = compress(raw_of(whole), salt.encode())
        puts.append(ft.partial(store.files.swap, key, data, tags.get(key)))
    return None not in store.files.at_once(puts)


# ---- what makes it durable -----------------------------------------------------------


def _put_status(
    store: Store, number: int, versions: Sequence[Version], tag: str | None
) -> str | None:
    """Swap the status file of a chunk: rows are ok if they are in all versions."""
    manifest = {
        "chunk": store.chunks.position(number),
        "cut": store.record["cut"],
        "function": store.function,
        "versions": [
            {
                "status": (status + ord("0")).tobytes().decode(),
                "digests": digests,
                "errors": {x: ranges_of(at) for x, at in errors.items() if len(at)},
            }
            for status, digests, errors in versions
        ],
    }
    status, _, errors = common(versions, store.chunks.points)
    rows = max(len(version.status) for version in versions)
    is_ok = len(versions) == 1 and not any(map(len, errors.values()))
    is_ok &= bool(np.all(status[:rows] == OK))
    data = pack(manifest, status.tobytes(), is_ok)
    return store.files.swap(store.status_key(number), data, tag)


def mark_odd(store: Store, number: int) -> None:
    """Rewrite the status file of a chunk as that of a chunk with missing rows."""
    key = store.status_key(number)
    try:
        manifest, status = unpack(store.files.get(key), store.chunks.points)
    except (FileNotFoundError, Undecodable):
        return
    store.files.put(key, pack(manifest, status, False))
