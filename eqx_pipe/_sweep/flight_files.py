"""Points in flight in the chunks of a store: saved, and resumed by the same call.

A flight is the state of a batch that was left between two steps of its loop. Its file
names the position of the chunk, the layout of the store, and a digest of everything
that the bits of a state depend on and the store does not record: versions, devices,
their processor and more. So a sweep elsewhere finds no flight of its own, begins again,
and leaves the file alone: flights are removed when their chunk is complete, or moves.

A flight itself, and its three forms, is in `work/flight.py`.

The rows that a flight has finished are written before it, or saved in it. So a flight
is valid if none of those written is missing; otherwise a kill came between, or a chunk
was damaged.
"""

import functools as ft
import itertools as it
import json
import os
import platform
import re
from collections.abc import Callable, Collection
from typing import Any, TypeAlias

import jax
import jaxlib.version
import numpy as np
from jaxtyping import Int64

from .. import _leaves
from .._errors import log_once
from .._jaxprs import digest
from .._results import storable
from .._store import FAILED, MISSING, OK, Files, Filling, Undecodable
from .identity import reducing_identity
from .work.buffer import Asked, Chunk
from .work.flight import FileState, Flight
from .work.work import Work

_FOLDER = ".flights"

_NAME = re.compile(r"(\d+(?:\.\d+)*)\.([0-9a-f]{12})\.[0-9a-f]{12}")


def in_flight(files: Files) -> list[str]:
    """Return how far the points in flight in a store are, for a message."""
    texts = []
    for name in sorted(filter(_NAME.fullmatch, files.names(_FOLDER))):
        try:
            _, header = _leaves.unpack(files.get(f"{_FOLDER}/{name}"))
            texts.append(str(header["text"]))
        except (OSError, Undecodable, _leaves.DamagedLeaves, LookupError, TypeError):
            continue
    return texts


Ask: TypeAlias = Callable[[int, Int64[np.ndarray, " rows"] | None], Asked]
"""Returns some rows of a chunk, or all of them, with the costs that order them."""


