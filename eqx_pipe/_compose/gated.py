"""Several stages on the same input, each behind a gate of its own."""

import functools as ft
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool

from .._check import check_choice, check_draws_apart
from .._choose.choose import Like, choose
from .._choose.primitive import varying_as
from .._errors import describe_value, message
from .._stage import Scope, as_stage, enter
from .._tree import as_arrays, join_path
from .._types import PyTree, Segment, StageLike
from .container import Container
from .decide import branch_of, run_gate
from .merge import (
    REDUCTIONS,
    Reduction,
    check_axis,
    check_merge,
    check_mergeable,
    merge_outputs,
)
from .named import Names, read_stages


class Gated(Container):
    """Stages behind gates; see `gated`."""

    stages: tuple[Any, ...]
    gates: tuple[Any, ...]
    names: Names = eqx.field(static=True)
    merge: Any  # the stage, where a callable was given
    builtin: str | None = eqx.field(static=True)
    axis: int = eqx.field(static=True)
    closed: str = eqx.field(static=True)

    def children(self) -> Mapping[str, Any]:
        stages = zip(map(str, self.segments), self.stages, strict=True)
        gates = zip((f"gates.{s}" for s in self.segments), self.gates, strict=True)
        return {**dict(stages), **dict(gates)} | (
            {} if self.builtin else {"merge": self.merge}
        )

    def settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {"merge": self.builtin} if self.builtin else {}
        if self.builtin in ("concat", "stack"):
            settings["axis"] = self.axis
        if self.builtin not in REDUCTIONS:
            settings["closed"] = self.closed
        return settings

    def run(
        self, x: PyTree, state: eqx.nn.State | None, scope: Scope
    ) -> tuple[PyTree, eqx.nn.State | None]:
        opens = []
        for segment, gate in zip(self.segments, self.gates, strict=True):
            is_open, state = run_gate(scope, segment, gate, x, state)
            opens.append(is_open)
        outputs = []
        for segment, stage, is_open in zip(
            self.segments, self.stages, opens, strict=True
        ):
            stage, given = varying_as(is_open, (stage, x))
            closed, branch, cure = self._ways(scope, segment, stage)
            ways = (f'closed="{self.closed}"', join_path(scope.path, segment))
            y, state = choose(
                "gated", ways, is_open, [closed, branch], given, state, cure=cure
            )
            if scope.record is not None:
                scope.record[join_path(scope.path, segment)] = y
            outputs.append(y)
        if self.builtin is None:
            return enter(scope, "merge", self.merge, tuple(outputs), state=state)
        names = [str(segment) for segment in self.segments]
        paths = [join_path(scope.path, name) for name in names]
        if self.builtin in REDUCTIONS:
            check_mergeable("gated", self.builtin, self.axis, paths, outputs)
            return _reduce_open(REDUCTIONS[self.builtin], opens, outputs), state
        y = merge_outputs("gated", self.builtin, self.axis, names, paths, outputs)
        return y, state

    def _ways(self, scope: Scope, segment: Segment, stage: Any) -> tuple[Any, Any, str]:
        """What runs if closed, what if open, and what to do if their outputs differ."""
        run = branch_of(scope, segment, stage)
        merge = self.builtin
        if merge is not None and merge in REDUCTIONS:
            reduction = REDUCTIONS[merge]
            path = join_path(scope.path, str(segment))

            def prepared(x: PyTree, state: Any) -> Any:
                y, state = run(x, state)
                y = as_arrays(y)
                check_mergeable("gated", merge, self.axis, [path], [y])
                return jtu.tree_map(reduction.prepare, y), state

            def nothing(shapes: Any, x: PyTree, state: Any) -> Any:
                return jtu.tree_map(reduction.absent, shapes), state

            return Like(nothing), prepared, ""
        if self.closed == "zeros":

            def zeros(shapes: Any, x: PyTree, state: Any) -> Any:
                return jtu.tree_map(_zeros, shapes), state

            return Like(zeros), run, ""
        cure = (
            "With this merge a closed stage gives its input, which must be like its "
            'output. Give `closed="zeros"` for zeros instead.'
        )
        return (lambda x, state: (x, state)), run, cure


def _zeros(leaf: Any) -> Any:
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
            return reduction.finish(total, jnp.maximum(count, 1).astype(total.dtype))
        if reduction.neutral(total.dtype) == 0:
            return total
        return jnp.where(count == 0, jnp.zeros_like(total), total)

    return jtu.tree_map(fold, *outputs)


def gated(
    *stages: StageLike | Mapping[str, StageLike],
    gates: Sequence[StageLike] | Mapping[str, StageLike],
    merge: str | Callable[..., Any] = "sum",
    axis: int = -1,
    closed: str = "input",
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
    gate_names, gate_children = read_stages(
        "gated", "gates", [gates] if isinstance(gates, Mapping) else _listed(gates)
    )
    _check_one_gate_each(names, children, gate_names, gate_children)
    if names is not None and gate_names is not None:
        by_name = dict(zip(gate_names, gate_children, strict=True))
        gate_children = tuple(by_name[name] for name in names)
    check_merge("gated", merge)
    check_axis("gated", axis)
    check_choice("gated", "closed", closed, ("input", "zeros"))
    builtin = merge if isinstance(merge, str) else None
    if builtin == "dict" and names is None:
        raise ValueError(
            message(
                "gated",
                f'`merge="dict"`, and the {len(children)} stages have no names.',
                "Give them in a mapping, `gated({'a': stage, ...}, gates={'a': gate, "
                '...})`, or use `merge="tuple"`.',
            )
        )
    _check_free_names(names, builtin)
    return Gated(
        children,
        gate_children,
        names,
        None if builtin else as_stage("gated", "merge", merge),
        builtin,
        axis.__index__(),
        closed,
    )


def _listed(gates: Any) -> Sequence[Any]:
    if isinstance(gates, Sequence) and not isinstance(gates, str):
        return gates
    raise TypeError(
        message(
            "gated",
            f"`gates` is {describe_value(gates)}.",
            "Give one gate per stage, in a tuple or list: `gates=(gate,)`.",
        )
    )


def _check_one_gate_each(
    names: Names, children: Sequence[Any], gate_names: Names, gates: Sequence[Any]
) -> None:
    if names is not None and gate_names is not None:
        without = [name for name in names if name not in gate_names]
        surplus = [name for name in gate_names if name not in names]
        if without or surplus:
            raise ValueError(
                message(
                    "gated",
                    f"stages without a gate: {without}; gates without a stage: "
                    f"{surplus}.",
                    "Give `gates` a gate for each name of `stages`.",
                )
            )
    elif gate_names is not None:
        raise ValueError(
            message(
                "gated",
                f"`gates` has names {list(gate_names)}, and the stages have positions.",
                "Give both by position, or both in a mapping.",
            )
        )
    if len(children) != len(gates):
        raise ValueError(
            message(
                "gated",
                f"{len(children)} stages and {len(gates)} gates.",
                "Give one gate per stage; `lambda x: True` is one that is always open.",
            )
        )


def _check_free_names(names: Names, builtin: str | None) -> None:
    taken = {"gates"} | (set() if builtin else {"merge"})
    clash = taken & set(names or ())
    if clash:
        raise ValueError(
            message(
                "gated",
                f"a stage has the name `{clash.pop()}`, which is that of an argument.",
                "Rename the stage.",
            )
        )
    check_draws_apart("gated", (*(names or ()), *sorted(taken)))
