"""Parts, stages and leaves of a pipeline by path, patterns of paths, and `replace`.

The path in an error is in `error_path.py`.
"""

import functools as ft
import itertools as it
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

import equinox as eqx
import jax.tree_util as jtu
import numpy as np

from .._errors import describe_value, nearest, type_error, value_error
from .._tree import join_path, path_name
from .._types import AnyStage, PyTree, PyTreeDef
from .stage import is_composite


class Part(NamedTuple):
    """A child of a stage, or a leaf of the stage itself."""

    segment: str | None
    name: str  # for a leaf, the name of its field
    value: PyTree


def parts_of(composite: AnyStage) -> tuple[list[Part], PyTreeDef]:
    """Split a stage into its children and its own leaves."""
    # By identity: comparing two Modules compares their arrays.
    segments: dict[int, list[str]] = {}
    for segment, child in composite.held().items():
        segments.setdefault(id(child), []).append(segment)

    def is_child(node: object) -> bool:
        return node is not composite and id(node) in segments

    flat, structure = jtu.tree_flatten_with_path(composite, is_leaf=is_child)
    # The same object may be in several places; it appears once for each of them.
    parts = [
        Part(segments[id(value)].pop(0), "", value)
        if is_child(value)
        else Part(None, path_name(path), value)
        for path, value in flat
    ]
    return parts, structure


def stage_paths(stage: PyTree) -> list[str]:
    """Return the paths of all stages inside, parents first, with each stacked stage."""
    paths = []

    def walk(node: PyTree, path: str) -> None:
        if not is_composite(node):
            return
        for segment, child in node.children().items():
            stacked = node.size is not None
            for name in map(str, range(node.size)) if stacked else [segment]:
                paths.append(join_path(path, name))
                walk(child, paths[-1])

    walk(stage, "")
    return paths


class NamedLeaf(NamedTuple):
    """A leaf of a stage, and its path.

    A leaf of stacked stages has one path per stage: `paths` has the shape of the leaf's
    leading axes.
    """

    paths: np.ndarray
    value: PyTree
    is_state: bool

    @property
    def name(self) -> str:
        """The path, with `*` for the positions of stacked stages."""
        parts = zip(*(path.split(".") for path in self.paths.flat), strict=True)
        return ".".join(p[0] if len(set(p)) == 1 else "*" for p in parts)


def named_leaves(stage: PyTree, path: str = "") -> list[NamedLeaf]:
    """Return all leaves of a stage in JAX's order, with their paths.

    A path leads through the stages, by their names and positions, and then through the
    fields of a layer: `blocks.3.attn.query_proj.weight`.
    """
    return list(_walk(stage, np.array(path, object), False))


def _walk(node: PyTree, paths: np.ndarray, is_state: bool) -> Iterator[NamedLeaf]:
    if is_composite(node):
        for part in parts_of(node)[0]:
            yield from _walk(part.value, paths_below(paths, node, part), is_state)
        return

    def ends(inner: object) -> bool:
        here = inner is node
        return not here and (is_composite(inner) or isinstance(inner, _Marker))

    for path, value in jtu.tree_flatten_with_path(node, is_leaf=ends)[0]:
        below = each_path(paths, path_name(path)) if path else paths
        if ends(value):
            yield from _walk(value, below, is_state or isinstance(value, _Marker))
        else:
            yield NamedLeaf(below, value, is_state)


_Marker = eqx.nn.StateIndex


def paths_below(paths: np.ndarray, composite: AnyStage, part: Part) -> np.ndarray:
    """Return the paths of a part, one for each of several stacked stages."""
    if part.segment is None:
        return each_path(paths, part.name)
    if composite.size is None:
        return each_path(paths, part.segment)
    return each_path(paths[..., None], np.arange(composite.size))


def each_path(paths: np.ndarray, segments: object) -> np.ndarray:
    """Join paths and segments, with NumPy broadcasting."""
    return np.asarray(np.frompyfunc(join_path, 2, 1)(paths, segments), object)


def put(root: PyTree, node: PyTree, parent: str, path: str, new: PyTree) -> PyTree:
    """Return `node`, at the path `parent`, with the stage at a path below replaced."""
    segment, rest = _first(root, node, parent, path)
    if rest is not None:
        new = put(root, node.child(segment), join_path(parent, segment), rest, new)
    return node.with_child(segment, new)


def stage_at(root: PyTree, path: str) -> PyTree:
    """Return the stage at a path; raise a `ValueError` if there is none."""
    node, parent, rest = root, "", path
    while rest is not None:
        segment, rest = _first(root, node, parent, rest)
        node, parent = node.child(segment), join_path(parent, segment)
    return node


