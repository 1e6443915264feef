"""Readings of sweeps, searches and trainings, from memory or from their stores."""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import jax.tree_util as jtu
import numpy as np
from jaxtyping import Int

from .._errors import message
from .._results import SweepResult, names_in, result_in
from .._search import SearchResult, rounds_in
from .._store import (
    FAILED,
    MISSING,
    Follower,
    StoredArray,
    StoreLike,
    as_files,
    check_zarr,
    count_in,
    disk_errors,
)
from .._train import CHECKPOINTS, TrainResult
from .._tree import leaves_with_names

Shown: TypeAlias = StoreLike | SweepResult | SearchResult | TrainResult
"""A result, or what `store=` of the call that returns it supports."""

_WINDOW = 40e9
"""The nanoseconds whose chunks determine the rate, which has at least 20 chunks."""

_ENTRIES, _STEPS = 6_000_000, 240
"""The most entries and steps of a curve that are kept and sorted."""


class Curve(NamedTuple):
    """Numbers of each point at `steps`, of which `picked` are shown."""

    dim: str
    steps: np.ndarray
    picked: np.ndarray
    leaf: Any


class Reading(NamedTuple):
    """The same of each kind: the newest numbers of all points, and their curves.

    `result` has the space, the gaps and the errors; `None` for a reduction. `facts` go
    to the page as they are, and `goal` has the recorded direction. `changed` has the
    values of the axes that PBT has changed, at each record.
    """

    kind: str
    facts: dict[str, Any]
    result: SweepResult | None = None
    outputs: Mapping[str, Any] = {}
    curves: Mapping[str, Curve] = {}
    goal: Mapping[str, Any] = {}
    training: TrainResult | None = None
    rounds: Int[np.ndarray, " points"] | None = None
    changed: Mapping[str, np.ndarray] = {}
    follower: Follower | None = None

    @property
    def metrics(self) -> list[str]:
        """The outputs to choose from, without what a scheduler has recorded."""
        names = [] if self.result is None else self.result.space.names
        recorded = {f"point.{name}" for name in names}
        every = dict.fromkeys([*self.curves, *self.outputs])
        return [name for name in every if name not in recorded]

    def metric(self, path: str | None) -> str:
        """Return what the metric with the path of an output is called, or nothing."""
        names = (name for name in (path, f"result.{path}") if name in self.metrics)
        return next(names, None) or ""

    def chosen(self, metric: str, mode: str) -> tuple[str, str]:
        """Return the metric and the direction: those asked for, or those recorded."""
        names, by = self.metrics, self.metric(self.goal.get("by"))
        dims = {name: curve.dim for name, curve in self.curves.items()}
        evaluated = [name for name in names if dims.get(name) == "eval_step"]
        metric = self.metric(metric) or by or [*evaluated, *names][0]
        if mode not in ("min", "max"):
            is_that = metric == by or not by and len(names) == 1
            mode = self.goal.get("mode", "min") if is_that else "min"
        return metric, mode

    def numbers(self, name: str) -> tuple[np.ndarray | None, np.ndarray]:
        """Return the shown columns of a curve, if it is one, and the newest numbers."""
        curve, values = self.curves.get(name), None
        if curve is not None:
            values = self._read(name, curve.leaf, curve.picked)
        if name in self.outputs:
            return values, self._read(name, self.outputs[name])
        assert values is not None
        return values, values[:, -1]

    def at(self, index: np.ndarray, replicates: bool = True) -> dict[str, np.ndarray]:
        """Return the numbers and texts of axes at some points, as trained last."""
        assert self.result is not None
        axes, points = self.result.space.axes(), self.result.space[index]
        hidden = () if replicates else [k for k in axes if axes[k].replicates]
        columns = points.geometry.columns()
        for name in self.changed:
            columns[name] = np.asarray(self.outputs[f"point.{name}"])[index]
        return {k: x for k, x in columns.items() if x.ndim == 1 and k not in hidden}

    def _read(self, name: str, leaf: Any, columns: Any = slice(None)) -> np.ndarray:
        if self.follower is not None and isinstance(leaf, StoredArray):
            return self.follower.values(name, leaf, columns)
        return np.asarray(leaf)[..., columns]


