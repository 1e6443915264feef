"""Where in a pipeline a path leads, and the pipeline with another thing there."""

from collections.abc import Sequence
from typing import TypeVar, cast

import jax.tree_util as jtu

from .._errors import value_error
from .._tree import join_path, path_name
from .._types import PyTree
from .listed import Listed
from .parent import Parent
from .pattern import nearest_paths

_Root = TypeVar("_Root", bound=Parent)


def put(root: _Root, path: str, new: PyTree) -> _Root:
    """The pipeline with something else at a path."""
    return cast(_Root, _put(root, root, "", path, new))


def holder_of(root: Listed, path: str) -> tuple[Listed, str, str]:
    """The combinator that holds the stage at a path, its own path, and the segment."""
    node, place = root, ""
    while True:
        segment, rest = _first(root, node, place, path)
        if not rest:
            return node, place, segment
        inner, place = node.held_child(segment), join_path(place, segment)
        if not isinstance(inner, Listed):
            raise value_error(
                type(root).__name__.lower(),
                f"`{place}` is a `{type(inner).__name__}`, no pipeline.",
                "Stages are inserted, removed and renamed in combinators of several.",
            )
        node, path = inner, rest


def put_back(root: _Root, place: str, holder: Listed) -> _Root:
    """The pipeline with a combinator that was edited where it stood."""
    return put(root, place, holder) if place else cast(_Root, holder)


def _first(root: Parent, node: Parent, place: str, path: str) -> tuple[str, str]:
    """The first segment of a path and the rest; names of gates contain a dot."""
    known = node.segments()
    # The longest first: `gates.a` must not be read as something in a stage named
    # `gates`.
    for segment in sorted(known, key=len, reverse=True):
        if path == segment or path.startswith(f"{segment}."):
            return segment, path[len(segment) + 1 :]
    raise _unknown(root, place, path, known)


def _unknown(root: Parent, place: str, path: str, known: Sequence[str]) -> ValueError:
    where = f" in `{place}`" if place else ""
    paths = [join_path(place, name) for name in known]
    return value_error(
        type(root).__name__.lower(),
        f"there is no `{path}`{where}.",
        nearest_paths(join_path(place, path), paths),
    )


def _put(root: Parent, node: PyTree, place: str, path: str, new: PyTree) -> PyTree:
    """`node`, which stands at `place`, with something else at a path below it."""
    if isinstance(node, Parent):
        segment, rest = _first(root, node, place, path)
        if rest:
            old = node.held_child(segment)
            new = _put(root, old, join_path(place, segment), rest, new)
        elif isinstance(node, Listed):
            new = node.admit(segment, new)
        return node.with_child(segment, new)
    parts, structure = jtu.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
    names = [path_name(key) for key, _ in parts if key]
    segment, _, rest = path.partition(".")
    if segment not in names:
        raise _unknown(root, place, path, names)
    values = [value for _, value in parts]
    at = names.index(segment)
    if rest:
        new = _put(root, values[at], join_path(place, segment), rest, new)
    values[at] = new
    return structure.unflatten(values)
