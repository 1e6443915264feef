"""How the outputs of several stages become one.

A built-in merge acts leaf by leaf. Reductions are accumulated pairwise (`a + b + c`):
stacking first would hold all outputs at once.
"""

import contextlib
import dataclasses
import functools as ft
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    SupportsIndex,
    TypeAlias,
    cast,
    get_args,
)

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array

from .._check import check_callable, is_integer
from .._errors import (
    bullets,
    describe_value,
    nearest,
    structure_error,
    type_error,
    value_error,
)
from .._stage import Scope, as_stage, enter
from .._stage.signature import why_not
from .._tree import (
    as_arrays,
    differences,
    is_key_array,
    join_path,
    leaf_text,
    leaves_with_names,
    of_leaf,
)
from .._types import AnyStage, MaybeState, Output, PyTree, StageLike
from .container import Container, Names, check_reserved


@dataclasses.dataclass(frozen=True)
class Reduction:
    """A merge that folds two leaves into one, with what an absent leaf counts as."""

    pair: Callable[[Array, Array], Array]
    over: Callable[..., Array]
    neutral: Callable[[np.dtype], Any]
    average: bool = False

    def prepare(self, leaf: Array) -> Array:
        """`leaf` in the dtype of the result: that of `over` (`jnp.sum`, ...)."""
        # JAX is asked, which has rules of its own: its sum of int8 is int32.
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


class Merging(Container):
    """The base of `Parallel` and `Gated`, which join the outputs of their stages.

    `merge` is the stage, where a callable was given, else `None` and `builtin` says
    which of ours.
    """

    if TYPE_CHECKING:  # fields of both, which they declare in an order of their own
        merge: ClassVar[AnyStage | None]
        builtin: ClassVar[str | None]
        axis: ClassVar[int]

    def children(self) -> Mapping[str, AnyStage]:
        merge = {} if self.merge is None else {"merge": self.merge}
        return {**super().children(), **self.gate_children(), **merge}

    def gate_children(self) -> Mapping[str, AnyStage]:
        """The gates, where there are any."""
        return {}

    def settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {"merge": self.builtin} if self.builtin else {}
        along = self.builtin in ("concat", "stack")
        return {**settings, "axis": self.axis} if along else settings

    def given_merge(self) -> "Merge | AnyStage":
        """The merge as it was given to the constructor."""
        return cast(Merge, self.builtin) if self.merge is None else self.merge

    def paths(self, scope: Scope) -> list[str]:
        """The paths of the stages, counted from the root."""
        return [join_path(scope.path, segment) for segment in self.keys()]

    def merged(
        self, outputs: Sequence[PyTree], state: MaybeState, scope: Scope
    ) -> Output:
        """One output from those of the stages."""
        if self.merge is not None:
            return enter(scope, "merge", self.merge, tuple(outputs), state=state)
        merge = cast(str, self.builtin)
        if merge == "tuple":
            return tuple(outputs), state
        if merge == "dict":
            return dict(zip(map(str, self.keys()), outputs, strict=True)), state
        with on_one_device_set(self._function):
            trees = [as_arrays(output) for output in outputs]
            check_mergeable(self._function, merge, self.axis, self.paths(scope), trees)
            return jtu.tree_map(ft.partial(_merged, merge, self.axis), *trees), state


def _merged(merge: str, axis: int, *leaves: Array) -> Array:
    """What a built-in merge makes of one leaf of each output."""
    if merge == "concat":
        return jnp.concatenate(leaves, axis)
    if merge == "stack":
        return jnp.stack(leaves, axis)
    reduction = REDUCTIONS[merge]
    total = ft.reduce(reduction.pair, map(reduction.prepare, leaves))
    return reduction.finish(total, len(leaves))


def read_merge(
    function: str,
    merge: Merge | StageLike,
    axis: SupportsIndex,
    names: Names,
    reserved: Sequence[str] = (),
) -> tuple[AnyStage | None, str | None, int]:
    """The fields `merge`, `builtin` and `axis`; raises unless they fit the names.

    `reserved` are names that no stage may have, besides that of a callable merge.
    """
    if not is_integer(axis):
        raise type_error(
            function,
            f"`axis` is {describe_value(axis)}.",
            "Give one integer; a negative one counts from the end.",
        )
    stage, builtin = None, None
    if isinstance(merge, str):
        builtin = merge
        if merge not in MERGES:
            raise value_error(
                function,
                f"`merge` is {describe_value(merge)}.",
                f"{nearest(merge, MERGES)} Or give a callable on the tuple of outputs.",
            )
        if merge == "dict" and names is None:
            raise value_error(
                function,
                '`merge="dict"`, and the stages have no names.',
                'Give them in a mapping from names to stages, or use `merge="tuple"`.',
            )
    else:
        check_callable(function, "merge", merge)
        wrong = why_not(merge, 1)
        if wrong:
            raise type_error(
                function,
                f"`merge` cannot be called with one argument: {wrong}.",
                "It gets one tuple with the outputs of all stages: `lambda outputs: "
                "outputs[0] + outputs[1]`.",
            )
        stage = as_stage(function, "merge", merge)
        reserved = (*reserved, "merge")
    check_reserved(function, names, reserved)
    return stage, builtin, axis.__index__()


@contextlib.contextmanager
def on_one_device_set(function: str) -> Iterator[None]:
    """Says in words that outputs which are to become one live on different devices."""
    try:
        yield
    except ValueError as error:
        # JAX has no class of its own for this error.
        if "incompatible devices" not in str(error):
            raise
        raise value_error(
            function,
            "the outputs of its stages live on different devices.",
            "End each of them on the same submesh, by `eqx_pipe.chain(stage, "
            "eqx_pipe.sharding.on(mesh, equinox.nn.Identity()))`, or merge there: "
            '`merge=eqx_pipe.sharding.on(mesh, ...)` or `merge="tuple"`.',
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


def check_arrays(
    function: str, path: str, tree: PyTree, what: str, cure: str, keys: bool = False
) -> None:
    """Raises unless an output is of arrays, of `keys` only where they will do."""
    for name, leaf in leaves_with_names(tree):
        # Not `is_array`, which takes text of NumPy too.
        if not isinstance(leaf, jax.Array) or (is_key_array(leaf) and not keys):
            which = f"{of_leaf(name)}the output of `{path}`"
            raise type_error(function, f"{which} is {leaf_text(leaf)}, {what}.", cure)


def _check_leaves(
    function: str, merge: str, axis: int, path: str, tree: PyTree
) -> None:
    """Raises unless the merge can act on each leaf by itself."""
    check_arrays(
        function,
        path,
        tree,
        f'on which `merge="{merge}"` cannot act',
        "Keep it out of the stages: apply them to the other parts by `eqx_pipe.at`, or "
        'use `merge="tuple"` or a callable.',
        keys=merge not in REDUCTIONS,
    )
    if merge not in ("concat", "stack"):
        return
    for name, leaf in leaves_with_names(tree):
        num_axes = leaf.ndim + (merge == "stack")
        if not -num_axes <= axis < num_axes:
            if num_axes:
                allowed = f"Give `axis` from {-num_axes} to {num_axes - 1}."
            else:
                allowed = 'Scalars cannot be joined: use `merge="stack"`.'
            raise value_error(
                function,
                f"`axis` is {axis}, and {of_leaf(name)}the output of `{path}` is "
                f'{leaf_text(leaf)}, too small for `merge="{merge}"` along it.',
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