def evenly(count: int, most: int) -> np.ndarray:
    """Return at most `most` of the indices below `count`, the ends among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


class Source:
    """A store that may change, or a result in memory, which does not."""

    def __init__(self, shown: Shown, argument: str):
        self._version, self._reading = None, None
        self._follower: Follower | None = None
        self._rounds: list[SweepResult] = []
        self._paces: list[tuple[float, int]] = []
        self._result, self.path = None, type(shown).__name__
        if isinstance(shown, SweepResult | SearchResult | TrainResult):
            self._result = shown
            return
        check_zarr("show")
        self._files = as_files("show", shown, argument)
        self.path = self._files.path_of()
        self.version()

    def version(self) -> Any:
        """Return what differs when the store has changed; no values are read.

        Raises a `FileNotFoundError` if there is no store, any more or at all.
        """
        if self._result is not None:
            return ()
        with disk_errors(self.path, "be read", "show"):
            names, files = self._files.names(), self._files
            self._is_train = bool(CHECKPOINTS & names)
            if self._is_train:
                keys = sorted(CHECKPOINTS & names)
                self._saved = [files.entry(name) for name in keys]
                return [files.tag(name) for name in keys], self._saved
            self._stores = []
            if "zarr.json" not in names:
                self._stores = rounds_in("show", files)
                if not self._stores:
                    raise self._no_store(names)
                files = self._stores[-1]
            count = len(self._stores)
            del self._rounds[max(0, count - 1) :]
            old = self._follower
            if old is not None and old.files.path_of() == files.path_of():
                old.update()
            else:
                self._follower = old = Follower("show", files)
            return count, len(old.store.chunks), old.store.listing.when.tobytes()

    def _no_store(self, names: set[str]) -> FileNotFoundError:
        what = "is not there any more" if self._version else "is not there"
        if names:
            what = "is no store of a sweep, a search or a training"
        cure = "Give the path that `store=` got: a call creates it when it has traced."
        text = message("show", f"`{self.path}` {what}.", cure)
        return FileNotFoundError(text)

    def reading(self) -> Reading:
        """Return what there is; nothing is read again if the store has not changed."""
        version = self.version()
        if self._reading is None or self._version != version:
            with disk_errors(self.path, "be read", "show"):
                self._reading = self._read()
            self._version = version
        return self._reading

    def _read(self) -> Reading:
        result = self._result
        if result is None and self._is_train:
            result = TrainResult.load(self._files)
        elif result is None:
            assert self._follower is not None
            store = self._follower.store
            if "reduce" in store.record:
                facts = self._filled(store.account().gaps, store.chunks.size)
                return Reading("reduction", facts | {"unit": "blocks"})
            result = result_in(store)
            if self._stores:
                for files in self._stores[len(self._rounds) : -1]:
                    earlier = result_in(Follower("show", files).store)
                    self._rounds.append(jtu.tree_map(_in_memory, earlier))
                over = tuple(dict(result.made).get("over", ()))
                result = SearchResult((*self._rounds, result), over=over)
        if isinstance(result, TrainResult):
            return self._training(result)
        if isinstance(result, SearchResult):
            return self._search(result)
        if result.points is not None:
            counts = {"done": result.points, "total": len(result)}
            return Reading("reduction", {"unit": "points", "counts": counts})
        facts = self._filled(result._gaps, len(result), result.started)
        return self._points("sweep", result, facts, dict(result.made))

    def _search(self, search: SearchResult) -> Reading:
        goal = {"by": search.by, "mode": search.mode} | dict(search.sweeps[-1].made)
        result, (first, *_) = search.result, search.sweeps
        rounds = max(goal.get("rounds", 0), len(search.sweeps))
        later = (rounds - len(search.sweeps)) * len(first)
        facts = self._filled(result._gaps, len(result), first.started, later)
        facts["note"] = f"{len(search.sweeps)} of {rounds} rounds"
        reading = self._points("search", result, facts, goal)
        return reading._replace(rounds=search.rounds)

    def _points(
        self, kind: str, result: SweepResult, facts: dict[str, Any], goal: Any
    ) -> Reading:
        """Return the numbers of a sweep: outputs that are scalars or curves."""
        outputs, curves, taken = {}, {}, names_in(result.space)
        for path, leaf in leaves_with_names(result.values):
            dtype = getattr(leaf.dtype, "kind", "")  # PRNG keys have none
            path = path or "value"
            name = f"result.{path}" if path in taken else path
            if leaf.ndim == 1 and dtype and dtype in "biuf":
                outputs[name] = leaf
            elif leaf.ndim == 2 and dtype == "f" and leaf.shape[1]:
                dims = result.output_coords.get(path) or {"step": None}
                dim, steps = next(iter(dims.items()))
                steps = np.arange(leaf.shape[1]) if steps is None else np.asarray(steps)
                most = min(_STEPS, max(8, _ENTRIES // max(1, len(leaf))))
                curves[name] = Curve(dim, steps, evenly(leaf.shape[1], most), leaf)
        more: Any = {"goal": goal, "follower": self._follower}
        return Reading(kind, facts, result, outputs, curves, **more)

    def _training(self, result: TrainResult) -> Reading:
        goal = dict(result.curves.made)
        facts = self._trained(result, max(goal.get("steps", 0), result.step))
        curves = self._points("train", result.curves, facts, goal).curves
        reading = self._points("train", result.latest, facts, goal)
        outputs = {name: reading.outputs[name] for name in curves}
        recorded = [name for name in result.space.names if f"point.{name}" in curves]
        values = {name: np.asarray(curves[f"point.{name}"].leaf) for name in recorded}
        changed = {name: x for name, x in values.items() if (x != x[:, :1]).any()}
        more: Any = {"outputs": outputs, "curves": curves, "changed": changed}
        return reading._replace(training=result, **more)

    def _filled(
        self, gaps: Any, size: int, started: float = 0.0, later: int = 0
    ) -> dict[str, Any]:
        """Return counts, and from the times of the chunks the rate and time left.

        `later` is the number of points of rounds that have not begun.
        """
        missing, failed = count_in(gaps, MISSING) + later, count_in(gaps, FAILED)
        counts = {"failed": failed, "missing": missing, "total": size + later}
        counts["done"] = counts["total"] - missing - failed
        facts: dict[str, Any] = {"unit": "points", "counts": counts}
        if self._follower is not None and self._follower.store.listing.done.any():
            store = self._follower.store
            times = np.sort(store.listing.when[store.listing.done])
            last = times[-1]
            facts["written"] = int(last // 10**9)
            begin = max(started * 1e9, min(last - _WINDOW, times[-20:][0]))
            count = np.count_nonzero(times > begin) * store.chunks.points
            if missing and last > begin:
                facts["rate"] = rate = float(count / (last - begin) * 1e9)
                facts["left"] = missing / rate
        return facts

    def _trained(self, result: TrainResult, steps: int) -> dict[str, Any]:
        """Return counts of trainings, their shares of all steps, and the time left."""
        size, failed = len(result.active), np.zeros(len(result.active), bool)
        failed[[*result.errors]] = True
        stopped, whole = ~(result.active | failed), max(1, size * steps)
        kinds = {"done": result.active, "stopped": stopped, "failed": failed}
        rest = steps - result.trained
        shares = {k: rest[x].sum() / whole for k, x in kinds.items()}
        facts: dict[str, Any] = {
            "unit": "trainings",
            "step": result.step,
            "steps": steps,
            "counts": {k: int(x.sum()) for k, x in kinds.items()} | {"total": size},
            "shares": shares | {"done": result.trained.sum() / whole},
        }
        times = [] if self._result else [x.when for x in self._saved if x is not None]
        if times:
            now, facts["written"] = max(times) / 1e9, max(times) // 10**9
            # The step at which a call began is not recorded, so checkpoints are
            # compared; those of a training that began again do not count.
            kept = [pair for pair in self._paces if pair[1] <= result.step]
            self._paces = [*kept, (now, result.step)][-8:]
            (then, before), left = self._paces[0], steps - result.step
            if left and result.step > before and now > then:
                facts["rate"] = rate = (result.step - before) / (now - then)
                facts["left"] = left / rate
        return facts


def _in_memory(leaf: object) -> Any:
    return leaf[...] if isinstance(leaf, StoredArray) else leaf
