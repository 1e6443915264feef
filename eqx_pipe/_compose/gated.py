"""Several stages on the same input, each with its own gate."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, SupportsIndex, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool

from .._check import check_is
from .._conditionals import Like, choose, varying_as
from .._errors import quoted, value_error
from .._stage import Canvas, Scope, Wire
from .._tree import as_arrays, join_path
from .._types import AnyStage, MaybeState, Output, PyTree, Segment, StageLike
from .cond import Branch, branch_of, run_predicate
from .container import Container, Names, keyed, read_stages
from .merge import (
    KEEP_APART,
    Fold,
    Merge,
    MergeName,
    check_agree,
    check_mergeable,
    merged,
    read_merge,
)

Gates: TypeAlias = Sequence[StageLike] | Mapping[str, StageLike]
"""One stage `x -> Bool[Array, ""]` for each gated stage, in order or by name."""


class Gated(Container):
    """Stages with gates; see `gated`."""

    per_stage: ClassVar[tuple[str, ...]] = ("stages", "gates")

    stages: tuple[AnyStage, ...]
    gates: tuple[AnyStage, ...]
    names: Names = eqx.field(static=True)
    merge: Merge

    def children(self) -> Mapping[str, AnyStage]:
        gates = zip(map(_gate_path, self.keys()), self.gates, strict=True)
        return {**super().children(), **dict(gates), **self.merge.children()}

    def settings(self) -> dict[str, Any]:
        return self.merge.settings()

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        opens, outputs = [], []
        for (segment, _), gate in zip(keyed(self), self.gates, strict=True):
            is_open, state = run_predicate(
                "gated", scope, segment, gate, x, state, group="gates"
            )
            opens.append(is_open)
        fold = self.merge.fold
        absent = _zeros if fold is None else fold.absent

        def closed(shapes: PyTree, x: PyTree, state: MaybeState) -> Output:
            return jtu.tree_map(absent, shapes), state

        for (segment, stage), is_open in zip(keyed(self), opens, strict=True):
            stage, given = varying_as(is_open, (stage, x))
            path = join_path(scope.path, segment)
            run = self._prepared(branch_of(scope, segment, stage), path)
            branches = (Like(closed), run)
            y, state = choose(
                "gated", ("closed", path), is_open, branches, given, state
            )
            if scope.record is not None:
                scope.record.add(path, y)
            outputs.append(y)
        segments = [segment for segment, _ in keyed(self)]
        if fold is None:
            return merged(self.merge, "gated", segments, outputs, state, scope)
        paths = [join_path(scope.path, segment) for segment in segments]
        check_agree("gated", paths, outputs, cure=KEEP_APART)
        return _reduce_open(fold, opens, outputs), state

    def _prepared(self, run: Branch, path: str) -> Branch:
        """Return the branch of an open stage; for a fold, in the result's dtypes."""
        fold, name = self.merge.fold, self.merge.name

        def prepared(x: PyTree, state: MaybeState) -> Output:
            assert fold is not None and name is not None
            y, state = run(x, state)
            y = as_arrays(y)
            check_mergeable("gated", name, path, y)
            return jtu.tree_map(fold.prepare, y), state

        return run if fold is None else prepared

    def picture(self, canvas: Canvas, path: str, wire: Wire) -> Wire:
        ends = []
        for (segment, stage), gate in zip(keyed(self), self.gates, strict=True):
            decided = canvas.decision(_gate_path(segment), gate, wire)
            start = Wire(decided.source, "open")
            ends.append(canvas.stage(path, str(segment), stage, start))
        return self.merge.picture(canvas, path, ends)


def _gate_path(segment: Segment) -> str:
    return f"gates.{segment}"


def _zeros(leaf: PyTree) -> PyTree:
    return jnp.zeros_like(leaf) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf


def _reduce_open(
    fold: Fold, opens: Sequence[Bool[Array, ""]], outputs: Sequence[PyTree]
) -> PyTree:
    """Fold the outputs; zeros if none is open."""
    count = sum(is_open.astype(jnp.int32) for is_open in opens)

    def reduce(*leaves: Array) -> Array:
        # If no gate is open, the mean is 0 / 1 = 0, instead of NaN for 0 / 0.
        total = fold.total(leaves, jnp.maximum(count, 1))
        if fold.neutral(total.dtype) == 0:
            return total
        # The neutral elements of the others (1, or an infinity) differ from zero.
        return jnp.where(count == 0, jnp.zeros_like(total), total)

    return jtu.tree_map(reduce, *outputs)


def gated(
    *stages: StageLike | Mapping[str, StageLike],
    gates: Gates,
    merge: MergeName | StageLike = "sum",
    axis: SupportsIndex = -1,
) -> Gated:
    """Apply the stages whose gates are open to the same input, and merge the outputs.

    A closed stage does not run. Under `vmap` with gates per example, each stage runs
    once for the whole batch, as in `cond`, and an inf or NaN of a closed stage reaches
    neither values nor gradients. For closed stages that pass on their input write
    `parallel(cond(gate, stage), ...)`.

    **Arguments:**

    - `stages`: one or more stages, or one mapping from names to stages.
    - `gates`: for each stage a stage `x -> Bool[Array, ""]`, in the same order or by
        the same names. Their paths are `gates.0`, `gates.1`, .... (Keyword only.)
    - `merge`: as in `parallel`. `"sum"`, `"mean"`, `"max"`, `"min"` and `"prod"` merge
        only the open stages; if none is open, they return zeros. The other merges get
        zeros for a closed stage. (Keyword only.)
    - `axis`: for `"concat"` and `"stack"`. (Keyword only.)

    **Returns:** a stage, with the container methods of a `chain`. The state of a closed
    stage does not change.

    **Raises:**

    - `TypeError` if something is not a stage, or `gates` is not a sequence or mapping;
        `ValueError` if there is not one gate per stage, or `merge` is unknown; when
        called, if a gate does not return one bool.
    - `StructureError` when called, if the outputs cannot be merged.

    **Laws:** with all gates open, it equals `parallel` with the same merge.

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
    read = read_merge("gated", merge, axis, names, ("gates",))
    return Gated(children, read_gates, names, read)


def _read_gates(gates: Gates, names: Names, size: int) -> tuple[AnyStage, ...]:
    """Return the gates in the order of the stages; raise unless each has one."""
    cure = "Give one gate per stage, in a tuple or list: `gates=(gate,)`."
    check_is("gated", "gates", gates, list | tuple | Mapping, cure)
    listed = [gates] if isinstance(gates, Mapping) else gates
    gate_names, read = read_stages("gated", "gates", listed)
    # Gates by position also match named stages, in the same order.
    keys = (names or range(size)) if gate_names else range(size)
    gate_keys = gate_names or range(len(read))
    if set(keys) != set(gate_keys):
        raise value_error(
            "gated",
            f"the stages are {quoted(keys)}, but the gates are {quoted(gate_keys)}.",
            "Give one gate per stage: both by position, or both in a mapping, with a "
            "gate for each name. `lambda x: True` is always open.",
        )
    by_key = dict(zip(gate_keys, read, strict=True))
    return tuple(by_key[key] for key in keys)
