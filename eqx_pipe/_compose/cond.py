"""One of several stages, chosen by a predicate or a selector."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from .._conditionals import choose, varying_as
from .._errors import locate, value_error
from .._stage import Canvas, Composite, Scope, Wire, as_stage, enter, identity
from .._tree import as_arrays, join_path, tree_text
from .._types import AnyStage, MaybeState, Output, PyTree, Segment, StageLike
from .container import Container, Names, check_reserved, keyed, no_slices, read_stages

Branch: TypeAlias = Callable[[PyTree, MaybeState], Output]
"""A stage as a function that is traced separately."""


def branch_of(scope: Scope, segment: Segment, stage: AnyStage) -> Branch:
    """Return a child as a function `(x, state) -> (y, state)` to be traced separately.

    Values computed inside cannot leave the trace, so outputs inside are not recorded.
    """

    def run(x: PyTree, state: MaybeState) -> Output:
        return enter(scope.silent(), segment, stage, x, state=state)

    return run


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
        value, state = enter(inner.silent(), segment, pred, x, state=state)
    except Exception as error:
        # `enter` adds the segment of the predicate, but not the group.
        if group:
            locate(error, group)
        raise
    path = join_path(inner.path, segment)
    is_open = as_arrays(value)
    one = eqx.is_array(is_open) and is_open.shape == ()
    if not one or is_open.dtype != jnp.bool_:
        raise value_error(
            function,
            f"`{path}` returned {tree_text(value)}, not a single bool.",
            "Compare, or reduce with `jnp.any` or `jnp.all`, so that it returns "
            "bool[]. For one decision per example wrap the stage in `batched`.",
        )
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
        otherwise, then, x = varying_as(pred, (self.otherwise, self.then, x))
        return choose(
            "cond",
            [join_path(scope.path, name) for name in ("otherwise", "then")],
            pred,
            [branch_of(scope, "otherwise", otherwise), branch_of(scope, "then", then)],
            x,
            state,
        )

    def picture(self, canvas: Canvas, path: str, wire: Wire) -> Wire:
        decided = canvas.decision("pred", self.pred, wire)
        stages = {"then": self.then, "otherwise": self.otherwise}
        return _draw_branches(canvas, path, "cond", stages, decided)


def _draw_branches(
    canvas: Canvas, path: str, kind: str, stages: Mapping[str, AnyStage], wire: Wire
) -> Wire:
    """Draw branches side by side, with their names on the arrows into them."""
    source = wire.source
    ends = [
        canvas.stage(path, s, stage, Wire(source, s)) for s, stage in stages.items()
    ]
    return canvas.join(kind, ends)


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
    return Cond(
        as_stage("cond", "pred", pred),
        as_stage("cond", "then", then),
        as_stage("cond", "otherwise", otherwise),
    )


class Switch(Container):
    """One of several stages; see `switch`."""

    selector: AnyStage
    stages: tuple[AnyStage, ...]
    names: Names = eqx.field(static=True)

    def children(self) -> Mapping[str, AnyStage]:
        return {"selector": self.selector, **super().children()}

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        value, state = enter(scope.silent(), "selector", self.selector, x, state=state)
        index = self._index(value)
        stages, x = varying_as(index, (self.stages, x))
        segments = [segment for segment, _ in keyed(self)]
        return choose(
            "switch",
            [join_path(scope.path, segment) for segment in segments],
            index,
            [branch_of(scope, s, f) for s, f in zip(segments, stages, strict=True)],
            x,
            state,
        )

    def sliced(self, part: slice) -> "Switch":
        raise no_slices("switch", "its selector counts all of its stages")

    def picture(self, canvas: Canvas, path: str, wire: Wire) -> Wire:
        decided = canvas.decision("selector", self.selector, wire)
        return _draw_branches(canvas, path, "switch", Container.children(self), decided)

    def _index(self, value: PyTree) -> Int[Array, ""]:
        """Return the selector's index, checked and as an int32 scalar."""
        last = len(self.stages) - 1
        if type(value) is int:
            value = min(max(value, 0), last)  # it may not fit an array's integers
        index = as_arrays(value)
        one = eqx.is_array(index) and index.shape == ()
        if not one or not jnp.issubdtype(index.dtype, jnp.integer):
            raise value_error(
                "switch",
                f"`selector` returned {tree_text(value)}, not a single integer.",
                f"Return an int32[] from 0 to {last} (`jnp.argmax` returns one); for a "
                "bool use `cond`. For one choice per example wrap the stage in "
                "`batched`.",
            )
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
    names, read = read_stages(
        "switch", "stages", stages, "Give at least one after the selector."
    )
    check_reserved("switch", names, ("selector",))
    return Switch(as_stage("switch", "selector", selector), read, names)
