"""The data of a page: at most some hundred lines, however large the store is.

Bands are quantiles, maps are means, and of points there is a sample with the best. All
numbers are computed here, so that a browser gets a few kilobytes.
"""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .._results import SweepResult, means_of, ranked, replicates
from .._spaces import Space
from .._store import FAILED, MISSING, StoredArray
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
    page: dict[str, Any] = {"name": name, "now": int(time.time()), **reading.facts}
    page |= {"kind": reading.kind, "metrics": [], "metric": "", "mode": "min"}
    result = reading.result
    if result is None:
        return page
    names, dims = reading.metrics, Dims(result.space)
    page |= {"function": result.function, "dims": result.space.dims, "metrics": names}
    page |= {"failures": _failures(reading), "axes": _axes(result.space)}
    if not names:
        return page
    metric, mode = reading.chosen(metric, mode)
    values, scores = reading.numbers(metric)
    ok = result.ok
    order = ranked(scores, mode, ok & ~np.isnan(scores))
    few = _sampled(reading, order)
    others = [k for k in names if k != metric and k in reading.outputs][:3]
    outputs = {k: np.asarray(reading.outputs[k][few]) for k in others}
    outputs = {metric: scores[few], **outputs}
    over = [] if reading.changed or _is_uneven(reading) else dims.seeds
    if over and len(over) < len(dims.axes):  # settings by their means over replicates
        means = means_of(result.space, over, scores, ok)
        top = ranked(means, mode, ~np.isnan(means))[:_TOP]
        rows = replicates(result.space, over)[top]
        with np.errstate(invalid="ignore"):
            spread = scores[rows].std(axis=1, dtype=np.float64)
        cells = {metric: means[top], "± std": spread}
        page["table"] = {"over": f"{rows.shape[1]} × {', '.join(over)}"}
    else:
        over, rows, page["table"] = [], order[:_TOP, None], {}
        cells = {k: x[np.searchsorted(few, rows[:, 0])] for k, x in outputs.items()}
        cells |= _progress(reading, rows[:, 0])
    shown = [[row[0], *np.intersect1d(row[1:], few)] for row in rows]
    cells = reading.at(rows[:, 0], replicates=not over) | cells
    page["table"] |= _rows(shown, cells) | {"metric": metric}
    page |= {"metric": metric, "mode": mode}
    page["lost"] = int((ok & ~np.isfinite(scores)).sum())
    page["sample"] = {"i": few, "total": len(result), "outputs": outputs}
    page["sample"]["columns"] = reading.at(few, replicates=False)
    if reading.rounds is not None:
        page["history"] = _history(reading.rounds, scores, mode)
    elif not reading.changed:
        page |= _grid(dims, np.where(ok, scores, np.nan), result.status)
    if values is not None:
        by, choices, groups = _grouped(dims, group)
        # Groups of one setting each show its mean already.
        top = [] if over and len(groups) > 1 else rows[:5]
        curve = reading.curves[metric]
        page |= {"group": by, "groupings": choices}
        page["curves"] = {
            "x": "step" if curve.dim == "eval_step" else curve.dim,
            "steps": curve.steps[curve.picked],
            "top": [{"i": row[:1], "y": values[row].mean(axis=0)} for row in top],
            "bands": [_band(name, values[rows]) for name, rows in groups],
        }
    if reading.training is not None:
        page["states"] = _states(reading.training.curves)
        if reading.changed and len(order):
            page["population"] = _population(reading, metric, order)
    return page


