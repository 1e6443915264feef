"""Several stages on the same input, each behind a gate of its own."""

import functools as ft
from collections.abc import Mapping, Sequence
from typing import Any, Literal, SupportsIndex, TypeAlias, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool

from .._check import check_choice
from .._conditionals import Like, choose, varying_as
from .._errors import describe_value, type_error, value_error
from .._stage import Items, Own, Scope
from .._tree import as_arrays, join_path
from .._types import AnyStage, MaybeState, Output, PyTree, Segment, StageLike
from .container import Names, named_items, read_stages, reordered
from .decide import branch_of, run_gate
from .merge import (
    REDUCTIONS,
    Merge,
    Merging,
    Reduction,
    check_mergeable,
    read_merge,
)

Gates: TypeAlias = Sequence[StageLike] | Mapping[str, StageLike]
"""Stages `x -> Bool[Array, ""]`, in the order or by the names of those they gate."""


class Gated(Merging):
    """Stages behind gates; see `gated`."""

    stages: tuple[AnyStage, ...]
    gates: tuple[AnyStage, ...]
    names: Names = eqx.field(static=True)
    merge: AnyStage | None
    builtin: str | None = eqx.field(static=True)
    axis: int = eqx.field(static=True)
    closed: str = eqx.field(static=True)

    def gate_children(self) -> Mapping[str, AnyStage]:
        names = (f"gates.{segment}" for segment in self.keys())
        return dict(zip(names, self.gates, strict=True))

    def settings(self) -> dict[str, Any]:
        closed = {} if self.builtin in REDUCTIONS else {"closed": self.closed}
        return {**super().settings(), **closed}

    def holds(self) -> tuple[str, ...]:
        return ("gates",)

    def with_items(self, items: Items, own: Own) -> "Gated":
        new = [item for item in items if item.origin is None]
        added = ()
        if new and "gates" not in own:
            raise value_error(
                "gated",
                f"{len(new)} new stages and no gates.",
                "Give one gate for each of these, in the same order or by name: "
                "`gates=[gate]`.",
            )
        if own:
            names = tuple(item.name for item in new if item.name is not None)
            added = _read_gates(own["gates"], names or None, len(new))
        return gated(
            *named_items(items),
            gates=reordered(items, self.gates, added),
            merge=self.given_merge(),
            axis=self.axis,
            closed=cast(Any, self.closed),
        )

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        opens, outputs = [], []
        for segment, gate in zip(self.keys(), self.gates, strict=True):
            is_open, state = run_gate(scope, segment, gate, x, state)
            opens.append(is_open)
        three = zip(self.keys(), self.stages, opens, strict=True)
        for segment, stage, is_open in three:
            stage, given = varying_as(is_open, (stage, x))
            *branches, cure = self._branches(scope, segment, stage)
            path = join_path(scope.path, segment)
            names = (f'closed="{self.closed}"', path)
            y, state = choose(
                "gated", names, is_open, branches, given, state, cure=cure
            )
            if scope.record is not None:
                scope.record.add(path, y)
            outputs.append(y)
        if self.builtin not in REDUCTIONS:
            return self.merged(outputs, state, scope)
        check_mergeable("gated", self.builtin, self.axis, self.paths(scope), outputs)
        return _reduce_open(REDUCTIONS[self.builtin], opens, outputs), state

    def _branches(
        self, scope: Scope, segment: Segment, stage: AnyStage
    ) -> tuple[Any, Any, str]:
        """What runs if closed, what if open, and what to do if their outputs differ."""
        run, merge = branch_of(scope, segment, stage), self.builtin
        reduction = REDUCTIONS.get(merge or "")
        path = join_path(scope.path, segment)

        def absent(shapes: PyTree, x: PyTree, state: MaybeState) -> Output:
            absent = _zeros if reduction is None else reduction.absent
            return jtu.tree_map(absent, shapes), state

        def prepared(x: PyTree, state: MaybeState) -> Output:
            assert reduction is not None and merge is not None
            y, state = run(x, state)
            y = as_arrays(y)
            check_mergeable("gated", merge, self.axis, [path], [y])
            return jtu.tree_map(reduction.prepare, y), state

        if reduction is not None:
            return Like(absent), prepared, ""
        if self.closed == "zeros":
            return Like(absent), run, ""
        cure = (
            "With this merge a closed stage gives its input, which must be like its "
            'output. Give `closed="zeros"` for zeros instead.'
        )
        return (lambda x, state: (x, state)), run, cure


