"""Windows of a source, each as one record."""

from typing import SupportsIndex

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Integer, UInt32

from .._check import check_int
from .._errors import value_error
from .._types import PyTree
from .device_source import DeviceSource
from .host_source import HostSource, SourceLike, as_source
from .records import HostRecords


class Windows(DeviceSource):
    """Windows of a source on the device; see `windows`."""

    source: DeviceSource
    width: int = eqx.field(static=True)
    stride: int = eqx.field(static=True)

    def __len__(self) -> int:
        return (len(self.source) - self.width) // self.stride + 1

    def take(self, indices: UInt32[Array, " n"]) -> PyTree:
        first = indices * np.uint32(self.stride)
        at = first[:, None] + jnp.arange(self.width, dtype=np.uint32)[None]
        return _split(self.source.take(at.reshape(-1)), self.width)


class HostWindows(HostRecords):
    """Windows of a host source; see `windows`."""

    def __init__(self, source: HostSource, width: int, stride: int):
        self.source: HostSource = source
        self.width: int = width
        self.stride: int = stride
        self.thread_safe: bool = source.threads > 1

    def __len__(self) -> int:
        return (len(self.source) - self.width) // self.stride + 1

    def take(self, indices: Integer[np.ndarray, " n"]) -> PyTree:
        first = indices.astype(np.int64) * self.stride
        at = first[:, None] + np.arange(self.width)
        return _split(self.source.read(at.reshape(-1)), self.width)


def _split(records: PyTree, width: int) -> PyTree:
    """Reshape records into windows of a width."""
    return jtu.tree_map(lambda leaf: leaf.reshape(-1, width, *leaf.shape[1:]), records)


def windows(
    source: SourceLike, size: SupportsIndex, stride: SupportsIndex = 1
) -> Windows | HostWindows:
    """Cut a source into windows of equal length, each as one record.

    Record `i` holds the records `i * stride` to `i * stride + size - 1` of the source,
    stacked along a leading axis; windows may overlap. Records at the end that do not
    fill a window are left out. Nothing is copied in advance.

    **Arguments:**

    - `source`: a source, such as the tokens of a long text.
    - `size`: the number of records in a window, at least 1.
    - `stride`: the distance between the beginnings of two neighbouring windows, at
        least 1.

    **Returns:** a source, for `Loader` and for further `mixture` and `windows`.

    **Shapes:** leaves `(*a,)` of a record become `(size, *a)`.

    **Raises:** `ValueError` if the source is shorter than a window, or `size` or
    `stride` is below 1; `TypeError` if one of these is not an integer, or `source` is
    not a source.

    !!! example

        >>> import eqx_pipe as ep, jax.numpy as jnp
        >>> text = ep.data.windows(ep.data.ArraySource(jnp.arange(8)), size=4, stride=2)
        >>> len(text), text[1].tolist()
        (3, [2, 3, 4, 5])
    """
    known = as_source("data.windows", "source", source)
    check_int("data.windows", "size", size, 1)
    check_int("data.windows", "stride", stride, 1)
    size, stride = size.__index__(), stride.__index__()
    if len(known) < size:
        raise value_error(
            "data.windows",
            f"`size` is {size}, and the source has {len(known)} records.",
            "Give a smaller size or a longer source.",
        )
    # A longer stride also gives one window, but may not fit into the index's dtype.
    stride = min(stride, len(known))
    if isinstance(known, DeviceSource):
        return Windows(known, size, stride)
    return HostWindows(known, size, stride)
