"""One stage over many examples."""

import functools as ft
import operator
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Literal, SupportsIndex

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from .._check import check_int, common_size, is_integer
from .._errors import describe_value, type_error, value_error
from .._mesh_context import check_mesh, is_explicit
from .._stage import Composite, Passes, Scope, as_stage, is_stateful
from .._tree import as_arrays, combine, is_none, is_sparse, path_name
from .._types import AnyStage, MaybeState, Output, PyTree, StageLike
from .._vmap import in_batches, leaf_axes, vmap

_CURE = (
    "Every array needs the same number of examples along its axis of `in_axes`; use "
    "`None` in `in_axes` for entries that all examples share."
)


class Batched(Composite):
    """A stage under `vmap`; see `batched`."""

    stage: AnyStage
    # `in_axes` is stored flattened: a static field must be hashable, and a dict is not.
    axes: tuple[int | None, ...] = eqx.field(static=True)
    axes_structure: Any = eqx.field(static=True)  # a `PyTreeDef`
    axis_name: Hashable | None = eqx.field(static=True)
    batch_size: Any = eqx.field(static=True)  # an integer, "auto", or None
    mesh: Mesh | None = eqx.field(static=True)

    @property
    def in_axes(self) -> PyTree[int | None]:
        """The axes along which examples lie, as they were given."""
        return jtu.tree_unflatten(self.axes_structure, self.axes)

    def children(self) -> Mapping[str, AnyStage]:
        return {"stage": self.stage}

    def settings(self) -> dict[str, Any]:
        names = "axis_name batch_size mesh".split()
        settings = {name: getattr(self, name) for name in names}
        settings = {k: v for k, v in settings.items() if v is not None}
        return settings if self.in_axes == 0 else {"in_axes": self.in_axes, **settings}

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        x = as_arrays(x)
        # `vmap` maps a sparse matrix as one array.
        leaves, structure = jtu.tree_flatten(x, is_leaf=is_sparse)
        axes = _leaf_axes(self.in_axes, x, scope)
        shapes = structure.unflatten(map(_shape, leaves))
        size = common_size("batched", f"the input{scope.where}", shapes, axes, _CURE)
        both = list(zip(leaves, axes, strict=True))
        mapped = [leaf for leaf, a in both if a is not None]
        # The index is mapped only if the stage gets a key; otherwise all else stays
        # unbatched.
        index = None if scope.key is None else _positions(size, mapped, axes)
        stateful = is_stateful(self.stage)
        shared = state if stateful else None
        passes = Passes(scope)
        constants = []

        def one(slices, shared, i):
            rest = iter(slices)
            parts = [leaf if a is None else next(rest) for leaf, a in both]
            item = jtu.tree_unflatten(structure, parts)
            inner = passes.begin()
            y, shared = inner.enter("stage", self.stage, item, state=shared, index=i)
            arrays, constant = eqx.partition(as_arrays(y), eqx.is_array)
            # `vmap` returns only arrays; other leaves, such as text, are returned this
            # way.
            constants.append(constant)
            return (arrays, passes.arrays()), shared

        along = [a for a in axes if a is not None]
        settings: Any = {"out_axes": (0, None), "axis_name": self.axis_name}
        in_axes, batch = (along, None, 0), self.batch_size
        if batch is None and self.mesh is None:
            every = jax.vmap(one, in_axes, axis_size=size, **settings)
        elif not stateful:
            batch = max(size, 1) if batch is None else batch
            settings |= {"batch_size": batch, "mesh": self.mesh, "axis_size": size}
            every = vmap(one, in_axes, **settings)
        else:
            self.check_state_in_batches(size, scope)
            every = ft.partial(self.in_order, one, along, min(batch or size, size))
        try:
            (arrays, values), shared = every(mapped, shared, index)
        except ValueError as error:
            # The stage has run, so `vmap` rejects the state: every other output may
            # vary.
            if stateful and constants:
                raise value_error(
                    "batched",
                    f"the stage{scope.where} updates its state differently for each "
                    "example, but all examples share one state.",
                    "Combine the examples inside the stage by a collective over "
                    "`axis_name` (`jax.lax.pmean`, as `equinox.nn.BatchNorm` does). "
                    "For a state of each example, such as a cache, use "
                    "`equinox.filter_vmap(pipe, in_axes=(0, None))(xs, state)` in "
                    "place of `batched`; the state that it returns has an axis of "
                    "examples, and goes in by `in_axes=(0, 0)` from then on.",
                ) from error
            raise
        passes.end(values)
        y = combine(arrays, constants[-1])
        return y, shared if stateful else state

    def in_order(
        self,
        one: Callable[..., Any],
        along: list[int],
        batch_size: int,
        mapped: list[Any],
        state: MaybeState,
        index: Any,
    ) -> Any:
        """Return the outputs of `one` in batches, through which the state passes."""
        rows = [jnp.moveaxis(x, a, 0) for x, a in zip(mapped, along, strict=True)]
        every: Any = jax.vmap(one, (0, None, 0), (0, None), axis_name=self.axis_name)

        def step(state: Any, rows: list[Any], *_: Any) -> tuple[Any, Any]:
            index = next(iter(rows[len(along) :]), None)
            outputs, state = every(rows[: len(along)], state, index)
            return state, outputs

        rows = rows if index is None else [*rows, index]
        state, outputs = in_batches(step, state, rows, batch_size)
        return outputs, state

    def check_state_in_batches(self, size: int, scope: Scope) -> None:
        """Raise where a state cannot pass through batches in order."""
        if self.mesh is not None or self.batch_size == "auto":
            wrong = "`mesh`" if self.mesh is not None else '`batch_size="auto"`'
            raise value_error(
                "batched",
                f"the stage{scope.where} is stateful, and {wrong} is given.",
                "Give a number as `batch_size` and no `mesh`: the state passes through "
                "the batches in order.",
            )
        if self.axis_name is not None and self.batch_size < size:
            raise value_error(
                "batched",
                f"`axis_name` is {self.axis_name!r}, and {size} examples in batches of "
                f"{self.batch_size} are several: a collective would not see all.",
                "Leave out `batch_size`.",
            )


