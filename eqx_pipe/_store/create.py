"""The creation of a store, its change to another layout, and the lock of the whole.

See `fill.py` for the rules.
"""

import contextlib
import errno
import itertools as it
import json
import math
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from .._errors import sweep_error
from .disk import GROWING, PARTS, ROOT, Taken, Undecodable, disk_errors, is_name
from .format import (
    MALFORMED,
    MOST_CHUNKS,
    SIDES,
    StoreLayout,
    files_of,
    foreign,
    read_root,
    sealed,
)
from .objects import Files
from .store import Damaged, Store, open_store, store_of

_WHOLE = "all"
"""The lock for filling a whole store."""

_HIDDEN_SECONDS = 90
"""The time for which a network file system may hide a file that was created."""

_MAY_ARRIVE = {errno.EIO, errno.ETIMEDOUT}
"""The errors of requests that a network file system may still execute."""


def exists(files: Files) -> bool:
    """Return whether there is a store, by reading: a listing may be outdated."""
    try:
        files.get(ROOT, 0)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except Undecodable:  # it is not empty
        pass
    return True


def create_store(
    function: str, files: Files, layout: StoreLayout, write: bool = True
) -> Store:
    """Return the store of a layout, created by this process or by another one.

    Raises a `ValueError` if something else is at its path. Without `write`, it has no
    files.
    """
    made, root, record = files_of(layout, files.new_id()[:12], {})
    check_vacant(function, files, made)
    if not write:
        return store_of(files, root, record)
    with disk_errors(files.path_of(), "be made"):
        files.make()
        if files.exists(GROWING):  # left by `save`
            with locked(files, None):
                settle(files)
        for key, data in made.items():
            files.put_new(key, data)
        if not files.put_new(ROOT, sealed(root, record)):
            for _ in range(_HIDDEN_SECONDS):
                if exists(files):
                    break
                files.wait(1)
        return open_store(function, files)


def check_vacant(function: str, files: Files, made: Collection[str]) -> None:
    """Raise a `ValueError` if there is something in the folder of a new store.

    Hidden files, and those that creation has `made`, do not matter.
    """
    if os.path.isfile(files.path_of()):
        raise foreign(function, files, "is a file")
    growing = files.exists(GROWING)  # then `settle` will remove files of chunks
    for name in files.names():
        new = {key.partition("/")[2] for key in made if key.startswith(f"{name}/")}
        is_ours = bool(new) and (growing or files.names(name) <= new)
        # Another process may have created the store since the caller looked for it.
        if not (is_ours or name.startswith(".") or exists(files)):
            raise foreign(function, files, f"has no `{ROOT}`, but {name!r}")


def restore(store: Store, layout: Callable[[], StoreLayout]) -> None:
    """Write the coordinates of a store again if files of them are missing or differ.

    Two sweeps that are started at the same path at once may both write theirs, before
    one of them has created the store.
    """
    try:
        for name in store.record["coordinates"]:
            store.coordinate(name)
    except Damaged:
        made, root, _ = files_of(layout(), store.record["cut"], store.record["sides"])
        if root["consolidated_metadata"] != store.root["consolidated_metadata"]:
            raise
        for key, data in made.items():
            store.files.put(key, data)
        for name in store.record["coordinates"]:
            store.coordinate(name)


@contextlib.contextmanager
def locked(
    files: Files, shard: tuple[int, int] | None, function: str = "sweep"
) -> Iterator[bool]:
    """Lock the share of this process, or the whole store without shares.

    Yields whether the file system supports locks.
    """
    what = "the store"
    try:
        with contextlib.ExitStack() as stack:
            with disk_errors(files.path_of(), "be locked", function):
                # Processes with a shard share this lock, so that none locks the whole.
                whole = files.lock(_WHOLE, shared=shard is not None)
                has_locks = stack.enter_context(whole)
                if shard is not None:
                    what = f"shard {shard[0]} of {shard[1]} of the store"
                    stack.enter_context(files.lock(f"shard-{shard[0]}-of-{shard[1]}"))
            yield has_locks
    except Taken as taken:
        wrong = f"{what} `{files.path_of()}` is being filled by {taken}."
        cure = "Wait for it or stop it."
        if function == "sweep":
            cure = f"{cure[:-1]}; processes that fill one store together each take "
            cure += "their own `shard=(index, count)`."
        raise sweep_error(function, wrong, cure) from None


