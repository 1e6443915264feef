"""Stages made of stages: how one is found by its path, and another put in its place."""

import abc
import itertools as it
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax.tree_util as jtu
import numpy as np

from .._tree import join_path, path_name
from .._types import AnyStage, PyTree, PyTreeDef
from .base import Stage

_Self = TypeVar("_Self", bound="Parent")


class Parent(Stage):
    """A stage made of other stages, each with a name or position in paths."""

    @abc.abstractmethod
    def children(self) -> Mapping[str, AnyStage]:
        """The children by their path below this stage, in order."""

    def held_children(self) -> Mapping[str, AnyStage]:
        """The children as they stand in the fields of this stage."""
        return self.children()

    def multiplicity(self) -> int | None:
        """How many stages the only child stands for, if these are stacked into it."""
        return None

    def child(self, segment: str) -> AnyStage:
        """The stage at a segment that there is, as paths call it."""
        return self.children()[segment]

    def reads(self) -> frozenset[str]:
        """The names that it is known to look up in a mapping that it is given."""
        return frozenset()

    def held_child(self, segment: str) -> AnyStage:
        """The child as it stands in the fields of this stage, to be edited there."""
        return self.child(segment)

    def segments(self) -> tuple[str, ...]:
        """What paths call the stages right below."""
        return tuple(self.children())

    def with_child(self: _Self, segment: str, stage: AnyStage) -> _Self:
        """This stage with another in the place of one."""
        parts, structure = parts_of(self)
        return structure.unflatten(
            [stage if part.segment == segment else part.value for part in parts]
        )


def reads_of(*stages: object) -> frozenset[str]:
    """The names that any of some stages is known to look up."""
    return frozenset().union(*(s.reads() for s in stages if isinstance(s, Parent)))


class Part(NamedTuple):
    """A child of a stage, or a leaf that the stage holds itself."""

    segment: str | None
    name: str  # of a leaf: that of its field
    value: PyTree


def parts_of(parent: Parent) -> tuple[list[Part], PyTreeDef]:
    """A stage taken apart, down to its children and the leaves of its own."""
    # By identity: to compare two Modules compares their arrays.
    segments: dict[int, list[str]] = {}
    for segment, child in parent.held_children().items():
        segments.setdefault(id(child), []).append(segment)

    def is_child(node: object) -> bool:
        return node is not parent and id(node) in segments

    flat, structure = jtu.tree_flatten_with_path(parent, is_leaf=is_child)
    # The same object may stand at several places: it is met once for each of them.
    parts = [
        Part(segments[id(value)].pop(0), "", value)
        if is_child(value)
        else Part(None, path_name(path), value)
        for path, value in flat
    ]
    return parts, structure


class NamedLeaf(NamedTuple):
    """A leaf of a stage, and its path.

    A leaf of stacked stages has a path for each of them: the shape of `paths` is that
    of the leading axes of the leaf.
    """

    paths: np.ndarray
    value: PyTree
    is_state: bool


def named_leaves(stage: PyTree, path: str = "") -> list[NamedLeaf]:
    """All leaves of a stage in JAX's order, with their paths.

    A path leads through the stages, by their names and positions, and then through the
    fields of a layer: `blocks.3.attn.query_proj.weight`.
    """
    return list(_walk(stage, np.array(path, object), False))


def _walk(node: PyTree, paths: np.ndarray, is_state: bool) -> Iterator[NamedLeaf]:
    if isinstance(node, Parent):
        for part in parts_of(node)[0]:
            size = None if part.segment is None else node.multiplicity()
            if size is not None:
                below = each_path(paths[..., None], np.arange(size))
            else:
                below = each_path(
                    paths, part.name if part.segment is None else part.segment
                )
            yield from _walk(part.value, below, is_state)
        return

    def ends(inner: object) -> bool:
        return inner is not node and isinstance(inner, Parent | eqx.nn.StateIndex)

    for path, value in jtu.tree_flatten_with_path(node, is_leaf=ends)[0]:
        below = each_path(paths, path_name(path)) if path else paths
        if ends(value):
            inside = is_state or isinstance(value, eqx.nn.StateIndex)
            yield from _walk(value, below, inside)
        else:
            yield NamedLeaf(below, value, is_state)


def each_path(paths: np.ndarray, segments: Any) -> np.ndarray:
    """The paths below, by NumPy's rules of shapes."""
    return np.asarray(np.frompyfunc(join_path, 2, 1)(paths, segments), object)


def stage_paths(stage: PyTree) -> list[str]:
    """The paths of all stages below, each of stacked ones too; parents come first."""
    found = []

    def walk(node: PyTree, path: str) -> None:
        if not isinstance(node, Parent):
            return
        size = node.multiplicity()
        for segment, child in node.children().items():
            for name in [segment] if size is None else map(str, range(size)):
                found.append(join_path(path, name))
                walk(child, found[-1])

    walk(stage, "")
    return found


def all_or_none(one: str, other: str) -> str:
    """Of which stacked stages one cannot be meant without the others, for a message.

    The paths lead to two of them.
    """
    # Not strict: one path may be longer than the other.
    both = zip(one.split("."), other.split("."), strict=False)
    shared = ".".join(a for a, _ in it.takewhile(lambda two: two[0] == two[1], both))
    return f"all stages of `{shared}`" if shared else "all of its stages"