def _zeros(leaf: PyTree) -> PyTree:
    shaped = isinstance(leaf, jax.ShapeDtypeStruct)
    return jnp.zeros(leaf.shape, leaf.dtype) if shaped else leaf


def _reduce_open(
    reduction: Reduction, opens: Sequence[Bool[Array, ""]], outputs: Sequence[PyTree]
) -> PyTree:
    """Folds the outputs; zeros if none is open."""
    count = sum(is_open.astype(jnp.int32) for is_open in opens)

    def fold(*leaves: Array) -> Array:
        total = ft.reduce(reduction.pair, leaves)
        if reduction.average:
            # With none open this is 0 / 1: zeros, where 0 / 0 would be NaN.
            return reduction.finish(total, jnp.maximum(count, 1).astype(total.dtype))
        if reduction.neutral(total.dtype) == 0:
            return total
        # The neutral elements of the others (1, or an infinity) are no zeros.
        return jnp.where(count == 0, jnp.zeros_like(total), total)

    return jtu.tree_map(fold, *outputs)


def gated(
    *stages: StageLike | Mapping[str, StageLike],
    gates: Gates,
    merge: Merge | StageLike = "sum",
    axis: SupportsIndex = -1,
    closed: Literal["input", "zeros"] = "input",
) -> Gated:
    """Applies those stages whose gate is open to the same input, and merges.

    A closed stage does not run. Under `vmap` with gates per example each stage runs
    once for the whole batch, as in `cond`, and an inf or NaN that it would give where
    it is closed harms neither values nor gradients.

    **Arguments:**

    - `stages`: one or more stages, or one mapping from names to stages.
    - `gates`: for each stage a stage `x -> Bool[Array, ""]`, in the same order or by
        the same names. Their paths are `gates.0`, `gates.1`, .... (Keyword only.)
    - `merge`: as in `parallel`. `"sum"`, `"mean"`, `"max"`, `"min"` and `"prod"` see
        the open stages only; with none open they give zeros. (Keyword only.)
    - `axis`: for `"concat"` and `"stack"`. (Keyword only.)
    - `closed`: what a closed stage gives to the other merges, which cannot leave it
        out: its `"input"`, or `"zeros"`. (Keyword only.)

    **Returns:** a stage, a container as a `chain` is. The state of a closed stage stays
    as it was.

    **Raises:**

    - `ValueError` if there is not one gate per stage, or `merge` or `closed` is
        unknown; when called, if a gate does not return one bool.
    - `StructureError` when called, if the outputs cannot be merged, or with
        `closed="input"` a stage's output is not like its input.

    **Laws:** with all gates open it is `parallel` with the same merge.

    !!! example

        >>> import eqx_pipe as ep, jax, jax.numpy as jnp
        >>> pipe = ep.gated(
        ...     jnp.log, jnp.square, gates=(lambda x: x > 0, lambda x: x < 9)
        ... )
        >>> jax.vmap(pipe)(jnp.array([1.0, -2.0])).tolist()
        [1.0, 4.0]
    """
    names, children = read_stages("gated", "stages", stages)
    read_gates = _read_gates(gates, names, len(children))
    check_choice("gated", "closed", closed, ("input", "zeros"))
    read = read_merge("gated", merge, axis, names, ("gates",))
    return Gated(children, read_gates, names, *read, closed)


def _read_gates(gates: object, names: Names, size: int) -> tuple[AnyStage, ...]:
    """The gates in the order of the stages; raises unless there is one for each."""
    if isinstance(gates, str) or not isinstance(gates, Sequence | Mapping):
        raise type_error(
            "gated",
            f"`gates` is {describe_value(gates)}.",
            "Give one gate per stage, in a tuple or list: `gates=(gate,)`.",
        )
    listed = [gates] if isinstance(gates, Mapping) else gates
    gate_names, read = read_stages("gated", "gates", listed)
    if gate_names is not None and set(gate_names) != set(names or ()):
        raise value_error(
            "gated",
            f"`gates` has names {list(gate_names)}, and the stages have "
            f"{list(names) if names else 'positions'}.",
            "Give both by position, or both in a mapping: a gate for each name.",
        )
    if len(read) != size:
        raise value_error(
            "gated",
            f"{size} stages and {len(read)} gates.",
            "Give one gate per stage; `lambda x: True` is one that is always open.",
        )
    by_name = dict(zip(gate_names or (), read, strict=False))
    return tuple(by_name[name] for name in names or ()) if by_name else read
