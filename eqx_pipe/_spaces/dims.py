"""The names of the axes of a space, and the dims that they form."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax.tree_util as jtu

from .._errors import describe_value, type_error, value_error
from .._tree import path_name
from .._types import PyTree
from .axis import MAX_LENGTH, Axis, is_axis

POINT = "point"
"""The dim of a zipped space, and of a part of any space."""


def written_names(tree: PyTree) -> tuple[str, ...]:
    """Return the paths of the axes in a pytree, in the order written.

    JAX sorts the keys of dicts, also in the outputs of transformations, so the order
    is recorded when a space is built. Raises a `TypeError` if the keys of a dict
    cannot be sorted.
    """
    return tuple(map(axis_name, _written(tree, ())))


def as_written(tree: PyTree, like: PyTree) -> PyTree:
    """Return a pytree with the keys of its dicts in the order of those in another.

    Both have the same structure above the axes of `like`.
    """
    if tree is like or is_axis(like):
        return tree
    (children, structure), (others, _) = (
        jtu.tree_flatten(node, is_leaf=lambda x, node=node: x is not node)
        for node in (tree, like)
    )
    if jtu.treedef_is_leaf(structure):
        return tree
    pairs = zip(children, others, strict=True)
    made = jtu.tree_unflatten(structure, [as_written(*pair) for pair in pairs])
    return {key: made[key] for key in like} if type(like) is dict else made


def axis_name(path: tuple[Any, ...]) -> str:
    """Return the path of an axis joined by dots, `x` if it is the whole space."""
    return path_name(path) or "x"


def no_axis(function: str, argument: str, tree: PyTree) -> ValueError:
    """Return the error for a `tree` without an axis, passed as `argument`."""
    cures = [
        "Put a `Linspace`, `Geomspace` or `Values` in the place of a leaf: `ep.Values` "
        "makes an axis of a list, `ep.Space.from_table` a space of a table.",
        *filter(None, map(unregistered, jtu.tree_leaves(tree))),
    ]
    wrong = f"`{argument}` is {describe_value(tree)}, which has no axis."
    return value_error(function, wrong, " ".join(cures[:2]))


def unregistered(x: Any) -> str:
    """Return the fix for an object that is not a pytree, and `""` for other leaves."""
    is_leaf = isinstance(x, type) or callable(x) or hasattr(x, "__array__")
    if is_leaf or not getattr(x, "__dict__", None):
        return ""
    name = type(x).__name__
    return (
        f"JAX does not look into `{name}`: make it an `equinox.Module`, or a dataclass "
        f"that is registered by `jax.tree_util.register_dataclass({name})`."
    )


def _written(node: PyTree, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of the axes at `node` and below, in the order written."""
    if is_axis(node):
        yield path
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
            f"the dict at `{path_name(path) or '.'}` has keys such as {keys}.",
            "JAX sorts the keys of a dict: give keys of one type that can be "
            "sorted, such as strings.",
        ) from error
    if isinstance(node, dict) and all(
        len(p) == 1 and isinstance(p[0], jtu.DictKey) for p, _ in children
    ):
        written = {key: i for i, key in enumerate(node)}
        children = sorted(children, key=lambda child: written[child[0][0].key])
    for step, child in children:
        if step:  # a leaf flattens to itself, with an empty path
            yield from _written(child, (*path, *step))


def arranged(
    axes: Mapping[str, Axis], mode: str
) -> tuple[dict[str, int], tuple[int, ...]]:
    """Return the length of each dim in order, and the index of each axis's dim."""
    members: dict[str, list[str]] = {}
    for name, axis in axes.items():
        if not 1 <= len(axis) <= MAX_LENGTH:
            raise value_error(
                "Space",
                f"the axis `{name}` has {len(axis)} values.",
                "Give it at least one and at most 2**31 - 1.",
            )
        if POINT in (name, axis.dim):
            raise value_error(
                "Space",
                f"the axis `{name}` has the path or the dim `point`, which is reserved "
                "for zipped and sliced spaces.",
                "Rename it.",
            )
        dim = POINT if mode == "zip" else name if axis.dim is None else axis.dim
        other = axes.get(dim)
        if other is not None and dim != name and other.dim != dim:
            raise value_error(
                "Space",
                f"the dim `{dim}` of the axis `{name}` is also the path of another "
                "axis, which does not share it.",
                f"Give the axis `{dim}` `dim={dim!r}` too if they are to vary "
                "together, or rename the dim.",
            )
        members.setdefault(dim, []).append(name)
    for dim, names in members.items():
        if len({len(axes[name]) for name in names}) > 1:
            listed = ", ".join(f"`{name}` has {len(axes[name])}" for name in names)
            raise value_error(
                "Space",
                f"axes of the dim `{dim}` vary together and differ in length: "
                f"{listed}.",
                "Give them the same length, or another `dim` to one of them.",
            )
    position = {name: k for k, names in enumerate(members.values()) for name in names}
    dims = {dim: len(axes[names[0]]) for dim, names in members.items()}
    return dims, tuple(position[name] for name in axes)