def pair(sources: Sequence[Source], metric: str = "", mode: str = "") -> dict[str, Any]:
    """Return the views of two stores, and their settings by coordinates.

    The mean of a setting is that over replicates, and over axes that only one of the
    stores has. A setting without a value at one of its points has no mean.
    """
    readings = [source.reading() for source in sources]
    common = [name for name in readings[0].metrics if name in readings[1].metrics]
    if common:
        metric, mode = readings[0].chosen(metric, mode)
        metric = metric if metric in common else common[0]
    views = [view(source, metric, mode, "all") for source in sources]
    page: dict[str, Any] = {"views": views, "matched": None, "metrics": common}
    page |= {"metric": metric, "mode": views[0]["mode"]}
    if not common:
        return page
    results = [reading.result for reading in readings if reading.result is not None]
    every = [np.arange(len(result)) for result in results]
    axes = [x.at(i, replicates=False) for x, i in zip(readings, every, strict=True)]
    shared = [name for name in axes[0] if name in axes[1]]
    if not shared:
        return page
    pairs = zip(readings, axes, strict=True)
    means = [_means(each, metric, [x[name] for name in shared]) for each, x in pairs]
    keys = [key for key in means[0] if key in means[1]]
    before, after = (np.array([each[key] for key in keys]) for each in means)
    with np.errstate(invalid="ignore"):
        change = after - before
    has_both = ~np.isnan(change)
    if not has_both.any():
        return page
    order = ranked(after, page["mode"], has_both)
    few, good = order[evenly(len(order), _SAMPLE)], -1 if page["mode"] == "min" else 1
    top, moves = order[:_TOP], {"before": before, "after": after, "change": change}
    settings = zip(*[keys[k] for k in top], strict=True)
    cells: dict[str, Any] = dict(zip(shared, settings, strict=True))
    cells |= {name: x[top] for name, x in moves.items()}
    page["matched"] = {
        "count": len(order),
        "better": int((good * change > 0).sum()),
        "worse": int((good * change < 0).sum()),
        "median": np.median(change[has_both]),
        "before": before[few],
        "after": after[few],
        "texts": [", ".join(map(text_of, keys[k])) for k in few],
        "i": few,
        "table": _rows(top[:, None], cells) | {"metric": "after", "over": "replicates"},
    }
    return page


def _means(
    reading: Reading, metric: str, columns: Sequence[np.ndarray]
) -> dict[tuple[Any, ...], float]:
    """Return the mean of each setting of some axes."""
    assert reading.result is not None
    _, scores = reading.numbers(metric)
    scores = np.where(reading.result.ok, scores, np.nan).astype(np.float64)
    places: dict[tuple[Any, ...], list[int]] = {}
    for k, values in enumerate(zip(*(x.tolist() for x in columns), strict=True)):
        # Equal to six digits, as an axis may have been made in another way.
        key = (float(f"{x:.6g}") if isinstance(x, float) else x for x in values)
        places.setdefault(tuple(key), []).append(k)
    with np.errstate(invalid="ignore"):
        return {key: scores[rows].mean() for key, rows in places.items()}


def _sampled(reading: Reading, order: np.ndarray) -> np.ndarray:
    """Return points to draw, the best among them, of few chunks of a store."""
    points, leaves = order, reading.outputs.values()
    stored = [leaf for leaf in leaves if isinstance(leaf, StoredArray)]
    if stored and len(chunks := stored[0].store.chunks) > _CHUNKS:
        held = chunks.holding(points)
        some = np.random.default_rng(1).permutation(np.unique(held))[:_CHUNKS]
        points = points[np.isin(held, some)]
    points = points[evenly(len(points), _SAMPLE)]  # by rank
    return np.union1d(points, order[:_TOP]).astype(int)


def _axes(space: Space) -> dict[str, Any]:
    return {
        name: {"label": axis.label or name, "unit": axis.unit, "log": axis.is_log}
        for name, axis in space.axes().items()
    }


class Dims:
    """The axes of each dim of a grid; there are no dims in a part of a grid.

    `seeds` are the dims of replicates, and `free` the others with several values.
    """

    def __init__(self, space: Space):
        geometry, self.lengths = space.geometry, space.dims
        dims = [] if geometry.is_part or not space.size else [*self.lengths]
        pairs = [*zip(geometry.names, geometry.axis_dims, strict=True)]
        self.axes = {d: [n for n, at in pairs if at == k] for k, d in enumerate(dims)}
        drawn = {name for name, axis in geometry.axes.items() if axis.replicates}
        self.seeds = [dim for dim in dims if drawn.intersection(self.axes[dim])]
        rest = (dim for dim in dims if dim not in self.seeds)
        self.free, self._space = [dim for dim in rest if self.lengths[dim] > 1], space

    def values(self, dim: str) -> tuple[str, np.ndarray]:
        """Return the first axis of a dim and its values, of its first leaf."""
        name, positions = self.axes[dim][0], np.arange(self.lengths[dim])
        return name, self._space.geometry.axis_values(name, positions)[0][1]

    def first(self, few: Sequence[str], values: np.ndarray) -> np.ndarray:
        """Return values of all points with some dims first, and the others as one."""
        front = [[*self.axes].index(dim) for dim in few]
        values = values.reshape(*self.lengths.values())
        values = np.moveaxis(values, front, range(len(front)))
        return values.reshape(*values.shape[: len(front)], -1)


