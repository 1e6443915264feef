"""Points in flight in the chunks of a store: saved, and resumed by the same call.

A flight is the state of a batch that was left between two steps of its loop. Its file
names the chunk, the layout of the store, and a digest of everything that the bits of a
state depend on: the program with its arrays, versions, devices and their processor. So
a sweep elsewhere finds no flight of its own, begins again, and leaves the file alone:
flights are removed when their chunk is complete.

The rows that a flight has finished are written before it. So a flight is valid if none
of them is missing; otherwise a kill came between, or a chunk was damaged.
"""

import functools as ft
import itertools as it
import json
import os
import platform
import re
from collections.abc import Collection
from typing import Any

import jax
import jaxlib.version
import numpy as np

from .. import _leaves
from .._errors import log_once
from .._jaxprs import array_text, digest
from .compute.rows import Flight
from .identity import reducing_identity
from .store import FAILED, MISSING, Filling, Undecodable
from .work import Plan

_FOLDER = ".flights"

_NAME = re.compile(r"(\d{1,18})\.([0-9a-f]{12})\.[0-9a-f]{12}")


class Flights:
    """The flights in a store that is filled, for a plan."""

    def __init__(self, plan: Plan, filling: Filling):
        self._store, self._plan, self._filling = filling.store, plan, filling
        self._names: dict[int, set[str]] = {}
        self.text = ""
        """What is in flight, for a note; empty if nothing was saved."""

    def look(self) -> bool:
        """List the flights, and return whether there are any in our share."""
        self._names = {}
        for name in self._store.files.names(_FOLDER):
            found = _NAME.fullmatch(name)
            if found is not None:
                self._names.setdefault(int(found[1]), set()).add(name)
        return any(number in self._filling.owned for number in self._names)

    def tidy(self, todo: Collection[int]) -> None:
        """Remove flights of complete chunks, and of a layout before the store grew."""
        self.look()
        filling = self._filling
        alone = filling.shard is None and filling.has_locks
        for number, names in list(self._names.items()):
            complete = number in filling.owned and number not in todo
            for name in [*names]:
                if complete or (alone and name.split(".")[1] != self._cut):
                    self._remove(number, name)

    def keep(self, number: int, flight: Flight | None) -> None:
        """Save what is in flight in a chunk, after its finished rows are written.

        Flights of a complete chunk are removed.
        """
        if flight is not None:
            self._put(number, flight)
        elif self._names.get(number) and self._filling.is_complete(number):
            for name in [*self._names[number]]:
                self._remove(number, name)

    def _remove(self, number: int, name: str) -> None:
        self._store.files.remove(f"{_FOLDER}/{name}")
        self._names[number].discard(name)

    def _put(self, number: int, flight: Flight) -> None:
        """Save a flight; a full disk is logged, and ends nothing."""
        rows = [] if flight.rows is None else [flight.rows]
        header = {
            "of": self._identity,
            "chunk": number,
            "call": flight.call,
            "batch_size": flight.batch_size,
            "entries": flight.entries,
            "lists": list(map(len, (rows, flight.groups, flight.values))),
        }
        lists = *rows, *flight.groups, *flight.values, *flight.state
        data = _leaves.pack([flight.place, flight.finished, *lists], header)
        name = self._name(number)
        try:
            self._store.files.put(f"{_FOLDER}/{name}", data)
        except OSError as error:
            log_once(
                f"flight {self._store.path}",
                "eqx_pipe.sweep: the points in flight could not be saved in `%s`: %s. "
                "The sweep continues; a kill would lose them.",
                self._store.path,
                error,
            )
            return
        self._names.setdefault(number, set()).add(name)
        self.text = flight.text

    def get(self, number: int) -> Flight | None:
        """Return the flight of a chunk that can go on, or `None`.

        If failed rows are computed again, a flight that has finished one begins again,
        too.
        """
        if not self._names.get(number) or number in self._filling.broken:
            return None
        try:
            return self._valid(number)
        except (Undecodable, FileNotFoundError) as error:
            log_once(
                f"flight {self._store.path} {number}",
                "eqx_pipe.sweep: the points in flight in chunk %d of `%s` cannot go on "
                "(%s): they begin again.",
                number,
                self._store.path,
                error,
            )
            return None

    def _valid(self, number: int) -> Flight:
        name, names = self._name(number), self._names[number]
        header, leaves = self._read(name if name in names else min(names))
        of = header.get("of")
        for what, here in self._identity.items():
            there = of.get(what) if isinstance(of, dict) else None
            if there != here:
                raise Undecodable(f"{what}: {there} then, {here} now")
        first, last = self._store.chunks.span(number)
        try:
            flight = _flight_of(header, leaves)
        except (LookupError, TypeError, ValueError) as error:
            raise Undecodable(f"it cannot be read ({error})") from error
        rows = np.arange(last - first) if flight.rows is None else flight.rows
        fits = len(rows) == len(flight.finished) and header["chunk"] == number
        if not fits or (len(rows) and not 0 <= rows.min() <= rows.max() < last - first):
            raise Undecodable("it belongs to another chunk")
        done, manifest = rows[flight.finished], self._store.manifest(number)
        lost = [MISSING, FAILED] if self._filling.again else [MISSING]
        if len(done) and (
            manifest is None or np.isin(manifest.status[done], lost).any()
        ):
            raise Undecodable("some of the points that it has finished are missing")
        points = self._plan.points
        if flight.batch_size < points.largest_batch and points.adapts:
            # Larger batches did not fit into memory when it was computed.
            points.programs.note(points.largest_batch, flight.batch_size)
        return flight

    def _read(self, name: str) -> tuple[dict[str, Any], list[np.ndarray]]:
        try:
            leaves, header = _leaves.unpack(self._store.files.get(f"{_FOLDER}/{name}"))
            return header, leaves
        except FileNotFoundError:
            raise
        except (OSError, _leaves.DamagedLeaves) as error:
            raise Undecodable(f"{error}") from error

    def _name(self, number: int) -> str:
        text = json.dumps(self._identity, sort_keys=True)
        return f"{number}.{self._cut}.{digest(text)[:12]}"

    @property
    def _cut(self) -> str:
        return str(self._store.record["cut"])

    @ft.cached_property
    def _identity(self) -> dict[str, str]:
        """Everything that the bits of a state depend on."""
        points, chunks = self._plan.points, self._plan.chunks
        programs = [traced.program for traced in points.traced]
        arrays = [x for program in programs for x in program.constants]
        arrays += [*points.given(0).arrays, *points.key_digits]
        arrays += [] if points.key is None else [points.key]
        texts = [*(p.text for p in programs), *map(array_text, arrays)]
        reducers = self._plan.request.reducers
        if reducers is not None:
            texts.append(reducing_identity(reducers, points.traced[0])["text"])
        grid = points.geometry.lengths, points.geometry.key_dims, points.ordered
        return {
            "program": digest("\n".join(texts)),
            "grid": repr((*grid, points.batch_size, points.most, repr(chunks))),
            "layout": self._cut,
            "jax": jax.__version__,
            "jaxlib": jaxlib.version.__version__,
            "devices": f"{len(points.devices)} {points.devices[0].device_kind}",
            "processor": _processor(),
            "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
        }


def _flight_of(header: dict[str, Any], leaves: list[np.ndarray]) -> Flight:
    place, finished, *rest = leaves
    left = iter(rest)
    lists = [[*it.islice(left, count)] for count in header["lists"]]
    rows, groups, values = lists
    slice_first, case, first, count = map(int, header["call"])
    return Flight(
        (slice_first, case, first, count),
        int(header["batch_size"]),
        place,
        [*left],
        finished,
        rows[0].astype(np.int64) if rows else None,
        groups=groups,
        values=values,
        entries=header["entries"],
    )


@ft.cache
def _processor() -> str:
    """Return the name of the processor, for which XLA has compiled."""
    try:
        with open("/proc/cpuinfo") as file:
            found = re.search(r"model name\s*: (.*)", file.read())
    except OSError:
        found = None
    name = platform.processor() if found is None else found[1]
    return f"{platform.machine()} {name}"
