"""The axes of a pytree by name, in the order in which they were written."""

from collections.abc import Iterator
from typing import Any

import jax.tree_util as jtu

from .._errors import describe_value, type_error
from .._tree import join_path, path_name
from .._types import PyTree
from .axis import Axis, is_axis

BARE = "x"
"""The name of an axis that is the whole space."""


def axes_by_path(tree: PyTree) -> dict[tuple[Any, ...], Axis]:
    """Every axis by its key path, in JAX's order (a dict's keys sorted).

    Raises a `TypeError` if the keys of a dict cannot be sorted.
    """
    try:
        leaves = jtu.tree_flatten_with_path(tree, is_leaf=is_axis)[0]
    except ValueError:
        _check_keys(tree, "")
        raise
    return {path: leaf for path, leaf in leaves if is_axis(leaf)}


def axis_name(path: tuple[Any, ...]) -> str:
    """An axis's path joined by dots."""
    return path_name(path) or BARE


def written_order(tree: PyTree) -> tuple[int, ...]:
    """For each axis in the order written, its place in JAX's order.

    They differ where there are dicts: JAX sorts the keys of a dict, also in a dict
    that came out of a transformation, so the order is taken when a space is built.
    """
    places = {path: i for i, path in enumerate(axes_by_path(tree))}
    return tuple(places[path] for path in _walk(tree, ()))


def _walk(node: PyTree, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    if is_axis(node):
        yield path
        return
    children = jtu.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)[0]
    if isinstance(node, dict) and all(
        len(p) == 1 and isinstance(p[0], jtu.DictKey) for p, _ in children
    ):
        written = {key: i for i, key in enumerate(node)}
        children = sorted(children, key=lambda child: written[child[0][0].key])
    for step, child in children:
        if step:  # a leaf flattens to itself, with an empty path
            yield from _walk(child, (*path, *step))


def _check_keys(node: PyTree, place: str) -> None:
    """Raises a `TypeError` if JAX cannot sort the keys of a dict at `node` or below."""
    if is_axis(node):
        return
    try:
        children = jtu.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)[0]
    except ValueError as error:
        if not isinstance(node, dict):
            raise
        of_each_type = {type(key): key for key in node}.values()
        keys = " and ".join(map(describe_value, of_each_type))
        raise type_error(
            "Space",
            f"the dict at `{place or '.'}` has keys such as {keys}.",
            "JAX sorts the keys of a dict: give keys of one type that can be "
            "sorted, such as strings.",
        ) from error
    for step, child in children:
        if step:  # a leaf flattens to itself, with an empty path
            _check_keys(child, join_path(place, path_name(step)))