def _is_uneven(reading: Reading) -> bool:
    """Return whether a scheduler stopped some trainings, maybe of one setting."""
    training = reading.training
    return training is not None and int((~training.active).sum()) > len(training.errors)


def _rows(points: Iterable[Any], cells: Mapping[str, Any]) -> dict[str, Any]:
    rows = zip(points, zip(*cells.values(), strict=True), strict=True)
    rows = [{"i": [*each], "cells": row} for each, row in rows]
    return {"columns": [*cells], "rows": rows}


def _progress(reading: Reading, points: np.ndarray) -> dict[str, np.ndarray]:
    """Return the rounds of some points, or how far their trainings are."""
    cells, training = {}, reading.training
    if reading.rounds is not None:
        cells["round"] = reading.rounds[points]
    if training is not None and not training.active.all():
        state = "done" if training.step >= reading.facts["steps"] else "running"
        cells["trained"] = training.trained[points]
        cells["state"] = np.where(training.active[points], state, "stopped")
    return cells


def _band(name: str, values: np.ndarray) -> dict[str, Any]:
    return {"name": name, "count": len(values), "q": bands_of(values)}


def bands_of(values: np.ndarray) -> np.ndarray:
    """Return `LEVELS` of the finite values of each column, `(levels, columns)`."""
    values = np.sort(np.where(np.isfinite(values), values, np.nan), axis=0)
    last = np.maximum(np.isfinite(values).sum(axis=0) - 1, 0)
    at = np.stack([(last * level).round().astype(int) for level in LEVELS])
    return np.take_along_axis(values, at, axis=0)


def _grouped(
    dims: Dims, group: str
) -> tuple[str, list[str], list[tuple[str, np.ndarray]]]:
    """Return a dim, the dims to choose from, and the points of ranges of its values."""
    size = math.prod(dims.lengths.values())
    choices = [*(dim for dim in dims.free if dims.lengths[dim] < size), "all"]
    by = group if group in choices else choices[0]
    if by == "all":
        return by, choices, [("all", np.arange(size))]
    (name, values), groups = dims.values(by), []
    points = dims.first([by], np.arange(size))
    for part in np.array_split(np.arange(len(values)), min(len(values), _GROUPS)):
        ends = dict.fromkeys(text_of(values[j]) for j in part[[0, -1]])
        groups.append((f"{name} {' – '.join(ends)}", points[part].ravel()))
    return by, choices, groups


def text_of(x: object) -> str:
    return f"{x:.3g}" if isinstance(x, float | np.floating) else str(x)


def _history(rounds: np.ndarray, scores: np.ndarray, mode: str) -> dict[str, Any]:
    """Return the points of a search in their order, and the best so far."""
    some = evenly(len(scores), _SAMPLE)
    best, worst = (np.fmin, np.inf) if mode == "min" else (np.fmax, -np.inf)
    so_far = best.accumulate(np.where(np.isfinite(scores), scores, worst))[some]
    return {"at": some, "value": scores[some], "best": so_far, "round": rounds[some]}


