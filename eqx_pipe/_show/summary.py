"""The data of a page: at most some hundred lines, however large the store is.

Bands are quantiles, maps are means, and of points there is a sample with the best. All
numbers are computed here, so that a browser gets a few kilobytes.
"""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .._spaces import Space
from .._sweep import SweepResult, ranked
from .._sweep.store import FAILED, MISSING
from .._train import STATUS
from .source import Reading, Source, evenly

LEVELS = 0.05, 0.25, 0.5, 0.75, 0.95
"""The quantiles of bands: the median, and the ends of 50 % and 90 %."""

_LANES, _SAMPLE, _CELLS, _TOP, _GROUPS, _CHUNKS, _COLUMNS = 64, 700, 64, 10, 6, 24, 240
"""The most lanes of a population, points of a sample, cells on a side of a map, rows of
a table, groups of curves, chunks read for the sample, and columns of a line."""


def view(
    source: Source, metric: str = "", mode: str = "", group: str = ""
) -> dict[str, Any]:
    """Return what a page shows of a store, as arrays, numbers and texts.

    `metric` and `mode` (`"min"` or `"max"`) are by default those recorded, or else the
    first output and `"min"`. `group` is the dim that groups curves, or `"all"`.
    """
    reading, name = source.reading(), source.path.rstrip("/").rpartition("/")[2]
    found: dict[str, Any] = {"name": name, "now": int(time.time()), **reading.facts}
    found |= {"kind": reading.kind, "metrics": [], "metric": "", "mode": "min"}
    result = reading.result
    if result is None:
        return found
    space, names = result.space, metrics_of(reading)
    found |= {"function": result.function, "dims": space.dims, "metrics": names}
    found |= {"failures": _failures(result), "axes": _axes(space)}
    if not names:
        return found
    metric, mode = chosen(reading, metric, mode)
    values, scores = numbers_of(reading, metric)
    ok = np.asarray(result.ok)
    order = ranked(scores, mode, ok & ~np.isnan(scores))
    few, columns = _sampled(reading, order), Columns(reading)
    others = [k for k in names if k != metric and k in reading.outputs][:3]
    outputs = {metric: scores[few], **{k: reading.read(k, few) for k in others}}
    settings = None if columns.changed or _is_uneven(reading) else _settings(space)
    if settings is None:
        cells = {k: x[np.searchsorted(few, order[:_TOP])] for k, x in outputs.items()}
        table = _best(reading, columns, order[:_TOP], cells)
        rows = order[:_TOP, None]
    else:
        known = np.where(ok, scores, np.nan)
        table, rows = _best_settings(columns, settings, metric, mode, known, few)
    found |= {"metric": metric, "mode": mode, "table": table | {"metric": metric}}
    found["lost"] = int((ok & ~np.isfinite(scores)).sum())
    found["sample"] = {"i": few, "total": len(result), "outputs": outputs}
    found["sample"]["columns"] = columns.at(few, replicates=False)
    if values is not None:
        # Groups of one setting each show its mean already.
        curve, (by, choices, groups) = reading.curves[metric], _grouped(space, group)
        top = rows[:5] if settings is None or len(groups) == 1 else rows[:0]
        best = [{"i": row[:1], "y": values[row].mean(axis=0)} for row in top]
        curves = {"dim": curve.dim, "steps": curve.steps[curve.picked], "top": best}
        curves["bands"] = [
            {"name": name, "count": len(rows), "q": bands_of(values[rows])}
            for name, rows in groups
        ]
        found |= {"group": by, "groupings": choices, "curves": curves}
    if reading.rounds is not None:
        found["history"] = _history(reading.rounds, scores, mode)
    elif not columns.changed:
        found |= _grid(space, np.where(ok, scores, np.nan), np.asarray(result.status))
    if reading.training is not None:
        found["states"] = _states(reading.training.curves)
        if columns.changed and len(order):
            found["population"] = _population(reading, metric, columns, order)
    return found


