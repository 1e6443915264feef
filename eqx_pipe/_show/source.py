"""What a page needs of a sweep, a search or a training, from memory or a store."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax.tree_util as jtu
import numpy as np
from jaxtyping import Int

from .._errors import message
from .._search import SearchResult, round_name
from .._sweep import SweepResult, as_files, disk_errors, result_in
from .._sweep.store import (
    FAILED,
    MISSING,
    Follower,
    StoredArray,
    StoreLike,
    check_zarr,
    count_in,
)
from .._train import CHECKPOINT, TrainResult
from .._tree import leaves_with_names

Shown: TypeAlias = StoreLike | SweepResult | SearchResult | TrainResult
"""A result, or what `store=` of the call that returns it supports."""

_WINDOW = 120e9
"""The rate is that of the last two minutes, in nanoseconds, or of the last 20 chunks."""

_ENTRIES = 6_000_000
"""The maximum number of entries of a curve that are kept and sorted."""

_STEPS = 240
"""The maximum number of steps of a curve that are kept."""


class Curve(NamedTuple):
    """Numbers of each point at `steps`, of which `picked` are shown."""

    dim: str
    steps: np.ndarray
    picked: np.ndarray
    leaf: Any


class Reading(NamedTuple):
    """The same of each kind: the newest numbers of all points, and their curves.

    `result` has the space, the gaps and the errors, and `goal` the recorded direction.
    `facts` go to the page as they are. `read` returns the numbers of an output.
    """

    kind: str
    result: SweepResult
    outputs: Mapping[str, Any]
    curves: Mapping[str, Curve]
    facts: dict[str, Any]
    goal: Mapping[str, Any]
    read: Callable[..., np.ndarray]
    training: TrainResult | None = None
    rounds: Int[np.ndarray, " points"] | None = None


def evenly(count: int, most: int) -> np.ndarray:
    """Return at most `most` of the indices below `count`, the ends among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


