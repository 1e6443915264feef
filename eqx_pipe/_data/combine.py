"""Sources made of other sources: mixtures and windows."""

import functools as ft
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Literal, SupportsIndex, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Int, Integer, UInt32

from .._check import check_choice, check_int, check_is
from .._errors import describe_value, structure_error, value_error
from .._tree import differences
from .._types import PyTree
from .source import (
    MOST_ON_DEVICE,
    MOST_RECORDS,
    CopiedToHost,
    DeviceSource,
    HostRecords,
    HostSource,
    Source,
    SourceLike,
    as_source,
)

# The pattern is a constant of the program. A share is off by less than one slot.
_LONGEST = 1024

Shares: TypeAlias = tuple[int, ...]
"""The number of slots of each source in the pattern, which repeats."""

WeightsLike: TypeAlias = Sequence[float | int] | np.ndarray | Array
"""One positive number for each source."""


class Mixture(DeviceSource):
    """Sources on the device as one; see `mixture`."""

    sources: tuple[DeviceSource, ...]
    shares: Shares = eqx.field(static=True)
    size: int = eqx.field(static=True)

    def __len__(self) -> int:
        return self.size

    def take(self, indices: UInt32[Array, " n"]) -> PyTree:
        chosen, inner = _inside(self.shares, indices, jnp)

        def select(mine: Array, yes: PyTree, no: PyTree) -> PyTree:
            return jtu.tree_map(lambda a, b: jax.vmap(jnp.where)(mine, a, b), yes, no)

        result = None
        for k, source in enumerate(self.sources):
            mine = chosen == k
            # Each source reads a whole batch, since shapes must be static; record 0
            # stands in for records of other sources.
            at = jnp.where(mine, inner % np.uint32(len(source)), np.uint32(0))
            records = source.take(at)
            result = records if result is None else select(mine, records, result)
        return result


class HostMixture(HostRecords):
    """A mixture with at least one source on the host; see `mixture`."""

    def __init__(self, sources: Sequence[HostSource], shares: Shares, size: int):
        self.sources: tuple[HostSource, ...] = tuple(sources)
        self.shares: Shares = shares
        self.size: int = size
        self.thread_safe: bool = all(source.threads > 1 for source in self.sources)

    def __len__(self) -> int:
        return self.size

    def take(self, indices: Integer[np.ndarray, " n"]) -> PyTree:
        chosen, inner = _inside(self.shares, indices.astype(np.uint64), np)
        structs, structure = jtu.tree_flatten(self.sources[0].struct())
        result = [np.empty((len(indices), *s.shape), s.dtype) for s in structs]
        for k, source in enumerate(self.sources):
            mine = chosen == k
            if mine.any():
                records = source.read(inner[mine] % np.uint64(len(source)))
                for to, leaf in zip(result, jtu.tree_leaves(records), strict=True):
                    to[mine] = leaf
        return jtu.tree_unflatten(structure, result)


def mixture(
    sources: Sequence[SourceLike],
    weights: WeightsLike | None = None,
    *,
    until: Literal["first_exhausted", "all_exhausted"] = "first_exhausted",
) -> Mixture | HostMixture:
    """Mix sources in fixed proportions.

    The sources alternate in a fixed pattern that spreads each source evenly by its
    weight, and the records of each source come in order, so record `i` of the mixture
    is found in constant time. For a random order, let the `Loader` shuffle.

    **Arguments:**

    - `sources`: one or more sources whose records agree in structure, shapes and
        dtypes. If all sources are on the device, so is the mixture, up to 2^31 - 1
        records.
    - `weights`: one positive number for each source; only their ratios matter. Shares
        that are not simple fractions are rounded to 1,024ths. By default all weights
        are equal.
    - `until`: the end of the mixture: `"first_exhausted"`, before the first source
        would have to repeat itself; `"all_exhausted"`, when every record of every
        source has appeared, with repeated records of the shorter sources. (Keyword
        only.)

    **Returns:** a source, for `Loader` and for further `mixture` and `windows`.

    **Raises:**

    - `TypeError` if `sources` is not a list of sources; `ValueError` if it is empty.
    - `StructureError` (a `ValueError`) if records differ in structure, shapes or
      dtypes.
    - `ValueError` if there is not one positive weight for each source, a weight is too
      small for a share, or `until` is unknown.

    !!! example

        >>> import eqx_pipe as ep, jax.numpy as jnp
        >>> a = ep.data.ArraySource(jnp.arange(6))
        >>> b = ep.data.ArraySource(10 + jnp.arange(6))
        >>> both = ep.data.mixture([a, b], weights=[2, 1])
        >>> [both[i].item() for i in range(len(both))]
        [0, 10, 1, 2, 11, 3, 4, 12, 5]
    """
    cure = "Give a list of sources, at least one."
    check_is("data.mixture", "sources", sources, Sequence, cure)
    if not sources:
        raise value_error("data.mixture", "`sources` is empty.", cure)
    ends = ("first_exhausted", "all_exhausted")
    check_choice("data.mixture", "until", until, ends)
    known = [
        as_source("data.mixture", f"sources[{i}]", s) for i, s in enumerate(sources)
    ]
    _check_schemas(known)
    shares = _shares_of(_check_weights(weights, len(known)))
    size = _size([len(source) for source in known], shares, until == ends[0])
    if size > MOST_RECORDS:
        raise value_error(
            "data.mixture",
            f"the mixture has {size} records, and there can be 2^62.",
            'Mix smaller sources, or end with `until="first_exhausted"`.',
        )
    on_device = tuple(source for source in known if isinstance(source, DeviceSource))
    if len(on_device) == len(known) and size <= MOST_ON_DEVICE:
        return Mixture(on_device, shares, size)
    on_host = [
        s if isinstance(s, HostSource) else HostSource(CopiedToHost(s)) for s in known
    ]
    return HostMixture(on_host, shares, size)