def _leaf_axes(in_axes: PyTree, x: PyTree, scope: Scope) -> list[int | None]:
    """Return the mapped axis of each leaf of `x`, or `None` if it is not an array."""
    axes = leaf_axes("batched", "in_axes", in_axes, x, f"the input{scope.where}")
    leaves = jtu.tree_leaves(x, is_leaf=is_sparse)
    pairs = zip(leaves, axes, strict=True)
    return [axis if _is_mapped(leaf) else None for leaf, axis in pairs]


def _is_mapped(leaf: Any) -> bool:
    return eqx.is_array(leaf) or is_sparse(leaf)


def _shape(leaf: Any) -> Any:
    """Return the struct of a sparse matrix; other leaves as they are."""
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if is_sparse(leaf) else leaf


def _positions(size: int, mapped: list[Array], axes: list[int | None]) -> Array:
    """Return the positions of the examples, placed as the examples are.

    On a mesh with explicit axes, `vmap` rejects arrays that are split differently.
    """
    index = jnp.arange(size)
    along = (a for a in axes if a is not None)
    for leaf, axis in zip(mapped, along, strict=True):
        if is_sparse(leaf):
            continue
        sharding = jax.typeof(leaf).sharding
        if is_explicit(sharding.mesh) and sharding.spec[axis] is not None:
            split = NamedSharding(sharding.mesh, P(sharding.spec[axis]))
            return jax.sharding.reshard(index, split)
    return index


def batched(
    stage: StageLike,
    in_axes: PyTree[SupportsIndex | None] = 0,
    axis_name: Hashable | None = None,
    *,
    batch_size: SupportsIndex | Literal["auto"] | None = None,
    mesh: Mesh | None = None,
) -> Batched:
    """Apply a stage to every example of a batch.

    The input's arrays are split along `in_axes` and the stage runs on each example
    under `jax.vmap`; outputs are stacked along a new leading axis. Example `i` draws
    from `fold_in(key, i)`. The state is shared: the stage sees the same one for each
    example, and must make the same update for each (`equinox.nn.BatchNorm` does, given
    its `axis_name` here). Other leaves, such as strings, are passed to each example
    unchanged. An empty batch is allowed.

    **Arguments:**

    - `stage`: the stage for one example.
    - `in_axes`: the axis along which examples lie, an integer, or a pytree of integers
        and `None` that is a prefix of the input. `None` marks leaves that all examples
        share.
    - `axis_name`: a name for the axis, for collectives inside the stage.
    - `batch_size`: the maximum number of examples vectorised at once on a device, or
        `"auto"`, as for `eqx_pipe.vmap`, also for gradients. By default, all. A state
        passes through the batches in order. (Keyword only.)
    - `mesh`: a mesh, over whose devices the examples are split; not for a stage with a
        state. (Keyword only.)

    **Returns:** a stage that takes and returns batches.

    **Shapes:** the stage gets an input leaf `(batch, *a)` as `(*a,)`; an output leaf
    `(*b,)` of the stage becomes `(batch, *b)`.

    **Raises:**

    - `TypeError` if `stage` is not a stage, or `in_axes` has the wrong type.
    - `StructureError` (a `ValueError`), when called, if sizes disagree, an axis is out
      of range, or `in_axes` does not fit the input; the error names the leaves.
    - `ValueError`, when called, if the examples update the state differently, or if
        `axis_name` is given and there are several batches.

    **Laws:** `batched(f)(x, key=key)[i]` is `f(x[i], key=fold_in(key, i))`.

    !!! example

        >>> import equinox as eqx, eqx_pipe as ep, jax.numpy as jnp, jax.random as jr
        >>> layer = ep.batched(eqx.nn.Linear(3, 2, key=jr.key(0)))
        >>> layer(jnp.ones((5, 3))).shape
        (5, 2)
    """
    child = as_stage("batched", "stage", stage)
    named, structure = jtu.tree_flatten_with_path(in_axes, is_leaf=is_none)
    for path, axis in named:
        if axis is not None and not is_integer(axis):
            where = f" at `.{path_name(path)}`" if path else ""
            raise type_error(
                "batched",
                f"`in_axes` is {describe_value(axis)}{where}.",
                "Give an integer, `None`, or a pytree of these.",
            )
    if all(axis is None for _, axis in named):
        raise value_error(
            "batched",
            f"`in_axes` is {in_axes!r}: nothing is mapped.",
            "Give the axis along which the examples lie.",
        )
    axes = (axis if axis is None else operator.index(axis) for _, axis in named)
    if batch_size is not None and batch_size != "auto":
        check_int("batched", "batch_size", batch_size, 1)
        batch_size = operator.index(batch_size)
    if mesh is not None:
        check_mesh("batched", mesh)
    return Batched(child, tuple(axes), structure, axis_name, batch_size, mesh)