class Source:
    """A store that may change, or a result in memory, which does not."""

    def __init__(self, function: str, shown: Shown):
        self._function, self._version, self._reading = function, None, None
        self._rounds: dict[int, SweepResult] = {}
        self._paces: list[tuple[float, int]] = []
        self._given = None
        if isinstance(shown, SweepResult | SearchResult | TrainResult):
            self._given, self.path, self.is_remote = shown, type(shown).__name__, False
            return
        check_zarr(function)
        self._files = as_files(function, shown)
        self.path = self._files.path_of()
        self.is_remote = "://" in self.path
        self._follower = Follower(function, self._files)
        self.version()

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rstrip("/").rpartition("/")[2]

    def version(self) -> Any:
        """Return what differs when the store has changed; no values are read.

        Raises a `FileNotFoundError` if there is no store, any more or at all.
        """
        if self._given is not None:
            return ()
        with disk_errors(self.path, "be read", self._function):
            self._kind = self._kind_of(self._files.names())
            if self._kind == "sweep":
                return self._follower.update()
            if self._kind == "train":
                tag = self._files.tag(CHECKPOINT)
                return tag, self._files.entry(CHECKPOINT)
            last = round_name(self._count - 1)
            if self._rounds.keys() > {*range(self._count)}:
                self._rounds.clear()
            if getattr(self, "_last", None) != last:
                self._last, files = last, self._files.below(last)
                self._follower = Follower(self._function, files)
            return last, self._follower.update()

    def _kind_of(self, names: set[str]) -> str:
        if "zarr.json" in names:
            return "sweep"
        if CHECKPOINT in names:
            return "train"
        self._count = 0
        while round_name(self._count) in names:
            self._count += 1
        if self._count:
            return "search"
        what = "is not there any more" if self._version else "is not there"
        if names:
            what = "is no store of a sweep, a search or a training"
        cure = "Give the path that `store=` got; a call creates it when it has traced."
        text = message(self._function, f"`{self.path}` {what}.", cure)
        raise FileNotFoundError(text)

    def reading(self) -> Reading | None:
        """Return what there is, or `None` for the states of a reduction."""
        version = self.version()
        if self._reading is None or self._version != version:
            with disk_errors(self.path, "be read", self._function):
                self._reading = self._read()
            self._version = version
        return self._reading

    def progress(self) -> dict[str, Any]:
        """Return the progress of the states of a reduction."""
        store = self._follower.store
        assert store is not None
        return self._filled(store.account().gaps, store.chunks.size, "blocks")

    def _read(self) -> Reading | None:
        given = self._given
        if isinstance(given, TrainResult) or given is None and self._kind == "train":
            return self._training(given or TrainResult.load(self._files))
        if isinstance(given, SearchResult) or given is None and self._kind == "search":
            return self._search(given)
        if given is None:
            store = self._follower.store
            assert store is not None
            if "reduce" in store.record:
                return None
            given = result_in(store)
        elif given.points is not None:
            return None
        facts = self._filled(given._gaps, len(given), "points", given.started)
        return self._points("sweep", given, facts, dict(given.made))

    def _search(self, given: SearchResult | None) -> Reading:
        if given is None:
            for k in range(self._count - 1):
                if k not in self._rounds:
                    found = SweepResult.load(self._files.below(round_name(k)))
                    values = jtu.tree_map(lambda x: x[...], found.values)
                    self._rounds[k] = found.__class__(
                        **{**vars(found), "values": values}
                    )
            assert self._follower.store is not None
            rounds = [self._rounds[k] for k in range(self._count - 1)]
            given = SearchResult((*rounds, result_in(self._follower.store)))
        goal = {"by": given.by, "mode": given.mode} | dict(given.sweeps[-1].made)
        result, first = given.result, given.sweeps[0]
        facts = self._filled(result._gaps, len(result), "points", first.started)
        rounds = max(goal.get("rounds", 0), len(given.sweeps))
        left = (rounds - len(given.sweeps)) * len(first)
        facts["counts"]["total"] += left
        facts["counts"]["missing"] += left
        facts["note"] = f"{len(given.sweeps)} of {rounds} rounds"
        found = self._points("search", result, facts, goal)
        return found._replace(rounds=given.rounds)

    def _points(
        self, kind: str, result: SweepResult, facts: dict[str, Any], goal: Any
    ) -> Reading:
        """Return the numbers of a sweep: outputs that are scalars or curves."""
        outputs, curves = {}, {}
        for name, leaf in leaves_with_names(result.values):
            if np.shape(leaf)[:1] != (len(result),):
                continue
            if leaf.ndim == 1 and leaf.dtype.kind in "biuf":
                outputs[name or "value"] = leaf
            elif leaf.ndim == 2 and leaf.dtype.kind == "f" and leaf.shape[1] > 1:
                dims = result.output_coords.get(name or "value") or {"step": None}
                dim, steps = next(iter(dims.items()))
                steps = np.arange(leaf.shape[1]) if steps is None else steps
                curves[name or "value"] = _curve(dim, steps, leaf)

        def read(name: str, rows: np.ndarray | None = None) -> np.ndarray:
            curve = curves.get(name)
            leaf, pick = outputs.get(name), ...
            if curve is not None:
                leaf, pick = curve.leaf, curve.picked
            if rows is not None:
                found = np.asarray(leaf[rows])
            elif isinstance(leaf, StoredArray):
                return self._follower.values(name, leaf, pick)
            else:
                found = np.asarray(leaf)
            return found[:, pick] if curve is not None else found

        return Reading(kind, result, outputs, curves, facts, goal, read)

    def _training(self, result: TrainResult) -> Reading:
        curves = {
            name: _curve(*next(iter(result.curves.output_coords[name].items())), leaf)
            for name, leaf in result.curves.values.items()
            if leaf.ndim == 2 and (leaf.dtype.kind == "f" or name == "parent")
        }
        goal = dict(result.curves.made)
        facts = self._trained(result, max(goal.get("steps", 0), result.step))

        def read(name: str, rows: np.ndarray | None = None) -> np.ndarray:
            if rows is not None:
                return np.asarray(result.latest.values[name])[rows]
            return np.asarray(curves[name].leaf)[:, curves[name].picked]

        outputs = {name: result.latest.values[name] for name in curves}
        given = "train", result.latest, outputs, curves, facts, goal, read, result
        return Reading(*given)

    def _filled(
        self, gaps: Any, size: int, unit: str, started: float = 0.0
    ) -> dict[str, Any]:
        """Return counts, and from the times of the chunks the rate and time left."""
        missing, failed = count_in(gaps, MISSING), count_in(gaps, FAILED)
        done = size - missing - failed
        counts = {"done": done, "failed": failed, "missing": missing, "total": size}
        found: dict[str, Any] = {"unit": unit, "counts": counts}
        store = None if self._given is not None else self._follower.store
        if store is not None and store.known.done.any():
            when = store.known.when
            last, times = when.max(), np.sort(when[store.known.done])
            found["written"] = int(last // 10**9)
            begin = max(started * 1e9, min(last - _WINDOW, times[-20:][0]))
            count = np.count_nonzero(when > begin) * store.chunks.points
            if missing and last > begin:
                found["rate"] = rate = float(count / (last - begin) * 1e9)
                found["left"] = missing / rate
        return found

    def _trained(self, result: TrainResult, steps: int) -> dict[str, Any]:
        """Return counts of trainings, their share of all steps, and the time left."""
        size, failed = len(result.active), np.zeros(len(result.active), bool)
        failed[[*result.errors]] = True
        stopped = ~(result.active | failed)
        rest, whole = steps - result.trained, max(1, size * steps)
        found: dict[str, Any] = {
            "unit": "trainings",
            "step": result.step,
            "steps": steps,
            "counts": {
                "done": int(result.active.sum()),
                "stopped": int(stopped.sum()),
                "failed": int(failed.sum()),
                "total": size,
            },
            "shares": {
                "done": result.trained.sum() / whole,
                "stopped": rest[stopped].sum() / whole,
                "failed": rest[failed].sum() / whole,
            },
        }
        entry = None if self._given is not None else self._files.entry(CHECKPOINT)
        if entry is not None:
            now, found["written"] = entry.when / 1e9, entry.when // 10**9
            # The step at which a call began is not recorded, so two are compared.
            if self._paces and self._paces[-1][1] > result.step:
                self._paces = []
            self._paces = [*self._paces, (now, result.step)][-8:]
            (then, before), left = self._paces[0], steps - result.step
            if left and result.step > before and now > then:
                found["rate"] = rate = (result.step - before) / (now - then)
                found["left"] = left / rate
        return found


def _curve(dim: str, steps: Any, leaf: Any) -> Curve:
    most = min(_STEPS, max(8, _ENTRIES // max(1, len(leaf))))
    return Curve(dim, np.asarray(steps), evenly(leaf.shape[1], most), leaf)