def _first(
    root: PyTree, node: PyTree, parent: str, path: str
) -> tuple[str, str | None]:
    """Return the child of `node` to which a path leads, and the path below it."""
    segments = node.segments() if is_composite(node) else ()
    # The longest first: `gates.a` must not be read as a child of a stage `gates`.
    for segment in sorted(segments, key=len, reverse=True):
        if path == segment:
            return segment, None
        if path.startswith(f"{segment}."):
            return segment, path[len(segment) + 1 :]
    where = f" in `{parent}`" if parent else ""
    cure = "To replace a part of a layer, an attribute, use `equinox.tree_at`."
    if segments:
        paths = [join_path(parent, name) for name in segments]
        cure = nearest(join_path(parent, path), paths)
    wrong = f"there is no stage `{path}`{where}."
    raise value_error(type(root).__name__.lower(), wrong, cure)


def chosen_whole(
    function: str, paths: np.ndarray, chosen: Callable[[str], bool], cure: str = ""
) -> bool:
    """Return whether a part is chosen by its paths; raise if only some of them are.

    Each of several stacked stages has a path; they must be chosen together.
    """
    by_choice = {chosen(path): path for path in paths.flat}
    if len(by_choice) < 2:
        return True in by_choice
    # Not strict: one path may be longer than the other.
    matched, other = by_choice[True], by_choice[False]
    both = zip(matched.split("."), other.split("."), strict=False)
    shared = ".".join(a for a, _ in it.takewhile(lambda two: two[0] == two[1], both))
    whole = f"all stages of `{shared}`" if shared else "all of its stages"
    wrong = f"the patterns match `{matched}` but not `{other}`, which are stacked in "
    wrong += "one array."
    how = f"Choose {whole} or none, with `*` in the place of a position: "
    raise value_error(function, wrong, f"{how}`blocks.*.norm`.{cure}")


def check_patterns(function: str, argument: str, patterns: Iterable[object]) -> None:
    """Raise a `TypeError` unless each is a non-empty string."""
    for pattern in patterns:
        if not isinstance(pattern, str) or not pattern.removeprefix("!"):
            wrong = f"`{argument}` holds {describe_value(pattern)}."
            cure = 'Give patterns of paths, as strings: `"head"`, `"blocks.*.attn"`.'
            raise type_error(function, wrong, cure)


def matches(pattern: str, path: str, *, below: bool = False) -> bool:
    """Return whether a pattern matches a path of names and positions joined by dots.

    Each part is matched like a file name in a shell: `*` and `?` match characters of
    one part, `[abc]` one of these characters, and `**` any number of parts, including
    none. With `below` a pattern also matches all paths below its matches.
    """
    return _matches(tuple(pattern.split(".")), tuple(path.split(".")), below)


# With several `**` the same rest of a path is matched repeatedly.
@ft.lru_cache(4096)
def _matches(pattern: tuple[str, ...], path: tuple[str, ...], below: bool) -> bool:
    if not pattern:
        return below or not path
    if pattern[0] == "**":
        ends = range(len(path) + 1)
        return any(_matches(pattern[1:], path[end:], below) for end in ends)
    if not path or not fnmatchcase(path[0], pattern[0]):
        return False
    return _matches(pattern[1:], path[1:], below)


def chooser(patterns: Iterable[str], *, below: bool = False) -> Callable[[str], bool]:
    """Return a function that tests whether a path is chosen; the last match decides.

    A pattern that begins with `!` excludes its matches; if the first pattern does, all
    paths are chosen that no pattern excludes.
    """
    read = [(p.removeprefix("!"), not p.startswith("!")) for p in patterns]

    def chosen(path: str) -> bool:
        is_chosen = bool(read) and not read[0][1]
        for pattern, keep in read:
            if matches(pattern, path, below=below):
                is_chosen = keep
        return is_chosen

    return chosen


def check_matched(
    function: str,
    patterns: Iterable[str],
    paths: Iterable[str],
    what: str = "stage",
    *,
    below: bool = False,
) -> None:
    """Raise a `ValueError` if a pattern matches none of the paths.

    `what` is the noun for a path's target in the message.
    """
    paths = list(dict.fromkeys(paths))
    named = _with_parents(paths) if below else paths
    for pattern in patterns:
        bare = pattern.removeprefix("!")
        if not any(matches(bare, path, below=below) for path in paths):
            wrong = f"`{pattern}` matches no {what}."
            raise value_error(function, wrong, nearest(bare, named))


def _with_parents(paths: Iterable[str]) -> list[str]:
    """Return the paths and those of their parents, the shortest first."""
    parts = [path.split(".") for path in paths]
    prefixes = (".".join(p[:end]) for p in parts for end in range(1, len(p) + 1))
    return sorted(dict.fromkeys(prefixes), key=lambda path: path.count("."))