# Called for each batch that comes from the host.
@ft.cache
def pattern(shares: Shares) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
    """Return the source of each slot, and the number of its earlier slots."""
    counts, which, rank = [0] * len(shares), [], []
    for slot in range(sum(shares)):
        # The source that is furthest behind its share.
        due = zip(shares, counts, strict=True)
        behind = [s * (slot + 1) - sum(shares) * g for s, g in due]
        k = behind.index(max(behind))
        which.append(k)
        rank.append(counts[k])
        counts[k] += 1
    return np.asarray(which, np.int32), np.asarray(rank, np.int32)


def _inside(shares: Shares, indices: Any, xp: ModuleType) -> tuple[Any, Any]:
    """Return the source of each record, and its index there, before wrapping."""
    number = indices.dtype.type
    which, rank = (xp.asarray(x) for x in pattern(shares))
    slot = (indices % number(sum(shares))).astype(np.int32)
    chosen = which[slot]
    turns = indices // number(sum(shares)) * xp.asarray(shares, number)[chosen]
    return chosen, turns + rank[slot].astype(number)


def _shares_of(weights: np.ndarray) -> Shares:
    """Return the smallest integers in the ratio of the weights."""
    exact = weights / weights.sum()
    for period in range(len(weights), _LONGEST + 1):
        rounded = np.rint(exact * period)
        # A tolerance, since weights such as 1/3 are rounded already.
        near = np.abs(rounded - exact * period).max() < 1e-6
        if near and rounded.sum() == period and rounded.min() > 0:
            return tuple(rounded.astype(int).tolist())
    shares = np.floor(exact * _LONGEST)
    left = _LONGEST - int(shares.sum())
    shares[np.argsort(shares - exact * _LONGEST, kind="stable")[:left]] += 1
    if shares.min() == 0:
        k = int(shares.argmin())
        raise value_error(
            "data.mixture",
            f"`weights[{k}]` gives `sources[{k}]` a share of {exact[k]:.2g}, less than "
            f"1 in {_LONGEST} records.",
            "Give it a larger weight, or first mix several rare sources into one.",
        )
    return tuple(shares.astype(int).tolist())


def _size(sizes: list[int], shares: Shares, first: bool) -> int:
    """Return the size of a mixture that ends with the first source, or with all."""
    which, _ = pattern(shares)
    period = sum(shares)

    def slot_of(k: int, number: int) -> int:
        """Return the position in the mixture of a record of a source."""
        slots = np.flatnonzero(which == k)
        return number // shares[k] * period + int(slots[number % shares[k]])

    if first:
        return min(slot_of(k, size) for k, size in enumerate(sizes))
    return max(slot_of(k, size - 1) + 1 for k, size in enumerate(sizes))


def _check_weights(weights: WeightsLike | None, count: int) -> np.ndarray:
    try:
        numbers = np.ones(count) if weights is None else np.asarray(weights, np.float64)
    except (TypeError, ValueError):
        numbers = np.empty(0)
    if numbers.shape != (count,) or not (np.isfinite(numbers) & (numbers > 0)).all():
        raise value_error(
            "data.mixture",
            f"`weights` is {describe_value(weights)}, for {count} sources.",
            "Give one positive number for each source.",
        )
    return numbers


def _check_schemas(sources: list[Source]) -> None:
    for i, source in enumerate(sources):
        if len(source) == 0:
            raise value_error(
                "data.mixture", f"`sources[{i}]` is empty.", "Leave it out."
            )
        lines = differences(sources[0].struct(), source.struct())
        if lines:
            raise structure_error(
                "data.mixture",
                f"the records of `sources[0]` and `sources[{i}]` differ: "
                f"{'; '.join(lines)}.",
                "Bring them into one form first.",
            )


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