def _grid(dims: Dims, scores: np.ndarray, status: np.ndarray) -> dict[str, Any]:
    """Return the mean over all but two dims as a map, or bands over one dim."""
    longest = sorted(dims.free, key=lambda dim: -dims.lengths[dim])[:2]
    free = [dim for dim in dims.free if dim in longest]
    if not free or any(len(names) != 1 for names in dims.axes.values()):
        return {}
    names, sides = zip(*map(dims.values, free), strict=True)
    if any(values.ndim > 1 for values in sides):
        return {}
    array = dims.first(free, scores)
    if len(free) == 1:
        some = evenly(len(array), _COLUMNS)
        band = _band(names[0], array[some].T)
        line = {"x": names[0], "steps": sides[0][some], "bands": [band], "top": []}
        return {"curves": line}
    edges = [np.linspace(0, len(x), min(len(x), _CELLS) + 1) for x in sides]
    cuts = [np.unique(edge.astype(int))[:-1] for edge in edges]

    def cells(x: np.ndarray) -> np.ndarray:
        return np.add.reduceat(np.add.reduceat(x.sum(axis=2), cuts[0], 0), cuts[1], 1)

    finite = np.isfinite(array)
    total, count = cells(np.where(finite, array, 0)).T, cells(finite.astype(int)).T
    with np.errstate(invalid="ignore"):
        grid: dict[str, Any] = {"z": total / count, "x": names[0], "y": names[1]}
    masks = status == FAILED, status == MISSING
    failed, missing = (cells(dims.first(free, m.astype(int))).T > 0 for m in masks)
    marks = {"failed": failed, "some": failed, "missing": missing}
    for name, there in marks.items():
        grid[name] = np.argwhere(there & ((count > 0) == (name == "some")))
    grid["xs"], grid["ys"] = (x[cut] for x, cut in zip(sides, cuts, strict=True))
    return {"grid": grid | {"over": [dim for dim in dims.axes if dim not in free]}}


def _states(curves: SweepResult) -> dict[str, Any]:
    marks = np.asarray(curves.values[STATUS])
    some = evenly(marks.shape[1], _COLUMNS)
    (steps,) = curves.output_coords[STATUS].values()
    names = enumerate(("stopped", "running", "failed"))
    counts = {name: (marks[:, some] == k).sum(axis=0) for k, name in names}
    return {"steps": np.asarray(steps)[some], **counts}


def _population(reading: Reading, metric: str, order: np.ndarray) -> dict[str, Any]:
    """Return the values that a scheduler changed, and the ancestors of the best."""
    assert reading.training is not None
    curves, shown = reading.training.curves, reading.curves[metric]
    parents = np.asarray(curves.values["parent"])
    ends = np.asarray([*curves.output_coords["parent"].values()][0])
    picked, lanes = evenly(len(ends), 60), evenly(len(parents), _LANES)
    lanes = np.union1d(lanes, order[:5]).astype(int)
    founder, line = np.arange(len(parents)), [order[0]]
    for column in parents.T:
        founder = founder[column]
    for column in parents.T[:0:-1]:
        line.insert(0, column[line[0]])
    column = np.searchsorted(shown.steps, ends[picked], "right") - 1
    at, metrics = np.arange(len(ends)), np.asarray(shown.leaf)
    params = {
        name: {"values": values[lanes][:, picked], "best": values[line, at][picked]}
        for name, values in reading.changed.items()
    }
    page = {"steps": ends[picked], "lanes": lanes, "founders": len(np.unique(founder))}
    return page | {"metric": metrics[lanes][:, np.maximum(column, 0)], "params": params}


def _failures(reading: Reading) -> list[dict[str, Any]]:
    """Return the most frequent errors, with the values of axes where they occurred."""
    assert reading.result is not None
    rows, errors = [], reading.result._errors.items()
    for text, points in sorted(errors, key=lambda x: -len(x[1]))[:8]:
        ranges = {
            k: [x.min(), x.max()] if x.dtype.kind in "biuf" else np.unique(x)[:6]
            for k, x in reading.at(points, replicates=False).items()
        }
        row = {"text": text, "count": len(points), "first": points[:3]}
        rows.append(row | {"ranges": ranges})
    return rows


def plain(x: object) -> Any:
    """Return what JSON supports: numbers with five digits, NaN as null."""
    if isinstance(x, Mapping):
        return {k: plain(v) for k, v in x.items()}
    x = x.tolist() if isinstance(x, np.ndarray | np.generic) else x
    if isinstance(x, list | tuple):
        return [plain(v) for v in x]
    if isinstance(x, float):
        return float(f"{x:.5g}") if math.isfinite(x) else None
    return x