def pair(sources: Sequence[Source], metric: str = "", mode: str = "") -> dict[str, Any]:
    """Return the views of two stores, and their settings by coordinates.

    The mean of a setting is that over replicates, and over axes that only one of the
    stores has. A setting without a value at one of its points has no mean.
    """
    readings = [source.reading() for source in sources]
    first, second = map(metrics_of, readings)
    common = [name for name in first if name in second]
    if common:
        metric, mode = chosen(readings[0], metric, mode)
        metric = metric if metric in common else common[0]
    views = [view(source, metric, mode, "all") for source in sources]
    found: dict[str, Any] = {"views": views, "matched": None, "metrics": common}
    found |= {"metric": metric, "mode": views[0]["mode"]}
    axes, others = (_settled(reading) for reading in readings)
    shared = [name for name in axes if name in others]
    if not common or not shared:
        return found
    means = [_means(reading, shared, metric) for reading in readings]
    keys = [key for key in means[0] if key in means[1]]
    before, after = (np.array([each[key] for key in keys]) for each in means)
    change, known = after - before, ~np.isnan(after - before)
    if not known.any():
        return found
    order = ranked(after, found["mode"], known)
    few, good = order[evenly(len(order), _SAMPLE)], -1 if found["mode"] == "min" else 1
    columns = zip(*[keys[k] for k in order[:_TOP]], strict=True)
    cells = dict(zip(shared, columns, strict=True))
    moves = {"before": before, "after": after, "change": change}
    cells |= {name: x[order[:_TOP]] for name, x in moves.items()}
    found["matched"] = {
        "count": len(order),
        "better": int((good * change > 0).sum()),
        "worse": int((good * change < 0).sum()),
        "median": np.median(change[known]),
        "before": before[few],
        "after": after[few],
        "texts": [", ".join(map(_text, keys[k])) for k in few],
        "i": few,
        "table": _rows(order[:_TOP, None], cells)
        | {"metric": "after", "over": "replicates"},
    }
    return found


def _settled(reading: Reading) -> list[str]:
    """Return the axes that are no replicates."""
    axes = {} if reading.result is None else reading.result.space.axes()
    return [name for name, axis in axes.items() if axis.replicates is None]


def _means(
    reading: Reading, shared: list[str], metric: str
) -> dict[tuple[Any, ...], float]:
    """Return the mean of each setting of some axes."""
    assert reading.result is not None
    columns = Columns(reading).at(np.arange(len(reading.result)))
    _, scores = numbers_of(reading, metric)
    scores = np.where(np.asarray(reading.result.ok), scores, np.nan).astype(np.float64)
    places: dict[tuple[Any, ...], list[int]] = {}
    lists = [columns[name].tolist() for name in shared if name in columns]
    for k, values in enumerate(zip(*lists, strict=True)):
        # Equal to six digits, as an axis may have been made in another way.
        key = (float(f"{x:.6g}") if isinstance(x, float) else x for x in values)
        places.setdefault(tuple(key), []).append(k)
    return {key: scores[rows].mean() for key, rows in places.items()}


def metrics_of(reading: Reading) -> list[str]:
    """Return the outputs to choose from, without what a scheduler has recorded."""
    names = [] if reading.result is None else reading.result.space.names
    hidden = {"parent", *(f"point.{name}" for name in names)}
    every = dict.fromkeys([*reading.curves, *reading.outputs])
    return [name for name in every if name not in hidden]


def chosen(reading: Reading, metric: str, mode: str) -> tuple[str, str]:
    """Return the metric and the direction: those asked for, or those recorded."""
    names, by = metrics_of(reading), reading.goal.get("by")
    if metric not in names:
        dims = {name: curve.dim for name, curve in reading.curves.items()}
        evaluated = [name for name in names if dims.get(name) == "eval_step"]
        metric = by if by in names else [*evaluated, *names][0]
    if mode not in ("min", "max"):
        is_that = metric == by or not by and len(names) == 1
        mode = reading.goal.get("mode", "min") if is_that else "min"
    return metric, mode


def numbers_of(reading: Reading, name: str) -> tuple[np.ndarray | None, np.ndarray]:
    """Return the shown columns of a curve, if it is one, and the newest numbers."""
    values = reading.read(name) if name in reading.curves else None
    if reading.training is not None:
        return values, np.asarray(reading.outputs[name])
    return values, reading.read(name) if values is None else values[:, -1]


