"""How the outputs of several stages become one.

A built-in merge acts leaf by leaf. Reductions are accumulated pairwise (`a + b + c`):
stacking first would hold all outputs at once.
"""

import contextlib
import dataclasses
import functools as ft
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeAlias, get_args

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array

from .._errors import bullets, structure_error, type_error, value_error
from .._tree import (
    as_arrays,
    differences,
    is_key_array,
    leaf_text,
    leaves_with_names,
    of_leaf,
)
from .._types import PyTree


@dataclasses.dataclass(frozen=True)
class Reduction:
    """A merge that folds two leaves into one, with what an absent leaf counts as."""

    pair: Callable[[Array, Array], Array]
    over: Callable[..., Array]
    neutral: Callable[[np.dtype], Any]
    average: bool = False

    def prepare(self, leaf: Array) -> Array:
        """`leaf` in the dtype of the result: that of `over` (`jnp.sum`, ...)."""
        one = jax.ShapeDtypeStruct((1,), leaf.dtype)
        return leaf.astype(jax.eval_shape(self.over, one).dtype)

    def absent(self, leaf: Any) -> Array:
        """What stands for a prepared leaf that is not there, given its shape."""
        return jnp.full(leaf.shape, self.neutral(leaf.dtype), leaf.dtype)

    def finish(self, total: Array, count: Any) -> Array:
        """The result, from the fold over `count` prepared leaves."""
        return total / count if self.average else total


def _extreme(sign: int) -> Callable[[np.dtype], Any]:
    def bound(dtype):
        if jnp.issubdtype(dtype, jnp.inexact):
            return sign * np.inf
        if dtype == jnp.bool_:
            return sign > 0
        info = jnp.iinfo(dtype)
        return info.max if sign > 0 else info.min

    return bound


REDUCTIONS = {
    "sum": Reduction(jnp.add, jnp.sum, lambda dtype: 0),
    "mean": Reduction(jnp.add, jnp.mean, lambda dtype: 0, average=True),
    "max": Reduction(jnp.maximum, jnp.max, _extreme(-1)),
    "min": Reduction(jnp.minimum, jnp.min, _extreme(1)),
    "prod": Reduction(jnp.multiply, jnp.prod, lambda dtype: 1),
}
"""From the name of a merge to its reduction."""

Merge: TypeAlias = Literal[
    "concat", "stack", "sum", "mean", "max", "min", "prod", "tuple", "dict"
]
"""The names of the built-in merges."""

MERGES = get_args(Merge)


def merge_outputs(
    function: str,
    merge: str,
    axis: int,
    names: Sequence[str],
    paths: Sequence[str],
    outputs: Sequence[PyTree],
) -> PyTree:
    """Applies a built-in merge to one or more outputs.

    `names` become the keys under `"dict"`; `paths` say in errors whose outputs differ.
    """
    if merge == "tuple":
        return tuple(outputs)
    if merge == "dict":
        return dict(zip(names, outputs, strict=True))
    trees = [as_arrays(output) for output in outputs]
    check_mergeable(function, merge, axis, paths, trees)
    if merge == "concat":
        return jtu.tree_map(lambda *leaves: jnp.concatenate(leaves, axis), *trees)
    if merge == "stack":
        return jtu.tree_map(lambda *leaves: jnp.stack(leaves, axis), *trees)
    reduction = REDUCTIONS[merge]

    def fold(*leaves):
        total = ft.reduce(reduction.pair, map(reduction.prepare, leaves))
        return reduction.finish(total, len(leaves))

    return jtu.tree_map(fold, *trees)


@contextlib.contextmanager
def on_one_device_set(function: str) -> Iterator[None]:
    """Says in words that outputs which are to become one live on different devices."""
    try:
        yield
    except ValueError as error:
        if "incompatible devices" not in str(error):
            raise
        raise value_error(
            function,
            "the outputs of its stages live on different devices.",
            "End each of them on the same submesh, by `eqx_pipe.chain(stage, "
            "eqx_pipe.on(mesh, eqx_pipe.identity))`, or merge there: "
            '`merge=eqx_pipe.on(mesh, ...)` or `merge="tuple"`.',
        ) from error


def check_mergeable(
    function: str, merge: str, axis: int, paths: Sequence[str], trees: Sequence[PyTree]
) -> None:
    """Raises unless the merge can act on these outputs; all misfits in one error."""
    for path, tree in zip(paths, trees, strict=True):
        _check_leaves(function, merge, axis, path, tree)
    check_agree(
        function,
        paths,
        trees,
        axis if merge == "concat" else None,
        ', or keep them apart with `merge="tuple"`.',
    )


def _check_leaves(
    function: str, merge: str, axis: int, path: str, tree: PyTree
) -> None:
    """Raises unless the merge can act on each leaf by itself."""
    for name, leaf in leaves_with_names(tree):
        which = f"{of_leaf(name)}the output of `{path}`"
        wrong = not isinstance(leaf, jax.Array)  # `is_array` takes text of NumPy too
        if wrong or (merge in REDUCTIONS and is_key_array(leaf)):
            raise type_error(
                function,
                f'{which} is {leaf_text(leaf)}, on which `merge="{merge}"` cannot act.',
                "Keep it out of the stages: apply them to the other parts by "
                '`eqx_pipe.at`, or use `merge="tuple"` or a callable.',
            )
        num_axes = leaf.ndim + (merge == "stack")
        if merge in ("concat", "stack") and not -num_axes <= axis < num_axes:
            if num_axes:
                allowed = f"Give `axis` from {-num_axes} to {num_axes - 1}."
            else:
                allowed = 'Scalars cannot be joined: use `merge="stack"`.'
            raise value_error(
                function,
                f"`axis` is {axis}, and {which} is {leaf_text(leaf)}, too small "
                f'for `merge="{merge}"` along it.',
                allowed,
            )


def check_agree(
    function: str,
    paths: Sequence[str],
    trees: Sequence[PyTree],
    free_axis: int | None = None,
    cure: str = ".",
) -> None:
    """Raises a `StructureError` unless all agree in structure, shapes and dtypes.

    Sizes along `free_axis` may differ. `cure` is a second way out, for the message.
    """
    lines = [
        f"`{paths[0]}` and `{path}`: {line}"
        for path, tree in zip(paths[1:], trees[1:], strict=True)
        for line in differences(trees[0], tree, free_axis)
    ]
    if lines:
        raise structure_error(
            function,
            f"outputs that are to become one disagree:{bullets(lines)}",
            "Make the stages' outputs agree by a stage after one of them" + cure,
        )
