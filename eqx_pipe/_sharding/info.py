"""A table of where the arrays of a pytree live."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from .._tree import leaves_with_names
from .._types import PyTree
from .leaves import is_placeable

HEAD = ("path", "shape", "dtype", "spec", "devices", "bytes per device")


class LeafInfo(NamedTuple):
    """Where one array lives.

    `spec` is its `PartitionSpec`; `None` if the array has none, as on the host or on a
    single device. `bytes_per_device` is the size of its largest shard, in bytes.
    `where` is "unknown" for what has no place: shapes, and arrays while tracing.
    """

    path: str
    shape: tuple[int, ...]
    dtype: Any  # `numpy.dtype`, or JAX's own for keys, which has no public class
    spec: P | None
    bytes_per_device: int
    devices: int
    where: str = ""


class ShardingInfo(Mapping[str, LeafInfo]):
    """What `info` returns: a mapping from path to `LeafInfo`."""

    def __init__(self, rows: dict[str, LeafInfo]):
        self._rows = rows

    def __getitem__(self, path: str) -> LeafInfo:
        return self._rows[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def bytes_per_device(self) -> int:
        """The bytes of all arrays on the device that holds most, at most."""
        return sum(row.bytes_per_device for row in self._rows.values())

    def _cells(self) -> list[tuple[str, ...]]:
        """The table as text: its head, a line for each array, the total."""
        lines: list[tuple[str, ...]] = [HEAD]
        for row in self._rows.values():
            spec = "-" if row.spec is None else row.spec
            spec = (row.where or "host") if row.devices == 0 else spec
            shape = f"({', '.join(map(str, row.shape))})"
            numbers = str(row.devices), f"{row.bytes_per_device:,}"
            lines.append((row.path or ".", shape, str(row.dtype), str(spec), *numbers))
        lines.append(("total", "", "", "", "", f"{self.bytes_per_device:,}"))
        return lines

    def __repr__(self) -> str:
        lines = self._cells()
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        shown = []
        for line in lines:
            cells = zip(line, widths, range(6), strict=True)
            text = (c.rjust(w) if i > 3 else c.ljust(w) for c, w, i in cells)
            shown.append("  ".join(text).rstrip())
        return "\n".join(shown)


def info(tree: PyTree) -> ShardingInfo:
    """Tells for each array of a pytree how it is split, and what that costs.

    **Arguments:**

    - `tree`: a pytree of arrays, of JAX or NumPy, or `jax.ShapeDtypeStruct`s; other
        leaves are left out.

    **Returns:** a mapping from each array's path to its `path`, `shape`, `dtype`,
    `spec`, `bytes_per_device` and number of `devices` (0 on the host). It prints as a
    table.

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
    leaves = {n: x for n, x in leaves_with_names(tree) if is_placeable(x)}
    return ShardingInfo({n: _row(n, x) for n, x in leaves.items()})


def _row(name: str, leaf: Any) -> LeafInfo:
    sharding, where = _sharding(leaf)
    spec = sharding.spec if isinstance(sharding, NamedSharding) else None
    shape = tuple(leaf.shape)
    part = shape if sharding is None else sharding.shard_shape(shape)
    size = math.prod(part) * leaf.dtype.itemsize
    devices = 0
    if isinstance(sharding, NamedSharding):
        devices = sharding.mesh.size  # also where the mesh is known by its shape alone
    elif sharding is not None:
        devices = sharding.num_devices
    return LeafInfo(name, shape, leaf.dtype, spec, size, devices, where)


def _sharding(leaf: Any) -> tuple[Any, str]:
    """The sharding of an array if it has one, and what to say if not."""
    if isinstance(leaf, np.ndarray | np.generic):
        return None, "host"
    if isinstance(leaf, Tracer):
        # Known from the type on explicit axes; else the compiler decides it later.
        sharding = jax.typeof(leaf).sharding
        known = AxisType.Explicit in sharding.mesh.axis_types
        return (sharding, "") if known else (None, "unknown")
    sharding = getattr(leaf, "sharding", None)
    return sharding, "unknown" if sharding is None else ""