def _sampled(reading: Reading, order: np.ndarray) -> np.ndarray:
    """Return points to draw, the best among them, of few chunks of a store."""
    known, leaves = order, [*reading.outputs.values(), *reading.curves.values()]
    stores = (getattr(getattr(x, "leaf", x), "store", None) for x in leaves)
    store = next((x for x in stores if x is not None), None)
    if store is not None and len(store.chunks) > _CHUNKS:
        held = store.chunks.holding(known)
        some = np.random.default_rng(1).permutation(np.unique(held))[:_CHUNKS]
        known = known[np.isin(held, some)]
    if len(known) > _SAMPLE:
        known = np.random.default_rng(0).choice(known, _SAMPLE, replace=False)
    return np.union1d(known, order[:_TOP]).astype(int)


class Columns:
    """The values of axes at points, as trained last; `changed` are those of PBT."""

    def __init__(self, reading: Reading):
        assert reading.result is not None
        self._space, self.changed, self._last = reading.result.space, {}, {}
        for name in self._space.names:
            if (curve := reading.curves.get(f"point.{name}")) is not None:
                values = np.asarray(curve.leaf)
                if not np.array_equal(values, values[:, :1].repeat(values.shape[1], 1)):
                    self.changed[name] = values
                    self._last[name] = np.asarray(reading.outputs[f"point.{name}"])

    def at(self, index: np.ndarray, replicates: bool = True) -> dict[str, np.ndarray]:
        """Return the numbers and texts of axes at some points."""
        geometry, found = self._space.geometry, {}
        digits = geometry.digits(index)
        for name, dim in zip(geometry.names, geometry.axis_dims, strict=True):
            if replicates or geometry.axes[name].replicates is None:
                few, back = np.unique(digits[:, dim], return_inverse=True)
                for column, value in geometry.axis_values(name, few):
                    if value.ndim == 1:
                        found[column] = value[back]
        return found | {name: x[index] for name, x in self._last.items()}


def _axes(space: Space) -> dict[str, Any]:
    return {
        name: {
            "label": axis.label or name,
            "unit": axis.unit,
            "log": bool(getattr(axis, "is_log", False)),
        }
        for name, axis in space.axes().items()
    }


def _of_dims(space: Space) -> dict[str, list[str]]:
    """Return the axes of each dim of a grid; nothing for a part of it."""
    geometry, dims = space.geometry, [*space.dims]
    if geometry.is_part or not space.size:
        return {}
    found: dict[str, list[str]] = {dim: [] for dim in dims}
    for name, k in zip(geometry.names, geometry.axis_dims, strict=True):
        found[dims[k]].append(name)
    return found


def _seeds(space: Space) -> list[str]:
    """Return the dims of replicates."""
    axes = space.axes()
    of = _of_dims(space).items()
    return [dim for dim, names in of if any(axes[n].replicates for n in names)]


def _settings(space: Space) -> tuple[np.ndarray, str] | None:
    """Return the points of each setting, one setting a row, and the dims of replicates.

    `None` if there are no replicates, or nothing else.
    """
    over, lengths = _seeds(space), [*space.dims.values()]
    if not over or len(over) == len(lengths):
        return None
    last = [[*space.dims].index(dim) for dim in over]
    points = np.arange(space.size).reshape(lengths)
    points = np.moveaxis(points, last, range(-len(last), 0))
    return points.reshape(-1, math.prod(lengths[k] for k in last)), ", ".join(over)


def _is_uneven(reading: Reading) -> bool:
    """Return whether a scheduler stopped some trainings, maybe of one setting."""
    found = reading.training
    return found is not None and int((~found.active).sum()) > len(found.errors)


def _rows(points: Iterable[Any], cells: Mapping[str, Any]) -> dict[str, Any]:
    rows = zip(points, zip(*cells.values(), strict=True), strict=True)
    rows = [{"i": [*each], "cells": row} for each, row in rows]
    return {"columns": [*cells], "rows": rows}


