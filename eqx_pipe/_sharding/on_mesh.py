"""Stages that run on a set of devices of their own."""

import functools as ft

import equinox as eqx
import jax
import jax.tree_util as jtu
from jax.core import Tracer
from jax.sharding import AxisType, Mesh
from jaxtyping import Array

from .._errors import value_error
from .._jit import Static, arrays_in
from .._mesh_context import check_mesh, is_staged
from .._stage import Composite, Scope, as_stage
from .._types import AnyStage, MaybeState, Output, PyTree, StageLike
from .place import SpecsLike, shard, shard_as, with_types


class On(Composite):
    """A stage on a submesh; see `on`."""

    stage: AnyStage
    mesh: Mesh = eqx.field(static=True)
    # Not static: specs are leaves, and a dict of them has no hash.
    specs: SpecsLike

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        if is_staged():
            wrong = "it was called inside `jit` (or `scan`, or another function that "
            wrong += "is compiled): one program cannot span several sets of devices."
            cure = "Call it outside; each stage on a submesh is compiled by itself, "
            cure += "and `grad` and `vmap` may stand outside it. To spread layers "
            cure += "inside one program use `eqx_pipe.sharding.pipelined`."
            raise value_error("sharding.on", wrong, cure)
        x = shard_as("sharding.on", x, self.mesh, self.specs)
        state, key = shard((state, scope.key), self.mesh, None)
        inputs = _on_mesh(self.stage, self.mesh), x, state, key
        # Not `equinox.filter_jit`, which waits for the result: submeshes could not
        # overlap.
        arrays, static = _on_program(arrays_in(inputs), Static(inputs), scope.path)
        return static.filled(arrays)


@ft.partial(jax.jit, static_argnums=2)
def _on_program(
    arrays: list[Array], rest: Static, path: str
) -> tuple[list[Array], Static]:
    stage, x, state, key = rest.filled(arrays)
    out = Scope(key, path).enter("stage", stage, x, state=state)
    return arrays_in(out), Static(out)


def _on_mesh(stage: AnyStage, mesh: Mesh) -> AnyStage:
    """Move the arrays of a stage to the mesh, unless they are on it."""
    devices = set(mesh.devices.flat)

    def move(leaf: object) -> object:
        if isinstance(leaf, Tracer) or not isinstance(leaf, jax.Array):
            return leaf
        # JAX may move an uncommitted array from its default device.
        on_mesh = leaf.committed and leaf.sharding.device_set == devices
        return leaf if on_mesh else shard(leaf, mesh, None)

    return jtu.tree_map(move, stage)


def on(mesh: Mesh, stage: StageLike, *, specs: SpecsLike = None) -> On:
    """Run a stage on its own set of devices.

    The stage's parameters are placed on `mesh`, and the stage is compiled and run
    there. Each call moves its input, state and key to the mesh, so stages on different
    devices can follow each other in any pipeline. It is differentiable; gradients are
    on the devices of the parameters.

    Calls return before the result is computed. So while one submesh works on a
    microbatch, the next submesh works on the previous microbatch: loop over
    microbatches, and wait only at the end.

    **Arguments:**

    - `mesh`: a `jax.sharding.Mesh` of some of the devices.
    - `stage`: the stage. Its arrays that are on the mesh already (by `shard`) keep
        their sharding; others are copied to each device.
    - `specs`: the specs of the input on the mesh, as in `shard`; by default each device
        gets a copy. (Keyword only.)

    **Returns:** a stage. It must be called outside `jit`.

    **Raises:**

    - `ValueError` if called inside `jit`, or if the input does not fit `specs`.
    - `TypeError` if `stage` is not a stage, or `mesh` is not a mesh.

    **Laws:** it equals `stage`, in values and gradients, up to rounding.

    !!! example

        >>> import eqx_pipe as ep, jax, jax.numpy as jnp
        >>> from jax.sharding import Mesh
        >>> first = Mesh(jax.devices()[:1], ("x",))
        >>> last = Mesh(jax.devices()[-1:], ("x",))
        >>> pipe = ep.chain(ep.sharding.on(first, jnp.sin), ep.sharding.on(last,
        ...     jnp.sum))
        >>> y = pipe(jnp.arange(3.0))
        >>> round(y.item(), 3), y.devices() == set(last.devices.flat)
        (1.751, True)
    """
    check_mesh("sharding.on", mesh)
    child = as_stage("sharding.on", "stage", stage)
    # Automatic axes: arrays pass from mesh to mesh, so their types must not include
    # one.
    mesh = with_types(mesh, AxisType.Auto)
    return On(_on_mesh(child, mesh), mesh, specs)
