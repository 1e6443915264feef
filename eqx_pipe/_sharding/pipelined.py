"""The stages of a `repeat` spread over devices: GPipe inside one program.

Device d holds the layers d n/D to (d+1) n/D - 1. At tick t it applies them to
microbatch t - d and hands the result to device d+1; after M + D - 1 ticks the last
device has all M outputs. Before its first and after its last microbatch a device is
idle: it does not run its layers, so it needs no time, and the placeholder of its input
cannot cause a NaN.
"""

from collections.abc import Hashable, Mapping
from typing import Any, SupportsIndex

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from .._check import check_choice, check_dense, check_int, check_is, common_size
from .._compose import Repeat, check_output, with_remat
from .._errors import quoted, value_error
from .._mesh_context import check_mesh, is_explicit
from .._same import Fixed
from .._stage import Composite, Scope, is_stateful
from .._tree import as_arrays, is_key_array
from .._types import AnyStage, Key, MaybeState, Output, PyTree
from .place import constrain_to, fitting_sizes, mesh_like, shard, with_types


class Pipelined(Composite):
    """The stages of a `repeat` over a mesh axis; see `pipelined`."""

    stages: AnyStage
    size: int = eqx.field(static=True)
    mesh: Mesh = eqx.field(static=True)
    axis: Hashable = eqx.field(static=True)
    microbatches: int = eqx.field(static=True)
    remat: bool | Fixed = eqx.field(static=True, default=False)
    unroll: int = eqx.field(static=True, default=1)

    def children(self) -> Mapping[str, AnyStage]:
        """Return the stages stacked into one, as in a `repeat`."""
        return {"0": self.stages}

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        x = as_arrays(x)
        cure = "Its values and indices do not split into microbatches: make it dense."
        check_dense("sharding.pipelined", "the input", x, cure)
        _check_batch(eqx.filter(x, eqx.is_array), self.microbatches)
        return _program(self, x, scope.key, scope.path), state


@eqx.filter_jit
def _program(pipe: Pipelined, x: PyTree, key: Key | None, path: str) -> PyTree:
    """Run the whole schedule in one program, also outside `jit`."""
    devices, count, axis = pipe.mesh.shape[pipe.axis], pipe.microbatches, pipe.axis
    carry, constant = eqx.partition(x, eqx.is_array)
    stacked, static = eqx.partition(pipe.stages, eqx.is_array)
    mesh = mesh_like(pipe.mesh, *jtu.tree_leaves((stacked, carry)))
    local = pipe.size // devices

    def layers_on(layers: PyTree, x: PyTree, key: Key | None, first: Any) -> PyTree:
        """Return one microbatch after the layers of one device."""

        def body(x, slices):
            part, i = slices
            stage, batch = eqx.combine(part, static), eqx.combine(x, constant)
            y, _ = Scope(key, path).enter(0, stage, batch, state=None, index=i)
            y = as_arrays(y)
            check_output("sharding.pipelined", Scope(None, path), batch, y)
            return eqx.filter(y, eqx.is_array), None

        slices = layers, first + jnp.arange(local)
        body = with_remat(body, pipe.remat)
        return jax.lax.scan(body, x, slices, unroll=pipe.unroll)[0]

    def on_device(layers: PyTree, parts: PyTree, key: Key | None) -> PyTree:
        device = jax.lax.axis_index(axis)
        forward = [(d, d + 1) for d in range(devices - 1)]

        def tick(carried, t):
            received, outputs = carried
            number = t - device
            active = (number >= 0) & (number < count)
            # An idle tick takes any microbatch: its output is dropped.
            at = jnp.clip(number, 0, count - 1)
            part = _select(device == 0, _take(parts, at), received)
            part_key = None if key is None else jr.fold_in(key, at)
            # Not a select, which would also run the layers in idle ticks: for
            # placeholder inputs a normalisation layer has NaN gradients, which the sum
            # over ticks would include.
            y = jax.lax.cond(
                active,
                lambda part: layers_on(layers, part, part_key, device * local),
                _idle,
                part,
            )
            kept = _select(active, y, _take(outputs, at))
            outputs = jtu.tree_map(
                lambda o, v: jax.lax.dynamic_update_index_in_dim(o, v, at, 0),
                outputs,
                kept,
            )
            sent = jtu.tree_map(lambda v: jax.lax.ppermute(v, axis, forward), y)
            return (sent, outputs), None

        begin = _idle(_take(parts, 0)), _idle(parts)
        (_, outputs), _ = jax.lax.scan(tick, begin, jnp.arange(count + devices - 1))
        # Each device's outputs have an additional leading axis; only the last device's
        # are used.
        return jtu.tree_map(lambda o: o[None], outputs)

    # `check_vma` rejects loops whose carry begins as a constant, which are common in
    # users' layers; the specs here are correct without the check.
    mapped = jax.shard_map(
        on_device,
        mesh=mesh,
        in_specs=(P(axis), P(), P()),
        out_specs=P(axis),
        check_vma=False,
    )

    def split(leaf: Array) -> Array:
        return constrain_to(leaf, mesh, P()).reshape(count, -1, *leaf.shape[1:])

    def join(stacked: Array, leaf: Array) -> Array:
        if is_explicit(mesh):  # which cannot slice an axis that is split
            stacked = constrain_to(stacked, mesh, P())
        return stacked[-1].reshape(leaf.shape)

    layers = jtu.tree_map(lambda leaf: constrain_to(leaf, mesh, P(axis)), stacked)
    key = None if key is None else constrain_to(key, mesh, P())
    out = mapped(layers, jtu.tree_map(split, carry), key)
    return eqx.combine(jtu.tree_map(join, out, carry), constant)


def _idle(tree: PyTree) -> PyTree:
    return jtu.tree_map(lambda a: a if is_key_array(a) else jnp.zeros_like(a), tree)