def _best(
    reading: Reading, columns: Columns, order: np.ndarray, outputs: dict[str, Any]
) -> dict[str, Any]:
    """Return the best points."""
    cells, training = columns.at(order) | outputs, reading.training
    if reading.rounds is not None:
        cells["round"] = reading.rounds[order]
    if training is not None and not training.active.all():
        state = "done" if training.step >= reading.facts["steps"] else "running"
        cells["trained"] = training.trained[order]
        cells["state"] = np.where(training.active[order], state, "stopped")
    return _rows(order[:, None], cells)


def _best_settings(
    columns: Columns,
    settings: tuple[np.ndarray, str],
    metric: str,
    mode: str,
    scores: np.ndarray,
    few: np.ndarray,
) -> tuple[dict[str, Any], np.ndarray]:
    """Return the best settings by their means over replicates, and their points."""
    points, over = settings
    with np.errstate(invalid="ignore"):
        scores = scores[points].astype(np.float64)
        means, spread = scores.mean(axis=1), scores.std(axis=1)
    order = ranked(means, mode, ~np.isnan(means))[:_TOP]
    cells = columns.at(points[order, 0], replicates=False)
    cells |= {metric: means[order], "± std": spread[order]}
    shown = [[row[0], *np.intersect1d(row[1:], few)] for row in points[order]]
    table = _rows(shown, cells) | {"over": f"{points.shape[1]} × {over}"}
    return table, points[order]


def bands_of(values: np.ndarray) -> np.ndarray:
    """Return `LEVELS` of the finite values of each column, `(levels, columns)`."""
    values = np.sort(np.where(np.isfinite(values), values, np.nan), axis=0)
    last = np.maximum(np.isfinite(values).sum(axis=0) - 1, 0)
    at = np.stack([(last * level).round().astype(int) for level in LEVELS])
    return np.take_along_axis(values, at, axis=0)


def _grouped(space: Space, group: str) -> tuple[str, list[str], list[tuple[str, Any]]]:
    """Return a dim, the dims to choose from, and the points of ranges of its values."""
    every, of, seeds = np.arange(space.size), _of_dims(space), _seeds(space)
    choices = [d for d in of if 1 < space.dims[d] < space.size and d not in seeds]
    by = group if group in [*choices, "all"] else [*choices, "all"][0]
    if by == "all":
        return by, [*choices, "all"], [("all", every)]
    digits = space.geometry.digits(every)[:, [*of].index(by)]
    name, count, groups = of[by][0], space.dims[by], []
    values = _values(space, name, count)
    for part in np.array_split(np.arange(count), min(count, _GROUPS)):
        ends = dict.fromkeys(_text(values[j]) for j in part[[0, -1]])
        rows = every[(digits >= part[0]) & (digits <= part[-1])]
        groups.append((f"{name} {' – '.join(ends)}", rows))
    return by, [*choices, "all"], groups


def _values(space: Space, name: str, count: int) -> np.ndarray:
    """Return the values of an axis; of a pytree, those of its first leaf."""
    return space.geometry.axis_values(name, np.arange(count))[0][1]


def _text(x: Any) -> str:
    return f"{x:.3g}" if isinstance(x, float | np.floating) else str(x)


def _history(rounds: np.ndarray, scores: np.ndarray, mode: str) -> dict[str, Any]:
    """Return the points of a search in their order, and the best so far."""
    some = evenly(len(scores), _SAMPLE)
    best, worst = (np.fmin, np.inf) if mode == "min" else (np.fmax, -np.inf)
    so_far = best.accumulate(np.where(np.isfinite(scores), scores, worst))[some]
    return {"at": some, "value": scores[some], "best": so_far, "round": rounds[some]}


