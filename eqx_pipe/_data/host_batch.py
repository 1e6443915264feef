"""Batches of a source on the host: read there, and made into a batch on the device.

A batch goes through once: its order, its records, the pipelines, the sharding.
"""

import dataclasses
import functools as ft

import jax.random as jr
import numpy as np
from jaxtyping import Array, UInt32, UInt64

from .._types import PyTree
from .cursor import Cursor, check_concrete, split
from .host_source import HostSource
from .layout import as_given, constrained, from_own_rows, own_rows, replicated
from .order import Selection, order_on_host, select_on_host
from .pipes import run_pipes
from .programs import arrays_of, pipes_of, program
from .settings import Pipes, Settings

_BLOCK = 8192
"""About how many places of the order are computed at once."""

_Ids = UInt64[np.ndarray, " n"]


def host_batch(
    loader: Settings, cursor: Cursor, selection: Selection, records: PyTree
) -> PyTree:
    """The batch of what `read` gave."""
    pipes = pipes_of(loader)
    run = program(pipes, _piped, cursor.kind)
    words = replicated(cursor.words, loader.sharding)
    batch = run(arrays_of(pipes), words, selection, records)
    return as_given(batch, loader.sharding, selection.ids.shape[-1])


def _piped(
    pipes: Pipes,
    impl: str,
    words: UInt32[Array, " words"],
    selection: Selection,
    records: PyTree,
) -> PyTree:
    key = jr.wrap_key_data(words, impl=impl)
    batch = run_pipes(pipes.pipe, pipes.batch_pipe, key, selection, records)
    return constrained(batch, pipes.sharding, selection.ids.shape[-1])


def read(
    loader: Settings, ids: _Ids, epoch: UInt32[np.ndarray, "..."], offset: int
) -> tuple[Selection, PyTree]:
    """A selection and its records, on the device; `offset` is the place of the first.

    Each process reads only the records of its own devices.
    """
    source, sharding, count = loader.source, loader.sharding, len(ids)
    assert isinstance(source, HostSource)
    rows = own_rows(sharding, count)
    records = source.read(ids[rows].tolist())
    selection = select_on_host(ids, epoch, offset, len(source))
    records = from_own_rows(records, sharding, count, rows)
    return replicated(selection, sharding), records


def next_on_host(loader: Settings, cursor: Cursor) -> tuple[PyTree, Cursor]:
    """The next full batch, and the cursor behind it."""
    check_concrete("Loader.next", cursor)
    size, left = len(loader.source), loader.batch_size
    epoch, start = cursor.epoch, cursor.position
    if start == size or (loader.drop_remainder and start + left > size):
        epoch, start = epoch + 1, 0
    offset, epochs, ids = start, [], []
    while left:
        if start == size:
            epoch, start = epoch + 1, 0
        stop = min(size, start + left)
        ids.append(_order(loader, cursor, epoch, start, stop))
        epochs += [epoch] * (stop - start)
        left, start = left - (stop - start), stop
    one = epochs[0] == epochs[-1]
    numbers = np.asarray(epochs[0] if one else epochs, np.uint32)
    found = read(loader, np.concatenate(ids), numbers, offset)
    after = dataclasses.replace(
        cursor, epochs=np.asarray(epoch, np.uint32), record=split(start)
    )
    return host_batch(loader, cursor, *found), after


class EpochReader:
    """Reads the batches of an epoch by their numbers, from any thread."""

    def __init__(self, loader: Settings, cursor: Cursor, end: int):
        self._loader, self._first, self._end = loader, cursor.position, end
        self._epoch = np.asarray(cursor.epochs, np.uint32)
        self._block = max(1, _BLOCK // loader.batch_size) * loader.batch_size
        order = ft.partial(_order, loader, cursor, cursor.epoch)
        # Several threads may want the same block, or one and its neighbour.
        self._order = ft.lru_cache(2)(order)

    def __len__(self) -> int:
        return -(-(self._end - self._first) // self._loader.batch_size)

    def __call__(self, index: int) -> tuple[Selection, PyTree]:
        size = self._loader.batch_size
        at = index * size
        inside = at % self._block
        start = self._first + at - inside
        ids = self._order(start, min(self._end, start + self._block))
        ids = ids[inside : inside + size]
        return read(self._loader, ids, self._epoch, self._first + at)


def _order(loader: Settings, cursor: Cursor, epoch: int, start: int, stop: int) -> _Ids:
    size = len(loader.source)
    return order_on_host(cursor.words, epoch, start, stop, size, loader.shuffle)
