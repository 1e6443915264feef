"""A batch of lanes, a sweep's loop over batches, and the map over devices.

`vmap` has another loop, because reverse mode through a loop that writes into buffers
costs 1.6 times the memory of one that stacks its outputs. A loop that stacks has a
fixed length, but the number of batches of a sweep is data: XLA removes a loop of fixed
length if there is one batch, and the same point then rounds differently.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import AbstractMesh, AxisType, Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, UInt32

from .._jaxprs import Entry, register
from .._types import Device, PyTree


def batch_of(lane: Callable[[Any], PyTree], ids: Any) -> PyTree:
    """Return a lane's outputs at each row of `ids`, vectorised if there are several.

    Under `jax.vmap` both branches of a `cond` run, a loop runs its body for finished
    lanes, and a callback whose arguments do not differ runs once for all lanes. A
    single row is computed without `vmap`.
    """
    if len(jtu.tree_leaves(ids)[0]) > 1:
        return jax.vmap(lane)(ids)
    # A constant output is a literal of JAX, not an array.
    out = lane(jtu.tree_map(lambda x: x[0], ids))
    return jtu.tree_map(lambda leaf: jnp.expand_dims(leaf, 0), out)


def filled(
    batch: Callable[[UInt32[Array, ""]], list[Array]],
    count: Callable[[], UInt32[Array, ""]],
    buffers: list[Array],
    at: Callable[[UInt32[Array, ""]], UInt32[Array, ""]],
) -> list[Array]:
    """Fill `buffers` with the rows of `batch(0)`, ..., `batch(count() - 1)`.

    `at(number)` is the first row of a batch. `count` and `at` read data within the
    loop, where XLA fuses it with other steps.
    """

    def step(state: tuple[Any, list[Array]]) -> tuple[Any, list[Array]]:
        number, buffers = state
        into, rows = at(number), batch(number)
        written = [_put(b, r, into) for b, r in zip(buffers, rows, strict=True)]
        return jax.lax.add(number, np.uint32(1)), written

    def goes_on(state: tuple[Any, list[Array]]) -> Array:
        return jax.lax.lt(state[0], count())

    return jax.lax.while_loop(goes_on, step, (np.uint32(0), buffers))[1]


def _put(buffer: Array, rows: Array, at: UInt32[Array, ""]) -> Array:
    # Use an unsigned index, since JAX counts negative ones from the end.
    origin = [np.uint32(0)] * (buffer.ndim - 1)
    return jax.lax.dynamic_update_slice(buffer, rows, (at, *origin))


_POINTS = "eqx_pipe_points"


def flat_mesh(devices: Sequence[Device] | np.ndarray) -> Mesh:
    """Return an internal mesh, with one automatic axis, over some devices."""
    return Mesh(np.ravel(devices), (_POINTS,), axis_types=(AxisType.Auto,))


def over_devices(
    on_device: Callable[..., Any],
    mesh: Mesh | AbstractMesh,
    split: Sequence[bool],
    *,
    leave_mesh: bool = True,
) -> Callable[..., Any]:
    """Return a function that every device runs by itself.

    `split` is true for each argument of `on_device` of which a device gets its part,
    and false for arguments that it gets whole. Outputs are concatenated in the order of
    the devices. With `leave_mesh`, the types of arrays within it do not name the mesh.
    """
    part = P(mesh.axis_names)
    # `check_vma` rejects ordinary user loops whose initial carry is constant. Without
    # it a wrong `out_specs` would go unnoticed, but these are internal and tested.
    specs = tuple(part if is_split else P() for is_split in split)
    run = _without_mesh(on_device) if leave_mesh else on_device
    return jax.shard_map(
        run, mesh=mesh, in_specs=specs, out_specs=part, check_vma=False
    )


def is_on_device() -> bool:
    """Return whether an `over_devices` on a `flat_mesh` is being traced."""
    try:
        jax.lax.axis_index(_POINTS)
    except NameError:  # JAX has no public function for this
        return False
    return True


# Inside `shard_map` the type of every array names the mesh. Libraries that record the
# types of a function when they trace it, and compare them later, then see different
# types: lineax rejects a vector of the right shape ("does not match out_structure"),
# and Equinox's `filter_closure_convert` rejects its own arguments. No code here needs
# other devices, so the mesh is removed from the types, and functions run as under
# `vmap` alone.
#
# The primitive is the identity. JAX has no public function that gives an array inside a
# `shard_map` the type that it has outside (`reshard` is for axes that are not manual).
_leave_p = Primitive("eqx_pipe_leave_mesh")
register(_leave_p.name, Entry("operation"))
_leave_p.def_impl(lambda x: x)
_leave_p.def_abstract_eval(
    lambda x: ShapedArray(x.shape, x.dtype, weak_type=x.weak_type)
)
mlir.register_lowering(_leave_p, lambda _, x: [x])
ad.deflinear(_leave_p, lambda cotangent: [cotangent])
batching.defvectorized(_leave_p)


def _without_mesh(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` such that the types of arrays inside do not name the mesh."""

    def run(*args: Any) -> Any:
        with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
            return function(*jtu.tree_map(_leave_p.bind, args))

    return run
