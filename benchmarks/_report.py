"""One run of a benchmark: its settings, its table, and the same as JSON."""

import dataclasses
import datetime
import importlib.util
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ._timing import Side, Spread, Times, interleaved, ratio, within


@dataclasses.dataclass
class Run:
    """The settings of a run, and its table.

    `rounds` is how often each side runs, `only` are parts of the names of the cases
    that are wanted (all if there is none), and `json` is where the table goes besides.
    `about` has the device and versions if another process measures, so that this one
    does not start JAX.
    """

    name: str
    command: str
    rounds: int
    clock: Callable[[], float] = time.perf_counter
    only: Collection[str] = ()
    quick: bool = False
    json: Path | None = None
    about: dict[str, Any] | None = None
    rows: list[dict[str, Any]] = dataclasses.field(default_factory=list, init=False)
    failed: bool = dataclasses.field(default=False, init=False)
    _notes: list[str] = dataclasses.field(default_factory=list, init=False)
    _packages: dict[str, bool] = dataclasses.field(default_factory=dict, init=False)
    _header: tuple[str, ...] = dataclasses.field(default=(), init=False)

    def chosen(self, cases: Iterable[str]) -> list[str]:
        """Return the cases that are wanted."""
        return [c for c in cases if not self.only or any(o in c for o in self.only)]

    def has(self, package: str) -> bool:
        """Return whether a peer is installed, and note below the table if it is not."""
        there = importlib.util.find_spec(package) is not None
        if not there and self._packages.get(package, True):
            self.note(f"left out: {package}, which is not installed")
        self._packages[package] = there
        return there

    def compare(
        self,
        case: str,
        sides: Mapping[str, Side],
        to: str,
        *,
        least: float = 0.0,
        per: Mapping[str, int] | None = None,
        seldom: Collection[str] = (),
        columns: Callable[[str, Times], dict[str, Any]] | None = None,
    ) -> Times:
        """Time sides in turn, and add a row for each, with its ratio to another.

        `per`: how many things a call of a side does, if it is the time of one of them
        that counts. `columns`: what else stands in the row of a side.
        """
        times = interleaved(
            sides, self.rounds, clock=self.clock, least=least, seldom=seldom
        )
        for name, count in (per or {}).items():
            times[name] = [t and t / count for t in times[name]]
        for name, taken in times.items():
            more = columns(name, times) if columns else {}
            middle = statistics.median(t for t in taken if t is not None)
            over = {f"over {to}": ratio(times, name, to)}
            self.row(case=case, side=name, time=middle, **over, **more)
        return times

    def row(self, **columns: Any) -> None:
        """Add a row to the table, and print it."""
        if not self._header:
            self._begin()
        header = tuple(columns)
        if header != self._header:
            print(_line(header, [name.replace("_", " ") for name in header]))
            self._header = header
        self.rows.append({name: plain(value) for name, value in columns.items()})
        cells = [shown(name, value) for name, value in columns.items()]
        print(_line(header, cells), flush=True)

    def note(self, text: str) -> None:
        """Add a line below the table."""
        self._notes.append(text)

    def bar(self, what: str, found: Spread, bar: float) -> None:
        """Compare a measurement with a bar; the run has failed if it is above."""
        kept = within(found, bar)
        self.failed |= not kept and not self.quick
        verdict = "kept" if kept else "ABOVE"
        verdict = "of too few rounds to tell" if self.quick else verdict
        scatter = f"{found.median:.3g} ({found.deviation:.2g})"
        self.note(f"bar: {what} at most {bar:g}: {scatter}, {verdict}")

    def end(self) -> None:
        """Print the notes, and write them, too."""
        if not self.rows:
            print(f"no case has any of {list(self.only)} in its name")
            self.failed = True
        for note in self._notes:
            print(note)
        self.write()
        if self.json and self.rows:
            print(f"written to {os.path.relpath(self.json)}")

    def record(self) -> dict[str, Any]:
        """Return the table with its conditions, as in the JSON."""
        record = {"benchmark": self.name, **self._conditions()}
        return record | {"rounds": self.rounds, "rows": self.rows, "notes": self._notes}

    def write(self) -> None:
        """Write the JSON, which has the rows so far."""
        if self.json and self.rows:
            self.json.parent.mkdir(parents=True, exist_ok=True)
            self.json.write_text(json.dumps(self.record(), indent=1) + "\n")

    def _begin(self) -> None:
        conditions = self._conditions()
        print(f"$ {self.command}")
        print(f"{conditions['date']}; {conditions['device']}; {self.rounds} rounds")
        versions = conditions["versions"].items()
        print(", ".join(f"{name} {number}" for name, number in versions), flush=True)

    def _conditions(self) -> dict[str, Any]:
        date = {"command": self.command, "date": datetime.date.today().isoformat()}
        if self.about is not None:
            return date | self.about
        import jax

        # Some peers are asked for after the first row, and named below the table, too.
        peers = [package for package, there in self._packages.items() if there]
        versions = {p: version(p) for p in ("jax", "equinox", *peers)}
        versions = {"python": platform.python_version()} | versions
        devices = jax.devices()
        device = f"{len(devices)} x {devices[0].device_kind}, {os.cpu_count()} "
        device += f"cores of {platform.processor() or platform.machine()}"
        return date | {"versions": versions, "device": device}


TEXT = {"job": 22, "case": 32, "side": 34}


def _line(names: Iterable[str], cells: Iterable[str]) -> str:
    pairs = zip(names, cells, strict=True)
    aligned = [
        f"{cell:<{TEXT[name]}}"
        if name in TEXT
        else f"{cell:>{max(len(name), 13 if 'over' in name else 9)}}"
        for name, cell in pairs
    ]
    return "  ".join(aligned).rstrip()


def shown(name: str, value: Any) -> str:
    if isinstance(value, Spread):
        if name.startswith(("time", "beyond")):
            return _duration(value.median)
        digits = 3 if abs(value.median) < 10 else 1
        return f"{value.median:.{digits}f} ({value.deviation:.{digits}f})"
    if isinstance(value, float):
        return _duration(value) if name.startswith("time") else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _duration(value: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if abs(value) >= size:
            return f"{value / size:.2f} {unit}"
    return f"{value * 1e6:.1f} us"


def plain(value: Any) -> Any:
    return value._asdict() if isinstance(value, Spread) else value
