"""Stages that the input chooses: one (`cond`, `switch`), or all with open gates."""

import functools as ft
from collections.abc import Callable, Mapping, Sequence
from typing import Any, SupportsIndex, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Bool, Int

from .._check import check_is
from .._conditionals import Like, choose, varying_as
from .._errors import quoted, value_error
from .._stage import Composite, Scope, as_stage, identity, locate
from .._tree import as_arrays, join_path, tree_text
from .._types import AnyStage, MaybeState, Output, PyTree, Segment, StageLike
from .container import Container, Names, check_reserved, keyed, read_stages
from .parallel import Merge, MergeName, merged, read_merge

Branch: TypeAlias = Callable[[PyTree, MaybeState], Output]
"""A stage as a function that is traced separately."""


def branch_of(scope: Scope, segment: Segment, stage: AnyStage) -> Branch:
    """Return a child as a function `(x, state) -> (y, state)` to be traced separately.

    Values computed inside cannot leave the trace, so outputs inside are not recorded.
    """

    def run(x: PyTree, state: MaybeState) -> Output:
        return scope.silent().enter(segment, stage, x, state=state)

    return run


def run_chosen(
    function: str,
    scope: Scope,
    index: Array,
    stages: Mapping[Any, AnyStage],
    x: PyTree,
    state: MaybeState,
) -> Output:
    """Run the stage at an index, of several stages by their path segments."""
    varying, x = varying_as(index, (tuple(stages.values()), x))
    branches = [branch_of(scope, s, f) for s, f in zip(stages, varying, strict=True)]
    paths = [join_path(scope.path, segment) for segment in stages]
    return choose(function, paths, index, branches, x, state)


def run_predicate(
    function: str,
    scope: Scope,
    segment: Segment,
    pred: AnyStage,
    x: PyTree,
    state: MaybeState,
    group: str = "",
) -> tuple[Bool[Array, ""], MaybeState]:
    """Call a predicate and check that it returned one bool.

    `group` is a part of the path between the combinator and `segment` that is not a
    stage: `gates`. Only a predicate in a group is recorded.
    """
    inner = scope.child(group) if group else scope
    try:
        value, state = inner.silent().enter(segment, pred, x, state=state)
    except Exception as error:
        # `enter` adds the segment of the predicate, but not the group.
        if group:
            locate(error, group)
        raise
    path = join_path(inner.path, segment)
    is_open = as_arrays(value)
    one = eqx.is_array(is_open) and is_open.shape == ()
    if not one or is_open.dtype != jnp.bool_:
        wrong = f"`{path}` returned {tree_text(value)}, not a single bool."
        cure = "Compare, or reduce with `jnp.any` or `jnp.all`, so that it returns "
        cure += "bool[]. For one decision per example wrap the stage in `batched`."
        raise value_error(function, wrong, cure)
    if group and scope.record is not None:
        scope.record.add(path, is_open)
    return is_open, state


class Cond(Composite):
    """One of two stages; see `cond`."""

    pred: AnyStage
    then: AnyStage
    otherwise: AnyStage

    def children(self) -> Mapping[str, AnyStage]:
        return {"pred": self.pred, "then": self.then, "otherwise": self.otherwise}

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        pred, state = run_predicate("cond", scope, "pred", self.pred, x, state)
        stages = {"otherwise": self.otherwise, "then": self.then}
        return run_chosen("cond", scope, pred, stages, x, state)


def cond(pred: StageLike, then: StageLike, otherwise: StageLike = identity) -> Cond:
    """Apply one stage if a predicate of the input is true, else another.

    Only the chosen stage runs. Under `vmap` with a decision per example, each stage
    that at least one example chose runs once for the whole batch, without a copy of its
    parameters. Examples that did not choose a stage are replaced there by one that did,
    so an inf or NaN that the stage returns for them reaches neither values nor
    gradients. This costs a masked copy of the input.

    **Arguments:**

    - `pred`: a stage `x -> Bool[Array, ""]`. Its path is `pred`.
    - `then`: the stage for true. Its path is `then`.
    - `otherwise`: the stage for false; by default the identity. Its path is
        `otherwise`.

    **Returns:** a stage. The state of a stage that was not chosen does not change.

    **Raises:**

    - `TypeError` if something is not a stage; `ValueError` when called, if `pred` does
      not return one bool.
    - `StructureError` when called, if the two stages' outputs differ in structure,
        shape or dtype.

    !!! example

        >>> import eqx_pipe as ep, jax, jax.numpy as jnp
        >>> root = ep.cond(lambda x: x > 0, jnp.sqrt, jnp.zeros_like)
        >>> jax.vmap(root)(jnp.array([4.0, -1.0])).tolist()
        [2.0, 0.0]
        >>> jax.vmap(jax.grad(root))(jnp.array([4.0, -1.0])).tolist()
        [0.25, 0.0]
    """
    stages = {"pred": pred, "then": then, "otherwise": otherwise}
    return Cond(*(as_stage("cond", name, stage) for name, stage in stages.items()))