class Flights:
    """The flights in a store that is filled, for some work."""

    def __init__(self, work: Work, filling: Filling, asked: Ask):
        self._work, self._asked = work, asked
        self._store, self._filling = filling.store, filling
        self._names: set[str] = set()
        self.text = ""
        """What is in flight, for a note; empty if nothing was saved."""

    def state(self, number: int) -> FileState:
        """Return the state of the flight of a chunk, as it was listed."""
        names = self._at(number)
        if not names:
            return FileState.ABSENT
        return FileState.SAVED if self._name(number) in names else FileState.FOREIGN

    def look(self) -> bool:
        """List the flights, and return whether there are any in our share."""
        self._names = {*filter(_NAME.fullmatch, self._store.files.names(_FOLDER))}
        return bool(self._names) and any(map(self._at, self._filling.owned))

    def tidy(self, todo: Collection[int]) -> None:
        """Remove flights of complete chunks, and of a layout before the store grew."""
        self.look()
        filling, old = self._filling, set[str]()
        if filling.shard is None and filling.has_locks:
            old = {name for name in self._names if name.split(".")[-2] != self._cut}
        done = (n for n in filling.owned if n not in todo) if self._names else ()
        self._remove(old.union(*map(self._at, done)))

    def keep(self, chunk: Chunk) -> None:
        """Write the rows of a chunk, and then save what is in flight in it.

        Flights of a complete chunk are removed.
        """
        number, flight = chunk.number, chunk.flight
        if chunk.values and (chunk.rows is None or len(chunk.rows)):
            self._write(chunk)
        if flight is not None:
            self._put(number, flight)
        elif (names := self._at(number)) and self._filling.is_complete(number):
            self._remove(names)

    def _write(self, chunk: Chunk) -> None:
        number, rows, values, verdict, _ = chunk
        status = np.where(verdict.ok, OK, FAILED).astype(np.int8)
        if verdict.missing is not None:
            status[verdict.missing] = MISSING
        first, last = self._store.chunks.span(number)
        if self._work.is_merged:  # a row is a block of points
            first, _ = self._work.span(first, last)
        errors = {text: at - first for text, at in verdict.errors.items()}
        self._filling.keep(number, rows, list(map(storable, values)), status, errors)

    def _at(self, number: int) -> set[str]:
        at = self._store.chunks.position(number)
        return {name for name in self._names if name.rsplit(".", 2)[0] == at}

    def _remove(self, names: set[str]) -> None:
        for name in sorted(names):
            self._store.files.remove(f"{_FOLDER}/{name}")
        self._names -= names

    def _put(self, number: int, flight: Flight) -> None:
        """Save a flight; a full disk is logged, and ends nothing."""
        rows = [] if flight.rows is None else [flight.rows]
        header = {
            "of": self._identity,
            "costs": flight.costs,
            "chunk": self._store.chunks.position(number),
            "call": flight.call,
            "batch_size": flight.batch_size,
            "entries": flight.entries,
            "lists": list(map(len, (rows, flight.groups, *flight.buffers))),
            "text": flight.text,
        }
        lists = *rows, *flight.groups, *it.chain(*flight.buffers), *flight.state
        data = _leaves.pack([flight.place, *lists], header)
        name = self._name(number)
        try:
            self._store.files.put(f"{_FOLDER}/{name}", data)
        except OSError as error:
            text = "could not be saved (%s): a kill would lose them"
            self._log(number, text, error)
            return
        self._names.add(name)
        self.text = flight.text

    def get(self, number: int) -> Flight | None:
        """Return the flight of a chunk that can go on, or `None`.

        If failed rows are computed again, a flight that has finished one begins again,
        too.
        """
        is_absent = self.state(number) is FileState.ABSENT
        if is_absent or number in self._filling.broken:
            return None
        try:
            return self._valid(number)
        except (OSError, ValueError, LookupError, TypeError) as error:
            self._log(number, "cannot go on (%s): they begin again", error)
            return None

    def _log(self, number: int, what: str, error: Exception) -> None:
        path = self._store.path
        text = f"eqx_pipe.sweep: the points in flight in chunk %d of `%s` {what}."
        log_once(f"flight {path} {number} {what}", text, number, path, error)

    def _valid(self, number: int) -> Flight:
        """Return the flight of a chunk; raise an error with the reason if it is not."""
        name = self._name(number)
        if self.state(number) is FileState.FOREIGN:
            name = min(self._at(number))
        data = self._store.files.get(f"{_FOLDER}/{name}")
        leaves, header = _leaves.unpack(data)
        of = header.get("of")
        for what, here in self._identity.items():
            there = of.get(what) if isinstance(of, dict) else None
            if there != here:
                raise Undecodable(f"{what}: {there} then, {here} now")
        first, last = self._store.chunks.span(number)
        flight = _flight_of(header, leaves)
        rows = flight.rows
        if rows is None:  # the chunk may have become longer since
            rows = np.arange(len(flight.finished))
            if len(rows) < last - first:
                flight = flight._replace(rows=rows)
        fits = len(rows) == len(flight.finished)
        fits &= header["chunk"] == self._store.chunks.position(number)
        if not fits or (len(rows) and not 0 <= rows.min() <= rows.max() < last - first):
            raise Undecodable("it belongs to another chunk")
        if flight.costs != self._asked(number, flight.rows).costs_text:
            raise Undecodable("`order_by` has other costs")
        done, manifest = rows[flight.finished], self._store.manifest(number)
        lost = [MISSING, FAILED] if self._filling.again else [MISSING]
        if len(done) and (
            manifest is None or np.isin(manifest.status[done], lost).any()
        ):
            raise Undecodable("some of the points that it has finished are missing")
        points = self._work.points
        if flight.batch_size < points.largest_batch and points.adapts:
            # Larger batches did not fit into memory when it was computed.
            points.programs.note(points.largest_batch, flight.batch_size)
        return flight

    def _name(self, number: int) -> str:
        text = json.dumps(self._identity, sort_keys=True)
        at = self._store.chunks.position(number)
        return f"{at}.{self._cut}.{digest(text)[:12]}"

    @property
    def _cut(self) -> str:
        return str(self._store.record["cut"])

    @ft.cached_property
    def _identity(self) -> dict[str, str]:
        """The dependencies of the bits of a state, besides the record of the store."""
        points, text = self._work.points, self._store.function
        reducers = self._work.reducers
        if reducers is not None:
            text += reducing_identity(reducers, points.traced[0])["text"]
        return {
            "function": digest(text),
            "batches": repr((points.batch_size, points.most, points.ordered)),
            "layout": self._cut,
            "jax": jax.__version__,
            "jaxlib": jaxlib.version.__version__,
            "devices": f"{len(points.devices)} {points.devices[0].device_kind}",
            "processor": _processor(),
            "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
        }


def _flight_of(header: dict[str, Any], leaves: list[np.ndarray]) -> Flight:
    place, *rest = leaves
    left = iter(rest)
    rows, groups, *buffers = ([*it.islice(left, n)] for n in header["lists"])
    slice_first, case, first, count = map(int, header["call"])
    return Flight(
        (slice_first, case, first, count),
        int(header["batch_size"]),
        place,
        [*left],
        groups=groups,
        buffers=buffers,
        entries=header["entries"],
        rows=rows[0].astype(np.int64) if rows else None,
        costs=header["costs"],
    )


@ft.cache
def _processor() -> str:
    """Return the name of the processor, for which XLA has compiled."""
    try:
        with open("/proc/cpuinfo") as file:
            match = re.search(r"model name\s*: (.*)", file.read())
    except OSError:
        match = None
    name = platform.processor() if match is None else match[1]
    return f"{platform.machine()} {name}"
