"""`Loader`: batches of a source."""

from collections.abc import Callable
from typing import SupportsIndex, TypeVar

import equinox as eqx
import numpy as np
from jax.sharding import NamedSharding

from .._check import check_bool, check_callable, check_int
from .._errors import type_error, value_error
from .._stage import as_stage, identity, is_stateful
from .._types import Key, PyTree, StageLike
from .batch import check_divides, next_on_device, next_on_host, scan_batches
from .cursor import (
    Cursor,
    check_concrete,
    check_cursor,
    check_last_epoch,
    start,
)
from .device_source import DeviceSource, Source, SourceLike, as_source
from .epoch import Epoch
from .host_source import schema_of
from .placement import check_sharding, source_on_mesh, without_users_mesh

_Carry = TypeVar("_Carry")


class Loader(eqx.Module):
    """Batches of records, with order and random draws determined by a cursor.

    A loader is immutable, like a pipeline: it holds no position. `init` returns the
    first `Cursor`, and `next`, `epoch` and `scan` continue from a cursor.

    An epoch has every record exactly once, except for those that `drop_remainder`
    skips. With `shuffle`, each epoch has a different permutation, which is computed as
    needed and never stored. The random draws of `pipe` for a record depend on the key,
    the epoch, and the record's index in the source: not on the batch size, the order,
    the number of hosts, or the position at which the run was resumed.

    **Arguments:**

    - `source`: an `ArraySource`, `mixture` or `windows` on the device; or a host
        source: a NumPy array or memory map, an array of a Zarr or HDF5 file, or a
        dictionary or tuple of these; or anything with `__len__` and `__getitem__` (a
        Grain `MapDataset`, a Hugging Face dataset, a list of records).
    - `pipe`: a stage from one record to another. It runs on the device, under `vmap`,
        for host sources too.
    - `batch_pipe`: a stage from batch to batch, after `pipe`. Its random draws depend
        on the key, the epoch, and the position in the epoch of the batch's first
        record. (Keyword only, as are all following arguments.)
    - `batch_size`: the number of records in a batch.
    - `shuffle`: whether each epoch has its own random order, instead of the source's.
    - `drop_remainder`: whether the records after the last full batch are left out.
    - `sharding`: a `jax.sharding.NamedSharding` for batches. With several processes,
        each reads only the records of its own devices. The spec is truncated to the
        rank of each array.

    **Returns:** a loader. `len(loader)` is the number of batches of an epoch.

    **Raises:**

    - `TypeError` if `source` is not a source, `pipe` or `batch_pipe` is not a stage, or
      another argument has the wrong type.
    - `ValueError` if the source is empty; the batch size is below 1, is larger than the
      source with `drop_remainder`, or is not divisible by the number of devices that
      split it; `sharding` does not divide another axis of a batch; or a stage is
      stateful.

    **Laws:** the records of an epoch are those of the source; `scan` uses the same
    records and random keys as a loop of `next`, and a resumed run the same as an
    uninterrupted one. The outputs of stages agree up to rounding.

    !!! example

        >>> import eqx_pipe as ep, jax, jax.numpy as jnp
        >>> source = ep.data.ArraySource({"x": jnp.arange(10.0), "y": jnp.arange(10)})
        >>> loader = ep.data.Loader(source, ep.at("x", jnp.sqrt), batch_size=4)
        >>> cursor = loader.init(jax.random.key(0))
        >>> [batch["y"].shape for batch in loader.epoch(cursor)]
        [(4,), (4,), (2,)]
    """

    source: Source
    pipe: StageLike
    batch_pipe: StageLike
    batch_size: int = eqx.field(static=True)
    shuffle: bool = eqx.field(static=True)
    drop_remainder: bool = eqx.field(static=True)
    sharding: NamedSharding | None = eqx.field(static=True)
    schema: int = eqx.field(static=True, repr=False)

    def __init__(
        self,
        source: SourceLike,
        pipe: StageLike = identity,
        *,
        batch_pipe: StageLike = identity,
        batch_size: SupportsIndex,
        shuffle: bool | np.bool_ = True,
        drop_remainder: bool | np.bool_ = False,
        sharding: NamedSharding | None = None,
    ):
        known = as_source("data.Loader", "source", source)
        check_int("data.Loader", "batch_size", batch_size, 1)
        check_bool("data.Loader", "shuffle", shuffle)
        check_bool("data.Loader", "drop_remainder", drop_remainder)
        size, shuffle = batch_size.__index__(), bool(shuffle)
        if len(known) == 0:
            wrong = "`source` is empty."
            raise value_error("data.Loader", wrong, "Give one with records.")
        if drop_remainder:
            _check_full("data.Loader", len(known), size)
        sharding = check_sharding(sharding, size)
        self.source = source_on_mesh(known, sharding)
        self.pipe = _as_stateless("pipe", pipe)
        self.batch_pipe = _as_stateless("batch_pipe", batch_pipe)
        self.batch_size, self.shuffle = size, shuffle
        self.drop_remainder, self.sharding = bool(drop_remainder), sharding
        self.schema = schema_of((known.struct(), shuffle))
        check_divides(self)

    @property
    def on_device(self) -> bool:
        """True if the source is on the device, where compiled programs can read it."""
        return isinstance(self.source, DeviceSource)

    def init(self, key: Key) -> Cursor:
        """Return the cursor at the beginning of the first epoch.

        **Arguments:**

        - `key`: a PRNG key. It determines the order of every epoch and all random
            draws.

        **Returns:** a cursor.

        **Raises:** `TypeError` if `key` is not a single PRNG key; `ValueError` if it is
        of the kind `rbg`, whose draws differ under `vmap`.
        """
        return start(key, len(self.source), self.schema)

    def next(self, cursor: Cursor) -> tuple[PyTree, Cursor]:
        """Return the next batch, always a full one, and the cursor after it.

        At the end of an epoch, a batch continues with the records of the next epoch;
        with `drop_remainder` it begins with the next epoch, and the remaining records
        are skipped. For a source on the device this is a pure function, which can be
        compiled: `equinox.filter_jit(loader.next)`.

        **Arguments:**

        - `cursor`: the position of the batch.

        **Returns:** the batch and the next cursor.

        **Raises:**

        - `ValueError` if the cursor was made for another source (not under `jit`), or
          the source has no full batch.
        - `TypeError` if the cursor is traced and the source is on the host.
        """
        _check_batches(self, "data.Loader.next", cursor, 1)
        with without_users_mesh(self.sharding):
            return (next_on_device if self.on_device else next_on_host)(self, cursor)

    def epoch(self, cursor: Cursor) -> Epoch:
        """Iterate over the remaining batches of the cursor's epoch.

        The last batch is shorter if the batch size does not divide the number of
        records; `drop_remainder` skips it. With `sharding`, a short batch that the
        devices do not divide evenly is not split along its leading axis, but copied to
        each device.

        The iterator's `.cursor` is the position after the last returned batch, to
        resume from. When the iterator is exhausted, it is the end of the epoch, and
        `epoch` continues from there with the next epoch. So a loop over epochs is

        ```python
        for _ in range(10):
            iterator = loader.epoch(cursor)
            for batch in iterator:
                ...
            cursor = iterator.cursor
        ```

        Threads read a few batches of a host source ahead. They end with the iterator,
        also when it is dropped before its end.

        **Arguments:**

        - `cursor`: the position of the first batch; for a whole epoch, the cursor of
            `init`, of `next_epoch`, or of the end of the previous epoch.

        **Returns:** an iterator over batches, with `.cursor`.

        **Raises:** as `next`.
        """
        check_cursor("data.Loader.epoch", cursor, len(self.source), self.schema)
        check_concrete("data.Loader.epoch", cursor)
        with without_users_mesh(self.sharding):
            return Epoch(self, cursor)

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        whole, rest = divmod(len(self.source), self.batch_size)
        return whole + (rest > 0 and not self.drop_remainder)

    def scan(
        self,
        step: Callable[[_Carry, PyTree], tuple[_Carry, PyTree]],
        carry: _Carry | complex,
        cursor: Cursor,
        length: SupportsIndex | None = None,
    ) -> tuple[_Carry, PyTree, Cursor]:
        """Run a step for each of many batches, in one compiled program.

        It equals this loop up to rounding, with the same records and random keys:

        ```python
        outputs = []
        for _ in range(length):
            batch, cursor = loader.next(cursor)
            carry, output = step(carry, batch)
            outputs.append(output)
        return carry, stack(outputs), cursor
        ```

        Successive calls skip no record: if the batch size does not divide the number of
        records, the next call begins with the remainder and ends in the next epoch.
        With `drop_remainder`, each call of the default length is one epoch.

        Outside `jit`, the program is compiled once for each function `step`, so define
        `step` once, not in each epoch. Gradients flow through it, to the parameters of
        `pipe` too.

        **Arguments:**

        - `step`: `step(carry, batch) -> (carry, output)`.
        - `carry`: any pytree. It may hold models and optimiser states. Python numbers
            outside of Modules become arrays; other leaves that are not arrays cannot
            change.
        - `cursor`: the position of the first batch.
        - `length`: the number of batches, by default the full batches of an epoch.

        **Returns:** the last carry, the outputs stacked along a leading axis, and the
        cursor after the last batch.

        **Raises:**

        - `StructureError` (a `ValueError`) if `step` changes the structure, shapes or
          dtypes of the carry.
        - `TypeError` if the source is on the host, or `step` is not a function.
        - `ValueError` if the cursor was made for another source, or the source has no
          full batch.

        !!! example

            >>> import eqx_pipe as ep, jax, jax.numpy as jnp
            >>> loader = ep.data.Loader(ep.data.ArraySource(jnp.arange(6.0)),
            ...     batch_size=2)
            >>> step = lambda total, batch: (total + batch.sum(), batch.mean())
            >>> cursor = loader.init(jax.random.key(0))
            >>> total, means, cursor = loader.scan(step, 0.0, cursor)
            >>> total.item(), means.shape
            (15.0, (3,))
        """
        cure = "Write `step(carry, batch) -> (carry, output)`."
        check_callable("data.Loader.scan", "step", step, cure)
        length = len(self.source) // self.batch_size if length is None else length
        check_int("data.Loader.scan", "length", length, 0)
        _check_batches(self, "data.Loader.scan", cursor, length.__index__())
        if not self.on_device:
            raise type_error(
                "data.Loader.scan",
                "the source is on the host, which a compiled program cannot read.",
                "Iterate over `epoch`, or put the data on the device: "
                "`ArraySource(arrays)`.",
            )
        return scan_batches(self, step, carry, cursor, length.__index__())


def _check_batches(loader: Loader, function: str, cursor: Cursor, batches: int) -> None:
    """Raise unless the source has full batches from the cursor on."""
    size, count = len(loader.source), loader.batch_size
    check_cursor(function, cursor, size, loader.schema)
    _check_full(function, size, count)
    used = size // count * count if loader.drop_remainder else size
    check_last_epoch(function, cursor, batches * count, used)


def _as_stateless(argument: str, stage: StageLike) -> StageLike:
    """Return a stage; raise if it is stateful."""
    stage = as_stage("data.Loader", argument, stage)
    if is_stateful(stage):
        raise value_error(
            "data.Loader",
            f"`{argument}` is stateful, and a loader keeps no state.",
            "Call the stage in the training step, which can carry its state.",
        )
    return stage


def _check_full(function: str, size: int, batch_size: int) -> None:
    """Raise a `ValueError` if a source of some size has no full batch."""
    if batch_size > size:
        raise value_error(
            function,
            f"`batch_size` is {batch_size}, and the source has {size} records: it has "
            "no full batch.",
            f"Give at most {size}, or use `epoch`, without `drop_remainder`.",
        )