def _take(tree: PyTree, i: object) -> PyTree:
    return jtu.tree_map(
        lambda leaf: jax.lax.dynamic_index_in_dim(leaf, i, 0, keepdims=False), tree
    )


def _select(which: Any, left: PyTree, right: PyTree) -> PyTree:
    return jtu.tree_map(lambda a, b: jax.lax.select_n(which, b, a), left, right)


def _check_batch(carry: PyTree, count: int) -> None:
    """Raise unless every array has the same leading size, a multiple of `count`."""
    cure = "The leading axis of every array is split into microbatches; values that "
    cure += "are the same for all belong in the stages."
    size = common_size("sharding.pipelined", "the input", carry, 0, cure)
    if size % count or not size:
        wrong = f"a batch of {size} does not split into {count} microbatches."
        cure = f"The nearest batch sizes that do: {fitting_sizes(size, count)}."
        raise value_error("sharding.pipelined", wrong, cure)


def pipelined(
    stack: Repeat,
    mesh: Mesh,
    microbatches: SupportsIndex,
    *,
    axis_name: str | None = None,
) -> Pipelined:
    """Spread the stages of a `repeat` over the devices of a mesh axis.

    Each of the axis's D devices holds n / D consecutive stages. The batch is split into
    microbatches, which pass from device to device, so the devices work on different
    microbatches at the same time (GPipe). The forward pass and the gradient are one
    program each. M microbatches take M + D - 1 ticks, so the devices are busy for M /
    (M + D - 1) of the time; an idle device does not run its stages. Devices along other
    axes of the mesh repeat the same work.

    Microbatch m has the random draws of `stack(part, key=fold_in(key, m))`.

    **Arguments:**

    - `stack`: a `repeat` of n stages, without `shared` and `broadcast`. Its stages
        take a batch: wrap stages for one example in `eqx_pipe.batched`. No stage may be
        stateful.
    - `mesh`: a `jax.sharding.Mesh`. The parameters are placed on it at once; on a
      `topology` they become types with shardings, which `program` compiles.
    - `microbatches`: the number M of microbatches into which the leading axis of the
        input is split, at least 1.
    - `axis_name`: the mesh axis; required if the mesh has several. (Keyword only.)

    **Returns:** a stage with the inputs and outputs of `stack`.

    **Shapes:** every array of the input has the same leading size, a multiple of
    `microbatches`; n is a multiple of D.

    **Raises:**

    - `ValueError` if sizes do not fit (the error names the nearest that do), if the
      axis is unknown, if a stage is stateful, or if `stack` has `broadcast`.
    - `StructureError` (a `ValueError`), when called, if a stage's output differs from
      its input in structure, shape or dtype.
    - `TypeError` if `stack` is not a `repeat`, or `mesh` is not a mesh.

    **Laws:** it equals `stack` up to rounding, in values and gradients, if the stages
    treat every entry of the batch independently.

    !!! example

        >>> import equinox as eqx, eqx_pipe as ep, jax, jax.numpy as jnp, numpy as np
        >>> make = lambda key: ep.batched(eqx.nn.Linear(3, 3, key=key))
        >>> stack = ep.repeat(make, 8, key=jax.random.key(0))
        >>> mesh = jax.make_mesh((len(jax.devices()),), ("stages",))
        >>> pipe, x = ep.sharding.pipelined(stack, mesh, 4), jnp.ones((16, 3))
        >>> np.testing.assert_allclose(pipe(x), stack(x), atol=1e-5)

    ??? cite "Source"

        Huang et al., *GPipe: Efficient Training of Giant Neural Networks using Pipeline
        Parallelism*, 2019, arXiv 1811.06965. Unlike there, activations are kept and not
        recomputed, unless `stack` has `remat=True`.
    """
    cure = "Give what `eqx_pipe.repeat(make, n, key=key)` returns."
    check_is("sharding.pipelined", "stack", stack, Repeat, cure)
    if stack.broadcast:
        wrong = f"`stack` broadcasts entries of its input: {quoted(stack.broadcast)}."
        cure = "Have each stage return the whole mapping, whose entries then travel "
        cure += "with the microbatch, and leave `broadcast` out."
        raise value_error("sharding.pipelined", wrong, cure)
    check_mesh("sharding.pipelined", mesh)
    check_int("sharding.pipelined", "microbatches", microbatches, 1)
    axis = _axis(mesh, axis_name)
    if is_stateful(stack):
        wrong = "a stage of `stack` is stateful; its state would see one microbatch "
        wrong += "after the other."
        cure = "Use layers without state, `equinox.nn.GroupNorm` for instance."
        raise value_error("sharding.pipelined", wrong, cure)
    n, devices = len(stack), mesh.shape[axis]
    if n % devices or n == 0:
        wrong = f"{n} stages do not spread over the {devices} devices of the mesh axis "
        wrong += f"`{axis}`."
        cure = f"The nearest numbers of stages that do: {fitting_sizes(n, devices)}."
        raise value_error("sharding.pipelined", wrong, cure)
    # Automatic axes, which `grad` outside `jit` needs: explicit axes would be part of
    # the types of all values computed from the parameters.
    auto = with_types(mesh, AxisType.Auto)
    stages = shard(stack.stages, auto, P(axis))
    size = microbatches.__index__()
    return Pipelined(stages, n, mesh, axis, size, stack.remat, stack.unroll)


def _axis(mesh: Mesh, axis_name: Hashable | None) -> Hashable:
    """Return the name of the axis; it need not be given if the mesh has only one."""
    names = mesh.axis_names
    axis = names[0] if axis_name is None and len(names) == 1 else axis_name
    check_choice("sharding.pipelined", "axis_name", axis, names)
    return axis
