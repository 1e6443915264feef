"""The paths of leaves, the same as everywhere in pipelines: `head.weight`."""

from typing import Any, NamedTuple

import jax.tree_util as jtu

from .._stage import named_leaves
from .._types import PyTree, PyTreeDef


class PathLeaf(NamedTuple):
    """A leaf with its paths: stages stacked in one array have one each."""

    paths: tuple[str, ...]
    leaf: Any  # of a user's tree: anything

    @property
    def name(self) -> str:
        """The path, with `*` for the positions of stacked stages."""
        parts = zip(*(path.split(".") for path in self.paths), strict=True)
        return ".".join(p[0] if len(set(p)) == 1 else "*" for p in parts)


def path_leaves(tree: PyTree) -> tuple[list[PathLeaf], PyTreeDef]:
    """Return every leaf of `tree` with its paths, and the structure of `tree`."""
    leaves, structure = jtu.tree_flatten(tree)
    named = zip(named_leaves(tree), leaves, strict=True)
    return [PathLeaf(tuple(n.paths.flat), leaf) for n, leaf in named], structure
