"""A table of the shardings of a pytree's arrays."""

import math
from typing import Any, NamedTuple

import jax
from jax.core import Tracer
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from .._mesh_context import is_explicit
from .._types import PyTree
from .mesh import Placeable, is_placeable
from .specs import path_leaves

_HEAD = ("path", "shape", "dtype", "spec", "devices", "bytes per device")


class LeafInfo(NamedTuple):
    """The sharding of one array.

    `spec` is its `PartitionSpec`; `None` if the array has none, as on the host, on a
    single device, or while tracing. `bytes_per_device` is the size of its largest
    shard, in bytes.
    """

    path: str
    shape: tuple[int, ...]
    dtype: Any  # `numpy.dtype`, or JAX's own for keys, which has no public class
    spec: P | None
    bytes_per_device: int
    devices: int

    def cells(self) -> tuple[str, ...]:
        """Return the row of the table as text."""
        spec = "-" if self.spec is None else str(self.spec)
        shape = f"({', '.join(map(str, self.shape))})"
        numbers = str(self.devices), f"{self.bytes_per_device:,}"
        path = self.path or "."
        return path, shape, str(self.dtype), spec, *numbers


class ShardingInfo(dict[str, LeafInfo]):
    """The result of `info`: a dict from path to `LeafInfo`, shown as a table."""

    @property
    def bytes_per_device(self) -> int:
        """An upper bound on the bytes that all arrays take on one device."""
        return sum(row.bytes_per_device for row in self.values())

    def __repr__(self) -> str:
        total = ("total", "", "", "", "", f"{self.bytes_per_device:,}")
        lines = [_HEAD, *(row.cells() for row in self.values()), total]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        # Text is aligned left, and the numbers of the last two columns right.
        sides = ["<"] * 4 + [">"] * 2

        def text(line: tuple[str, ...]) -> str:
            cells = zip(line, sides, widths, strict=True)
            return "  ".join(f"{c:{side}{width}}" for c, side, width in cells).rstrip()

        return "\n".join(map(text, lines))


def info(tree: PyTree) -> ShardingInfo:
    """Return the sharding, and the size on a device, of each array of a pytree.

    **Arguments:**

    - `tree`: a pytree of arrays, of JAX or NumPy, or `jax.ShapeDtypeStruct`s; other
        leaves are skipped.

    **Returns:** a dict from each array's path to its `path`, `shape`, `dtype`, `spec`,
    `bytes_per_device` and number of `devices` (0 on the host). It prints as a table.
    Paths are those of `eqx_pipe.trainable`, with `*` for the positions of stages that
    are stacked in one array: `blocks.*.mlp.weight`.

    **Units:** `bytes_per_device` is in bytes.

    !!! example

        >>> import eqx_pipe as ep, jax, jax.numpy as jnp
        >>> from jax.sharding import AxisType, Mesh, PartitionSpec as P
        >>> mesh = Mesh(jax.devices()[:1], ("data",))
        >>> ep.sharding.info(ep.sharding.shard({"x": jnp.ones((16, 3))}, mesh,
        ...     P("data")))
        path   shape    dtype    spec        devices  bytes per device
        x      (16, 3)  float32  P('data',)        1               192
        total                                                      192
    """
    leaves = [at for at in path_leaves(tree)[0] if is_placeable(at.leaf)]
    return ShardingInfo({at.name: _row(at.name, at.leaf) for at in leaves})


def _row(name: str, leaf: Placeable) -> LeafInfo:
    sharding = getattr(leaf, "sharding", None)
    if isinstance(leaf, Tracer):
        # Its type has explicit axes; the compiler decides on automatic ones later.
        sharding = jax.typeof(leaf).sharding
        sharding = sharding if is_explicit(sharding.mesh) else None
    spec = sharding.spec if isinstance(sharding, NamedSharding) else None
    part = leaf.shape if sharding is None else sharding.shard_shape(leaf.shape)
    size = math.prod(part) * leaf.dtype.itemsize
    devices = 0
    if isinstance(sharding, NamedSharding):
        devices = sharding.mesh.size  # also for an abstract mesh
    elif sharding is not None:
        devices = sharding.num_devices
    return LeafInfo(name, tuple(leaf.shape), leaf.dtype, spec, size, devices)
