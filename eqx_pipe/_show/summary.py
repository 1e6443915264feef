"""What a page shows of a store: at most some hundred lines, however large the store is.

Bands are quantiles, maps are means, and of points there is a sample with the best. All
numbers are computed here, so that a browser gets a few kilobytes.
"""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .._spaces import Space
from .._sweep import ranked
from .._sweep.store import FAILED, MISSING
from .._train import STATUS
from .source import Reading, Source, evenly

LEVELS = 0.05, 0.25, 0.5, 0.75, 0.95
"""The quantiles of bands: the median, and the ends of 50 % and 90 %."""

_LANES, _SAMPLE, _CELLS, _TOP, _GROUPS, _CHUNKS, _COLUMNS = 64, 700, 64, 10, 6, 32, 240
"""The most lanes of a population, points of a sample, cells on a side of a map, rows of
a table, groups of curves, chunks read for the sample, and columns of a line."""


def view(
    source: Source, metric: str = "", mode: str = "", group: str = ""
) -> dict[str, Any]:
    """Return what a page shows of a store, as arrays, numbers and texts.

    **Arguments:**

    - `metric`: the output to show, by default the one that the call optimised, or else
      the first.
    - `mode`: `"min"` or `"max"`; by default as recorded, or else `"min"`.
    - `group`: the dim by whose values curves are grouped, or `"all"`.
    """
    found: dict[str, Any] = {"name": source.name, "now": int(time.time()), "metrics": []}
    reading = source.reading()
    if reading is None:
        return found | {"kind": "reduction"} | source.progress()
    space, result = reading.result.space, reading.result
    found |= {"kind": reading.kind, "function": result.function, **reading.facts}
    found |= {"dims": space.dims, "failures": _failures(result)}
    names = metrics_of(reading)
    if not names:
        return found
    metric, mode = chosen(reading, names, metric, mode)
    values, scores = numbers_of(reading, metric)
    allowed = np.asarray(result.ok) & ~np.isnan(scores)
    order = ranked(scores, mode, allowed)
    found |= {"metrics": names, "metric": metric, "mode": mode}
    found["lost"] = int((np.asarray(result.ok) & ~np.isfinite(scores)).sum())
    few = _sampled(reading, order, allowed)
    columns = Columns(reading)
    settings = None if columns.changed or _is_uneven(reading) else replicates_of(space)
    found["axes"] = _axes(space)
    if settings is None:
        found["table"] = _table(reading, columns, metric, scores, order[:_TOP])
    else:
        found["table"] = _settings(columns, metric, mode, scores, settings, few, result)
    found["sample"] = {
        "i": few,
        "total": len(result),
        "columns": columns.at(few, replicates=False),
        "outputs": _outputs(reading, metric, scores, few),
    }
    if values is not None:
        found |= _curves(reading, metric, values, group, found["table"])
    if reading.rounds is not None:
        found["history"] = _history(reading.rounds, scores, mode)
    elif values is None or settings is None:
        found |= _grid(space, np.where(allowed, scores, np.nan), result.status)
    if reading.training is not None:
        found["states"] = _states(reading.training.curves)
        if columns.changed:
            found["population"] = _population(reading, metric, columns.changed, order)
    return found


