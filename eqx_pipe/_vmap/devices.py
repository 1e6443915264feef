"""Each device by itself: a function mapped over devices that do not communicate."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.tree_util as jtu
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import AbstractMesh, AxisType, Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from .._errors import value_error
from .._jaxprs import Entry, register
from .._mesh_context import check_mesh
from .._types import Device

_POINTS = "eqx_pipe_points"


def local_devices(function: str, mesh: Mesh | None) -> tuple[Device, ...]:
    """Return the devices of `mesh`, or all of this process.

    Raises unless they all belong to this process.
    """
    if mesh is None:
        return tuple(jax.local_devices())
    check_mesh(function, mesh)
    devices = tuple(mesh.devices.flat)
    foreign = [d for d in devices if d.process_index != jax.process_index()]
    if foreign or not devices:
        raise value_error(
            function,
            f"`mesh` has {len(devices)} devices, {len(foreign)} of them of other "
            "processes.",
            "Give a mesh of this process's own devices: "
            "`jax.make_mesh((n,), ('x',), devices=jax.local_devices()[:n])`.",
        )
    return devices


def flat_mesh(devices: Sequence[Device] | np.ndarray) -> Mesh:
    """Return a mesh of our own, with one automatic axis, over some devices."""
    return Mesh(np.ravel(devices), (_POINTS,), axis_types=(AxisType.Auto,))


def over_devices(
    on_device: Callable[..., Any],
    mesh: Mesh,
    split: Sequence[bool],
    *,
    leave_mesh: bool = True,
) -> Callable[..., Any]:
    """Return a function that every device runs by itself.

    `split` says of each argument of `on_device` whether a device gets its part of it,
    or all. Outputs are put together in the order of the devices. With `leave_mesh` the
    types of arrays within it do not name the mesh.
    """
    own, same = P(mesh.axis_names), P()
    # `check_vma` rejects ordinary loops of the user's whose initial carry is constant.
    # Without it a wrong `out_specs` would go unnoticed: they are ours, and tested.
    return jax.shard_map(
        _without_mesh(on_device) if leave_mesh else on_device,
        mesh=mesh,
        in_specs=tuple(own if parted else same for parted in split),
        out_specs=own,
        check_vma=False,
    )


def by_device(out: Array) -> list[Array]:
    """Return each device's part of an output of `over_devices`, in their order."""
    # `.addressable_shards` works out places that are known here.
    return [out.addressable_data(k) for k in range(out.sharding.num_devices)]


# Inside `shard_map` the type of every array names the mesh. Libraries that note the
# types of a function when they trace it, and compare later, then see another type:
# lineax calls a vector of the right shape one that "does not match out_structure", and
# Equinox's `filter_closure_convert` refuses its own arguments. Nothing here looks
# beyond its device, so the mesh is taken out of the types, and functions run as under
# `vmap` alone.
#
# Its meaning is the identity. There is no public function that gives an array inside a
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
    """Return `function` of arrays, whose types inside of it do not name the mesh."""

    def run(*args: Any) -> Any:
        with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
            return function(*jtu.tree_map(_leave_p.bind, args))

    return run