def _grid(space: Space, scores: np.ndarray, status: np.ndarray) -> dict[str, Any]:
    """Return the mean over all but two dims as a map, or bands over one dim."""
    of, dims, seeds = _of_dims(space), space.dims, _seeds(space)
    free = [d for d in of if dims[d] > 1 and d not in seeds]
    longest = sorted(free, key=lambda d: -dims[d])[:2]
    free = [d for d in free if d in longest]
    if not free or any(len(names) != 1 for names in of.values()):
        return {}
    names = [of[d][0] for d in free]
    sides = [_values(space, name, dims[d]) for name, d in zip(names, free, strict=True)]
    if any(values.ndim > 1 for values in sides):
        return {}

    def turned(x: np.ndarray) -> np.ndarray:
        front = [[*dims].index(d) for d in free]
        x = np.moveaxis(x.reshape(*dims.values()), front, range(len(free)))
        return x.reshape(*x.shape[: len(free)], -1)

    array = turned(scores)
    if len(free) == 1:
        some = evenly(len(array), _COLUMNS)
        line = {"x": names[0], "steps": sides[0][some], "count": array.shape[1]}
        return {"line": line | {"q": bands_of(array[some].T)}}
    edges = [np.linspace(0, dims[d], min(dims[d], _CELLS) + 1) for d in free]
    cuts = [np.unique(edge.astype(int))[:-1] for edge in edges]

    def cells(x: np.ndarray) -> np.ndarray:
        return np.add.reduceat(np.add.reduceat(x.sum(axis=2), cuts[0], 0), cuts[1], 1)

    known = np.isfinite(array)
    total, count = cells(np.where(known, array, 0)), cells(known.astype(int))
    with np.errstate(invalid="ignore"):
        grid: dict[str, Any] = {"z": (total / count).T, "x": names[0], "y": names[1]}
    for name, code in (("failed", FAILED), ("missing", MISSING)):
        marks = cells(turned(status == code).astype(int)) > 0
        grid[name] = np.argwhere((marks & (count == 0)).T)
        if code == FAILED:
            grid["some"] = np.argwhere((marks & (count > 0)).T)
    grid["xs"], grid["ys"] = (x[cut] for x, cut in zip(sides, cuts, strict=True))
    return {"grid": grid | {"over": [d for d in of if d not in free]}}


def _states(curves: SweepResult) -> dict[str, Any]:
    marks = np.asarray(curves.values[STATUS])
    some = evenly(marks.shape[1], _COLUMNS)
    (steps,) = curves.output_coords[STATUS].values()
    names = enumerate(("stopped", "running", "failed"))
    counts = {name: (marks[:, some] == k).sum(axis=0) for k, name in names}
    return {"steps": np.asarray(steps)[some], **counts}


def _population(
    reading: Reading, metric: str, columns: Columns, order: np.ndarray
) -> dict[str, Any]:
    """Return the values that a scheduler changed, and the ancestors of the best."""
    ends, shown = reading.curves["parent"].steps, reading.curves[metric]
    parents, picked = np.asarray(reading.curves["parent"].leaf), evenly(len(ends), 60)
    lanes = np.union1d(evenly(len(parents), _LANES), order[:5]).astype(int)
    founder, line = np.arange(len(parents)), [order[0]]
    for k in range(len(ends)):
        founder = founder[parents[:, k]]
    for k in reversed(range(1, len(ends))):
        line.insert(0, parents[line[0], k])
    column = np.searchsorted(shown.steps, ends[picked], "right") - 1
    return {
        "steps": ends[picked],
        "lanes": lanes,
        "founders": len(np.unique(founder)),
        "metric": np.asarray(shown.leaf)[lanes][:, np.maximum(column, 0)],
        "params": {
            name: {
                "values": values[lanes][:, picked],
                "best": values[line, np.arange(len(ends))][picked],
            }
            for name, values in columns.changed.items()
        },
    }


def _failures(result: SweepResult) -> list[dict[str, Any]]:
    """Return the most frequent errors, with the values of axes where they occurred."""
    found, columns = [], Columns(Reading("", {}, result))
    for text, points in sorted(result._errors.items(), key=lambda x: -len(x[1]))[:8]:
        ranges = {
            k: [x.min(), x.max()] if x.dtype.kind in "biuf" else np.unique(x)[:6]
            for k, x in columns.at(points, replicates=False).items()
        }
        row = {"text": text, "count": len(points), "first": points[:3]}
        found.append(row | {"ranges": ranges})
    return found


def plain(x: Any) -> Any:
    """Return what JSON supports: numbers with five digits, NaN as null."""
    if isinstance(x, Mapping):
        return {k: plain(v) for k, v in x.items()}
    x = x.tolist() if isinstance(x, np.ndarray | np.generic) else x
    if isinstance(x, list | tuple):
        return [plain(v) for v in x]
    if isinstance(x, float):
        return float(f"{x:.5g}") if math.isfinite(x) else None
    return x