def pair(sources: Sequence[Source], metric: str = "", mode: str = "") -> dict[str, Any]:
    """Return the views of two stores, and their settings by coordinates.

    The mean of a setting is that over its replicates, and over axes that only one of
    the stores has. A setting without a value at one of its points has no mean.
    """
    views = [view(source, metric, mode, "all") for source in sources]
    common = [name for name in views[0]["metrics"] if name in views[1]["metrics"]]
    if common and metric not in common:
        metric = views[0]["metric"] if views[0]["metric"] in common else common[0]
        views = [view(source, metric, mode, "all") for source in sources]
    for each in views:
        each["metrics"] = common
    found: dict[str, Any] = {"views": views, "matched": None}
    readings = [source.reading() for source in sources]
    if not common or None in readings:
        return found
    means, shared = [], None
    for reading in readings:
        assert reading is not None
        axes = reading.result.space.axes()
        kept = [k for k, axis in axes.items() if axis.replicates is None]
        shared = [k for k in kept if shared is None or k in shared]
    for reading in readings:
        assert reading is not None
        means.append(_means(reading, shared or [], metric))
    keys = [key for key in means[0] if key in means[1]]
    if not shared or not keys:
        return found
    both = np.array([[each[key] for each in means] for key in keys], float)
    change = both[:, 1] - both[:, 0]
    better = change < 0 if views[0]["mode"] == "min" else change > 0
    order = ranked(both[:, 1], views[0]["mode"], ~np.isnan(change))
    few = np.union1d(order[:_TOP], order[evenly(len(order), _SAMPLE)]).astype(int)
    cells = [[*keys[k], *both[k], change[k]] for k in order[:_TOP]]
    found["matched"] = {
        "count": len(order),
        "better": int(better.sum()),
        "worse": int((~better & (change != 0) & ~np.isnan(change)).sum()),
        "median": float(np.median(change[order])) if len(order) else None,
        "i": few,
        "before": both[few, 0],
        "after": both[few, 1],
        "texts": [
            ", ".join(f"{n} {_text(x)}" for n, x in zip(shared, keys[k])) for k in few
        ],
        "table": {
            "columns": [*shared, "before", "after", "change"],
            "metric": "after",
            "rows": [{"i": [k], "cells": x} for k, x in zip(order[:_TOP], cells)],
        },
    }
    return found


def _means(reading: Reading, shared: list[str], metric: str) -> dict[Any, float]:
    """Return the mean of each setting of some axes."""
    index = np.arange(len(reading.result))
    columns = Columns(reading).at(index)
    given = [columns[k].tolist() for k in shared if k in columns]
    _, scores = numbers_of(reading, metric)
    scores = np.where(np.asarray(reading.result.ok), scores, np.nan)
    places: dict[Any, list[int]] = {}
    for k, key in enumerate(zip(*given, strict=True)):
        # Equal to six digits, as an axis may have been made in another way.
        name = tuple(float(f"{x:.6g}") if isinstance(x, float) else x for x in key)
        places.setdefault(name, []).append(k)
    return {name: scores[at].astype(float).mean() for name, at in places.items()}


def metrics_of(reading: Reading) -> list[str]:
    """Return the outputs to choose from, without what a scheduler has recorded."""
    hidden = {"parent", *(f"point.{name}" for name in reading.result.space.names)}
    names = dict.fromkeys([*reading.curves, *reading.outputs])
    return [name for name in names if name not in hidden]


def chosen(
    reading: Reading, names: list[str], metric: str, mode: str
) -> tuple[str, str]:
    """Return the metric and the direction: those asked for, or those recorded."""
    by = reading.goal.get("by") or reading.goal.get("metric")
    if metric not in names:
        evaluated = [k for k in names if k in reading.curves]
        evaluated = [k for k in evaluated if reading.curves[k].dim == "eval_step"]
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