class Switch(Container):
    """One of several stages; see `switch`."""

    selector: AnyStage
    stages: tuple[AnyStage, ...]
    names: Names = eqx.field(static=True)

    def children(self) -> Mapping[str, AnyStage]:
        return {"selector": self.selector, **super().children()}

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        value, state = scope.silent().enter("selector", self.selector, x, state=state)
        stages = dict(keyed(self))
        return run_chosen("switch", scope, self._index(value), stages, x, state)

    def _index(self, value: PyTree) -> Int[Array, ""]:
        """Return the selector's index, checked and as an int32 scalar."""
        last = len(self.stages) - 1
        if type(value) is int:
            value = min(max(value, 0), last)  # it may not fit an array's integers
        index = as_arrays(value)
        one = eqx.is_array(index) and index.shape == ()
        if not one or not jnp.issubdtype(index.dtype, jnp.integer):
            wrong = f"`selector` returned {tree_text(value)}, not a single integer."
            cure = f"Return an int32[] from 0 to {last} (`jnp.argmax` returns one); "
            cure += "for a bool use `cond`. For one choice per example wrap the stage "
            cure += "in `batched`."
            raise value_error("switch", wrong, cure)
        if jnp.iinfo(index.dtype).max > jnp.iinfo(jnp.int32).max:
            index = jnp.clip(index, 0, last)  # before the cast, which would wrap
        return index.astype(jnp.int32)


def switch(selector: StageLike, *stages: StageLike | Mapping[str, StageLike]) -> Switch:
    """Apply the stage at the position that a selector returns for the input.

    An index out of range selects the nearest stage, as in `jax.lax.switch`.
    Only the chosen stage runs. Under `vmap` with a choice per example it behaves as
    `cond` does: each stage that any example chose runs once for the whole batch.

    **Arguments:**

    - `selector`: a stage `x -> Int[Array, ""]`. Its path is `selector`.
    - `stages`: one or more stages, at positions 0, 1, ...; or one mapping from names to
        stages, in the order of their positions.

    **Returns:** a stage, with the container methods of a `chain`. The state of stages
    that were not chosen does not change.

    **Raises:**

    - `ValueError` if there is no stage, or a name is invalid; when called, if the
      selector does not return one integer. `TypeError` if something is not a stage.
    - `StructureError` when called, if the stages' outputs differ in structure, shape
        or dtype.

    !!! example

        >>> import eqx_pipe as ep, jax, jax.numpy as jnp
        >>> pick = ep.switch(jnp.argmax, jnp.sum, jnp.min)
        >>> jax.vmap(pick)(jnp.array([[3.0, 1.0], [2.0, 5.0]])).tolist()
        [4.0, 2.0]
    """
    cure = "Give at least one after the selector."
    names, read = read_stages("switch", "stages", stages, cure)
    check_reserved("switch", names, ("selector",))
    return Switch(as_stage("switch", "selector", selector), read, names)


Gates: TypeAlias = Sequence[StageLike] | Mapping[str, StageLike]
"""One stage `x -> Bool[Array, ""]` for each gated stage, in order or by name."""


class Gated(Container):
    """Stages with gates; see `gated`."""

    stages: tuple[AnyStage, ...]
    gates: tuple[AnyStage, ...]
    names: Names = eqx.field(static=True)
    merge: Merge

    def children(self) -> Mapping[str, AnyStage]:
        pairs = zip(self.keys(), self.gates, strict=True)
        gates = {f"gates.{key}": gate for key, gate in pairs}
        return {**super().children(), **gates, **self.merge.children()}

    def settings(self) -> dict[str, Any]:
        return self.merge.settings()

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        opens, outputs = [], []
        for (segment, _), gate in zip(keyed(self), self.gates, strict=True):
            is_open, state = run_predicate(
                "gated", scope, segment, gate, x, state, group="gates"
            )
            opens.append(is_open)

        absent = ft.partial(_absent, self.merge.name)

        def closed(shapes: PyTree, x: PyTree, state: MaybeState) -> Output:
            return jtu.tree_map(absent, shapes), state

        for (segment, stage), is_open in zip(keyed(self), opens, strict=True):
            stage, inputs = varying_as(is_open, (stage, x))
            path = join_path(scope.path, segment)
            both = Like(closed), branch_of(scope, segment, stage)
            y, state = choose("gated", ("closed", path), is_open, both, inputs, state)
            if scope.record is not None:
                scope.record.add(path, y)
            outputs.append(y)
        count = sum(is_open.astype(jnp.int32) for is_open in opens)
        # If no gate is open, the mean is 0 / 1 = 0, instead of NaN for 0 / 0.
        y, state = merged(self, outputs, state, scope, jnp.maximum(count, 1))
        if self.merge.name in ("max", "min", "prod"):
            y = jtu.tree_map(lambda v: jnp.where(count == 0, jnp.zeros_like(v), v), y)
        return y, state


def _absent(merge: str | None, leaf: PyTree) -> PyTree:
    """Return what an output of a closed stage counts as, with the struct's sharding.

    It does not change a merge that is a fold; in other merges it is zero.
    """
    if not isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    value: Any = 1 if merge == "prod" else 0
    if merge in ("max", "min"):
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            ends = -np.inf, np.inf
        elif jnp.issubdtype(leaf.dtype, jnp.integer):
            ends = jnp.iinfo(leaf.dtype).min, jnp.iinfo(leaf.dtype).max
        else:
            ends = 0, 1
        value = ends[merge == "min"]
    # Not `jnp.full_like`, which drops shardings on meshes with an automatic axis.
    return jax.lax.full(leaf.shape, value, leaf.dtype, sharding=leaf.sharding)


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
        wrong = f"the stages are {quoted(keys)}, but the gates are {quoted(gate_keys)}."
        cure = "Give one gate per stage: both by position, or both in a mapping, with "
        cure += "a gate for each name. `lambda x: True` is always open."
        raise value_error("gated", wrong, cure)
    by_key = dict(zip(gate_keys, read, strict=True))
    return tuple(by_key[key] for key in keys)