def lay_out(
    files: Files,
    layout: StoreLayout,
    fill: Callable[[Store], None],
    old: Store | None = None,
    moved: bool = True,
) -> None:
    """Give a store the layout `layout`, without changing valid files of an `old` store.

    `fill` writes known values into the new store before it becomes valid. If values are
    not `moved`, their files stay. No other process may write meanwhile.
    """
    settle(files)
    # A random id distinguishes the files of this growth from those of a failed one.
    cut, sides, old_sides = files.new_id()[:12], dict[str, int](), dict[str, int]()
    if old is not None:
        old_sides = old.record["sides"]
        stay = [] if moved else [*old.names(), old.record["status"]]
        sides = {k: side if k in stay else 1 - side for k, side in old_sides.items()}
        cut = cut if moved else old.record["cut"]
    made, root, record = files_of(layout, cut, sides)
    # Whoever finds `.growing` after a kill removes the files of the layout that is not
    # in `zarr.json`, be it the new one or the old one.
    listed = [_counts(root), *([] if old is None else [_counts(old.root)])]
    files.put(GROWING, json.dumps(listed).encode())
    try:
        # Requests of processes that were killed may have arrived since.
        _remove_invalid(files, listed, old_sides)
        for key, data in made.items():
            files.put(key, data)
        fill(store_of(files, root, record))
        try:
            if old is not None:
                files.put(ROOT, sealed(root, record))
            elif not files.put_new(ROOT, sealed(root, record)):
                raise Taken("another process, which has created a store meanwhile")
        except OSError as error:
            if error.errno in _MAY_ARRIVE:  # and make the files valid
                files.wait(_HIDDEN_SECONDS)
            raise
    except BaseException:
        with contextlib.suppress(OSError):
            settle(files)
        raise
    if old is None:
        files.remove(GROWING)


def settle(files: Files) -> None:
    """Remove the invalid files of a store; no other process may write meanwhile.

    Only files that this store, or one that it was or was to become, has names for are
    removed. A dataset that was opened before a growth can read its values until then.
    """
    for name in filter(is_part, files.names(PARTS)):
        files.remove(f"{PARTS}/{name}")
    try:
        data = files.get(GROWING)
    except FileNotFoundError:
        return
    except Undecodable:  # not a file of this store
        data = b"[]"
    nodes, listed, sides = dict[str, Any](), _listed(data), dict[str, int]()
    if exists(files):
        root, record = read_root("sweep", files)
        nodes, sides = root["consolidated_metadata"]["metadata"], record["sides"]
        listed.append(_counts(root))
    _remove_invalid(files, listed, sides)
    for name, node in nodes.items():
        # For readers that do not use the consolidated metadata.
        files.put(f"{name}/{ROOT}", json.dumps(node).encode())
    files.remove(GROWING)


_Counts: TypeAlias = Mapping[str, Sequence[int]]
"""The number of files of each array along its axes."""


def _counts(root: Mapping[str, Any]) -> _Counts:
    counts = {}
    for name, node in root["consolidated_metadata"]["metadata"].items():
        chunk = node["chunk_grid"]["configuration"]["chunk_shape"]
        pairs = zip(node["shape"], chunk, strict=True)
        counts[name] = [-(-n // size) for n, size in pairs]
    return counts


def _listed(data: bytes) -> list[_Counts]:
    """Return the arrays that `.growing` lists; none if it is damaged."""
    try:
        listed = json.loads(data)
        names = [name for counts in listed for name in counts]
        each = [n for counts in listed for n in counts.values()]
        whole = all(type(x) is int for n in each for x in n)
        few = max(map(math.prod, each), default=0) <= MOST_CHUNKS
        return listed if whole and few and all(map(is_name, names)) else []
    except MALFORMED:
        return []


def _remove_invalid(
    files: Files, listed: Sequence[_Counts], sides: Mapping[str, int]
) -> None:
    """Remove the files of `listed` arrays, but those of valid ones on their `sides`."""
    for name in sorted({name for counts in listed for name in counts}):
        if files.conditional and not files.names(name):  # a request for each file
            continue
        for counts in listed:
            positions = it.product(*(map(str, range(n)) for n in counts.get(name, [0])))
            for position in map(".".join, positions):
                for side, kind in enumerate(SIDES):
                    if side != sides.get(name):
                        files.remove(f"{name}/{kind['root']}{position}")
        if name not in sides:
            files.remove(f"{name}/{ROOT}")


def is_part(name: str) -> bool:
    """Return whether a file in `.parts` is one that a process was writing."""
    return re.fullmatch("[0-9a-f]{32}", name) is not None