def _sampled(reading: Reading, order: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Return points to draw, the best among them, of few chunks of a store."""
    known = np.flatnonzero(allowed)
    leaves = (*reading.outputs.values(), *(x.leaf for x in reading.curves.values()))
    store = next((x.store for x in leaves if hasattr(x, "store")), None)
    if store is not None and len(store.chunks) > _CHUNKS:
        held = store.chunks.holding(known)
        some = np.random.default_rng(1).permutation(np.unique(held))[: _CHUNKS - _TOP]
        known = known[np.isin(held, some)]
    if len(known) > _SAMPLE:
        known = np.random.default_rng(0).choice(known, _SAMPLE, replace=False)
    return np.union1d(known, order[:_TOP]).astype(int)


class Columns:
    """The values of axes at points, as trained last; `changed` are those of PBT."""

    def __init__(self, reading: Reading):
        self._space, self._reading = reading.result.space, reading
        curves = reading.curves
        varied = {k: f"point.{k}" for k in self._space.names if f"point.{k}" in curves}
        self.changed = {
            k: name
            for k, name in varied.items()
            if not np.array_equal(
                (x := np.asarray(curves[name].leaf)),
                np.broadcast_to(x[:, :1], x.shape),
                equal_nan=True,
            )
        }

    def at(self, index: np.ndarray, replicates: bool = True) -> dict[str, np.ndarray]:
        """Return the numbers and texts of axes at some points."""
        geometry, found = self._space.geometry, {}
        digits = geometry.digits(index)
        for name, dim in zip(geometry.names, geometry.axis_dims, strict=True):
            if geometry.axes[name].replicates is not None and not replicates:
                continue
            few, back = np.unique(digits[:, dim], return_inverse=True)
            for column, value in geometry.axis_values(name, few):
                if value.ndim == 1:
                    found[column] = value[back]
            if name in self.changed:
                found[name] = np.asarray(self._reading.outputs[f"point.{name}"])[index]
        return found


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
    """Return the axes of each dim of a grid; nothing for its parts."""
    geometry = space.geometry
    found: dict[str, list[str]] = (
        {} if geometry.is_part else {x: [] for x in space.dims}
    )
    for name, k in zip(geometry.names, geometry.axis_dims, strict=True):
        if found:
            found[[*found][k]].append(name)
    return found


def replicates_of(space: Space) -> tuple[np.ndarray, str] | None:
    """Return the points of each setting, one setting a row, and the dims of replicates.

    `None` if there are no replicates, or nothing else.
    """
    axes, of = space.axes(), _of_dims(space)
    over = [d for d, names in of.items() if any(axes[n].replicates for n in names)]
    if not over or len(over) == len(of) or not space.size:
        return None
    lengths = [*space.dims.values()]
    last = [k for k, dim in enumerate(of) if dim in over]
    points = np.arange(space.size).reshape(lengths)
    points = np.moveaxis(points, last, range(-len(last), 0))
    count = math.prod(lengths[k] for k in last)
    return points.reshape(-1, count), ", ".join(over)


def _is_uneven(reading: Reading) -> bool:
    """Return whether replicates of a setting were trained for different steps."""
    found = reading.training
    ended = 0 if found is None else len(found.active) - found.active.sum()
    return found is not None and int(ended) > len(found.errors)


def _outputs(
    reading: Reading, metric: str, scores: np.ndarray, rows: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the metric and few other outputs at some points."""
    names = [k for k in metrics_of(reading) if k != metric and k in reading.outputs][:3]
    return {metric: scores[rows], **{k: reading.read(k, rows) for k in names}}


def _table(
    reading: Reading,
    columns: Columns,
    metric: str,
    scores: np.ndarray,
    order: np.ndarray,
) -> dict[str, Any]:
    cells = columns.at(order) | _outputs(reading, metric, scores, order)
    if reading.rounds is not None:
        cells["round"] = reading.rounds[order]
    training = reading.training
    if training is not None and not training.active.all():
        cells["trained"] = training.trained[order]
        cells["state"] = np.where(training.active[order], "running", "stopped")
    return _rows([[int(i)] for i in order], cells, metric)


def _rows(points: Any, cells: Mapping[str, np.ndarray], metric: str) -> dict[str, Any]:
    rows = zip(points, zip(*cells.values(), strict=True), strict=True)
    rows = [{"i": each, "cells": [*row]} for each, row in rows]
    return {"columns": [*cells], "metric": metric, "rows": rows}


def _settings(
    columns: Columns,
    metric: str,
    mode: str,
    scores: np.ndarray,
    settings: tuple[np.ndarray, str],
    few: np.ndarray,
    result: Any,
) -> dict[str, Any]:
    """Return the best settings by their means over replicates, as `best(over=)`."""
    points, over = settings
    scores = np.where(np.asarray(result.ok), scores.astype(np.float64), np.nan)
    with np.errstate(invalid="ignore"):
        means, spread = scores[points].mean(axis=1), scores[points].std(axis=1)
    order = ranked(means, mode, ~np.isnan(means))[:_TOP]
    cells = columns.at(points[order, 0], replicates=False)
    cells |= {metric: means[order], "± std": spread[order]}
    shown = [[int(row[0]), *np.intersect1d(row[1:], few)] for row in points[order]]
    found = _rows(shown, cells, metric)
    return found | {"over": f"{points.shape[1]} × {over}", "points": points[order]}


def bands_of(values: np.ndarray) -> np.ndarray:
    """Return `LEVELS` of the finite values of each column, `(levels, columns)`."""
    values = np.sort(np.where(np.isfinite(values), values, np.nan), axis=0)
    count = np.isfinite(values).sum(axis=0)
    at = [(np.maximum(count - 1, 0) * level).round().astype(int) for level in LEVELS]
    return np.stack([np.take_along_axis(values, x[None], 0)[0] for x in at])


def _curves(
    reading: Reading, metric: str, values: np.ndarray, group: str, table: dict[str, Any]
) -> dict[str, Any]:
    """Return curves as bands of groups, and those of the best."""
    curve, points = reading.curves[metric], table.pop("points", None)
    by, choices, groups = _grouped(reading.result.space, group)
    best = []
    for k, row in enumerate(table["rows"][:5]):
        rows = row["i"] if points is None else points[k]
        best.append({"i": row["i"], "y": values[rows].mean(axis=0)})
    curves = {
        "dim": curve.dim,
        "steps": curve.steps[curve.picked],
        "bands": [
            {"name": name, "count": len(rows), "q": bands_of(values[rows])}
            for name, rows in groups
        ],
        # Groups of one setting each show its mean already.
        "top": [] if points is not None and len(groups) > 1 else best,
    }
    return {"group": by, "groupings": choices, "curves": curves}


def _grouped(space: Space, group: str) -> tuple[str, list[str], list[tuple[str, Any]]]:
    """Return a dim, the dims to choose from, and the points of ranges of its values."""
    axes, every, of = space.axes(), np.arange(space.size), _of_dims(space)
    seeds = [d for d, names in of.items() if any(axes[n].replicates for n in names)]
    choices = [d for d in of if 1 < space.dims[d] < space.size and d not in seeds]
    by = group if group in [*choices, "all"] else [*choices, "all"][0]
    if by == "all":
        return by, [*choices, "all"], [("all", every)]
    k, name = [*of].index(by), of[by][0]
    digits = space.geometry.digits(every)[:, k]
    count = space.dims[by]
    (_, values), *_ = space.geometry.axis_values(name, np.arange(count))
    groups = []
    for part in np.array_split(np.arange(count), min(count, _GROUPS)):
        ends = dict.fromkeys(_text(values[j]) for j in (part[0], part[-1]))
        rows = every[(digits >= part[0]) & (digits <= part[-1])]
        groups.append((f"{name} {' – '.join(ends)}", rows))
    return by, [*choices, "all"], groups


def _text(x: Any) -> str:
    return f"{x:.3g}" if isinstance(x, float | np.floating) else str(x)


def _history(rounds: np.ndarray, scores: np.ndarray, mode: str) -> dict[str, Any]:
    """Return the points of a search in their order, and the best so far."""
    some = evenly(len(scores), _SAMPLE)
    best, worst = (np.fmin, np.inf) if mode == "min" else (np.fmax, -np.inf)
    so_far = best.accumulate(np.where(np.isfinite(scores), scores, worst))
    return {
        "at": some,
        "value": scores[some],
        "best": so_far[some],
        "round": rounds[some],
    }


def _grid(space: Space, scores: np.ndarray, status: Any) -> dict[str, Any]:
    """Return the mean over all but two dims as a map, or bands over one dim."""
    axes, of, dims = space.axes(), _of_dims(space), space.dims
    free = [d for d, n in of.items() if dims[d] > 1 and not axes[n[0]].replicates]
    free = sorted(free, key=lambda d: -dims[d])[:2]
    if not free or any(len(names) != 1 for names in of.values()):
        return {}
    free, geometry = [d for d in of if d in free], space.geometry
    sides = []
    for d in free:
        (_, values), *_ = geometry.axis_values(of[d][0], np.arange(dims[d]))
        sides.append(values)
    if any(values.ndim > 1 for values in sides):
        return {}
    array, front = scores.reshape(*dims.values()), [[*dims].index(d) for d in free]
    array = np.moveaxis(array, front, range(len(front)))
    array = array.reshape(*array.shape[: len(free)], -1)
    if len(free) == 1:
        some = evenly(len(array), _COLUMNS)
        line = {"x": of[free[0]][0], "values": sides[0][some]}
        return {"line": line | {"q": bands_of(array[some].T), "count": array.shape[1]}}
    cuts = [
        np.unique(np.linspace(0, n, min(n, _CELLS) + 1).astype(int))[:-1]
        for n in array.shape[:2]
    ]

    def cells(x: np.ndarray) -> np.ndarray:
        total = x.sum(axis=2)
        for axis, cut in enumerate(cuts):
            total = np.add.reduceat(total, cut, axis)
        return total

    known = np.isfinite(array)
    total, count = cells(np.where(known, array, 0)), cells(known.astype(int))
    with np.errstate(invalid="ignore"):
        grid: dict[str, Any] = {"z": (total / count).T}
    for name, code in (("failed", FAILED), ("missing", MISSING)):
        marks = (np.asarray(status) == code).reshape(*dims.values())
        marks = np.moveaxis(marks, front, (0, 1)).reshape(array.shape)
        grid[name] = np.argwhere((cells(marks.astype(int)) > 0) & (count == 0))[:, ::-1]
    names = [of[d][0] for d in free]
    grid |= {
        "x": names[0],
        "y": names[1],
        "xs": sides[0][cuts[0]],
        "ys": sides[1][cuts[1]],
    }
    return {"grid": grid | {"over": [d for d in of if d not in free]}}


def _states(curves: Any) -> dict[str, Any]:
    marks = np.asarray(curves.values[STATUS])
    some = evenly(marks.shape[1], _COLUMNS)
    steps = np.asarray(next(iter(curves.output_coords[STATUS].values())))[some]
    count = {name: (marks[:, some] == k).sum(0) for k, name in enumerate(_STATES)}
    return {"steps": steps, **count}


_STATES = "stopped", "running", "failed"


def _population(
    reading: Reading, metric: str, changed: Mapping[str, str], order: np.ndarray
) -> dict[str, Any]:
    """Return the values that a scheduler changed, and the ancestors of the best."""
    curve = next(reading.curves[name] for name in changed.values())
    parents, size = np.asarray(reading.curves["parent"].leaf), len(reading.result)
    ends, picked = curve.steps, evenly(len(curve.steps), 60)
    lanes = np.union1d(evenly(size, _LANES), order[:5]).astype(int)
    founder, founders, line = np.arange(size), [], np.zeros(len(ends), int)
    for k in range(len(ends)):
        founder = founder[parents[:, k]]
        founders.append(len(np.unique(founder)))
    best = int(order[0]) if len(order) else 0
    for k in reversed(range(len(ends))):
        line[k] = best
        best = parents[best, k]
    shown = reading.curves[metric]
    column = np.searchsorted(shown.steps, ends[picked], "right") - 1
    found = {
        "steps": ends[picked],
        "founders": founders[-1],
        "lanes": lanes,
        "metric": np.asarray(shown.leaf)[lanes][:, np.maximum(column, 0)],
    }
    for name, column in changed.items():
        all_values = np.asarray(reading.curves[column].leaf)
        along = all_values[line, np.arange(len(ends))]
        found.setdefault("params", {})[name] = {
            "values": all_values[lanes][:, picked],
            "best": along[picked],
        }
    return found


def _failures(result: Any) -> list[dict[str, Any]]:
    """Return the most frequent errors, with the ranges of axes where they occurred."""
    found = []
    for text, points in sorted(result._errors.items(), key=lambda x: -len(x[1]))[:8]:
        reading = Reading("", result, {}, {}, {}, {}, lambda *_: points)
        columns = Columns(reading).at(np.asarray(points), replicates=False)
        ranges = {
            k: [x.min(), x.max()] if x.dtype.kind in "biuf" else [*np.unique(x)[:6]]
            for k, x in columns.items()
        }
        row = {"text": text, "count": len(points), "first": points[:3]}
        found.append(row | {"ranges": ranges})
    return found


def plain(x: Any) -> Any:
    """Return what JSON supports: numbers with five digits, NaN as null."""
    if isinstance(x, Mapping):
        return {k: plain(v) for k, v in x.items()}
    if isinstance(x, np.ndarray | list | tuple):
        return [plain(v) for v in (x.tolist() if isinstance(x, np.ndarray) else x)]
    x = x.item() if isinstance(x, np.generic) else x
    if isinstance(x, float):
        return float(f"{x:.5g}") if math.isfinite(x) else None
    return x
