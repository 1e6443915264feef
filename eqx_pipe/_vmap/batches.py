"""Batches of lanes: the loops over them of sweeps and `vmap`, and the map over devices.

`vmap` has a loop of its own (`in_batches`), because reverse mode through a loop that
writes into buffers (`filled`) costs 1.6 times the memory of one that stacks its
outputs. A loop that stacks has a fixed length, but the number of batches of a sweep is
data: XLA removes a loop of fixed length if there is one batch, and the same point then
rounds differently.
"""

import functools as ft
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import AbstractMesh, AxisType, Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, UInt32

from .._jaxprs import Entry, register
from .._tree import broadcast_mask
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


# Where lanes do not fill the last batch, the first lanes are computed again, and the
# outputs of these copies are dropped. In reverse mode a dropped output would get the
# cotangent zero, and 0 * inf is NaN where `jax.vmap` has inf. Copies have equal
# tangents, so the derivative of dropping may add any small part of them: a copy gets a
# small part of its lane's cotangent, which is lost in rounding unless the derivative is
# infinite.
First: TypeAlias = Bool[Array, " lanes"]
"""False for the copies among lanes."""

Step: TypeAlias = Callable[[PyTree, list[Any], First | None], tuple[PyTree, PyTree]]
"""Returns the carry after a batch, and its outputs, with lanes along their axis 0.

It gets the carry, the arrays of the batch, and which lanes are first copies (`None` if
all are).
"""


def in_batches(
    step: Step, init: PyTree, lanes: list[Any], batch_size: int, *, remat: bool = True
) -> tuple[PyTree, PyTree]:
    """Return the last carry, and the outputs of all lanes.

    `lanes` are arrays with lanes along axis 0, at least one. With `remat`, reverse mode
    computes a batch again, so it keeps nothing but the carries.
    """
    size = len(lanes[0])
    count = -(-size // batch_size)
    if count == 1:
        return step(init, lanes, None)
    total, first = count * batch_size, None
    if total > size:
        copies, rest = divmod(total, size)
        lanes = [jnp.concatenate([*[x] * copies, x[:rest]]) for x in lanes]
        first = np.arange(total) < size
    rows, first = jtu.tree_map(
        lambda x: x.reshape(count, batch_size, *x.shape[1:]), (lanes, first)
    )

    def body(carry: PyTree, xs: Any) -> tuple[PyTree, PyTree]:
        return step(carry, *xs)

    # A scan keeps the compiler from merging the two computations of a batch.
    body = jax.checkpoint(body, prevent_cse=False) if remat else body
    carry, outputs = jax.lax.scan(body, init, (rows, first))
    return carry, jtu.tree_map(
        lambda y: first_copies(y.reshape(total, *y.shape[2:]), size), outputs
    )


def first_copies(y: Any, size: int) -> Any:
    """Return the outputs of the first copies, without those of the others."""
    if len(y) == size:
        return y
    return _first_copies(y, size) if _varies(y) else y[:size]


def _varies(y: Any) -> bool:
    return jnp.issubdtype(y.dtype, jnp.inexact)


@ft.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _first_copies(y: Array, size: int) -> Array:
    return y[:size]


@_first_copies.defjvp
def _(size: int, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (y,), (dy,) = primals, tangents
    total = dy[:size]
    for k in range(size, len(dy), size):
        part = dy[k : k + size]
        total = total.at[: len(part)].add(_shares(part, False))
    return y[:size], total


def _shares(y: Array, first: Any) -> Array:
    """Return first copies, and a small part of others."""
    # Two parts multiply if there are copies among devices and among batches.
    small = {"float16": 2.0**-12, "float64": 2.0**-128}
    share = small.get(jnp.finfo(y.dtype).dtype.name, 2.0**-48)
    first = jnp.asarray(first)
    first = jnp.expand_dims(first, range(first.ndim, y.ndim))
    return jnp.where(first, y, y * np.asarray(share, y.dtype))


def summed(y: Array, first: First | None) -> Array:
    """Return the sum over the lanes, of first copies alone."""
    if first is None:
        return jnp.sum(y, axis=0)
    return _summed(y, first) if _varies(y) else _sum_of_first(y, first)


def _sum_of_first(y: Array, first: First) -> Array:
    return jnp.sum(jnp.where(broadcast_mask(first, y), y, jnp.zeros_like(y)), axis=0)


@jax.custom_jvp
def _summed(y: Array, first: First) -> Array:
    return _sum_of_first(y, first)


@_summed.defjvp
def _(primals: tuple[Array, Array], tangents: tuple[Any, Any]) -> tuple[Array, Array]:
    y, first = primals
    return _sum_of_first(y, first), jnp.sum(_shares(tangents[0], first), axis=0)


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
