"""A result as text, and as HTML for notebooks."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from ..._spaces import POINT, Space
from ..._tree import leaf_text, leaves_with_names
from ..store import FAILED, MISSING, count_in, first_in

if TYPE_CHECKING:
    from .result import SweepResult
else:
    SweepResult = Any

_FEW = 1_000_000
"""The range of an output with more entries than this is not computed."""

_LISTED = 5
_CELL_CHARS = 120


def text(result: SweepResult) -> str:
    """Return a summary: sizes, outputs, failed points and the run."""
    outputs = [(name, _leaf(result, leaf)) for name, leaf in _outputs(result)]
    width = max((len(name) for name, _ in outputs), default=0)
    rows = [f"{name:<{width}}  {text}" for name, text in outputs]
    lines = [*_reduced(result), *rows, *_problems(result), _run(result)]
    return "\n  ".join([_title(result), *lines])


def html(result: SweepResult) -> str:
    """Return the summary as HTML, with the axes and the ranges of outputs."""
    outputs = [
        (name, _leaf(result, leaf), _range(result, leaf))
        for name, leaf in _outputs(result)
    ]
    return "".join(
        [
            f"<div><b>{escape(_title(result))}</b></div>",
            _lines(_reduced(result)),
            _table(("axis", "dim", "values", ""), _axes(result.space)),
            _table(("output", "", "range"), outputs),
            _lines([*_problems(result), _run(result)]),
        ]
    )


def _title(result: SweepResult) -> str:
    dims = ", ".join(f"{name}: {n:,}" for name, n in result.space.dims.items())
    return f"SweepResult({len(result):,} points; {dims})"


def _outputs(result: SweepResult) -> list[tuple[str, Any]]:
    return [(name or "value", x) for name, x in leaves_with_names(result.values)]


def _axes(space: Space) -> list[tuple[str, str, str, str]]:
    """Return the axes with their dims."""
    geometry = space.geometry
    names = list(geometry.grid_dims)
    dims = [POINT if geometry.is_part else names[k] for k in geometry.axis_dims]
    axes = zip(geometry.axes.items(), dims, strict=True)
    return [(name, dim, f"{len(axis):,}", repr(axis)) for (name, axis), dim in axes]


def _reduced(result: SweepResult) -> list[str]:
    """Return a line with the number of points in a reduction, if there is one."""
    cells = result.cells
    if cells is not None and cells.points.size:
        few, many = cells.points.min(), cells.points.max()
        count = f"{few:,}" if few == many else f"{few:,} to {many:,}"
        failed = int(cells.failed.sum())
        lost = f", of which {failed:,} in all failed" if failed else ""
        return [f"each reduced over {count} points{lost}"]
    if result.points is None:
        return []
    early = ", stopped" if result._reached < len(result) else ""
    return [f"reduced over {result.points:,} points{early}"]


def _problems(result: SweepResult) -> list[str]:
    """Return the numbers of failed and missing points, and the first of each."""
    lines = []
    for word, status in (("failed", FAILED), ("missing", MISSING)):
        count = count_in(result._gaps, status)
        if count:
            listed = [str(i) for i in first_in(result._gaps, status, _LISTED)]
            some = ", ".join(listed + ["..."] * (count > _LISTED))
            lines.append(f"{count:,} points {word}: {some}")
    return lines


def _leaf(result: SweepResult, leaf: Any) -> str:
    """Return the type of an array, or its value if it is a single reduced number."""
    number = result.points is not None and np.ndim(leaf) == 0
    if number and hasattr(leaf, "dtype") and leaf.dtype.kind in "biufc":
        return f"{leaf_text(leaf)}  {leaf.item():.6g}"
    return leaf_text(leaf)


def _range(result: SweepResult, leaf: Any) -> str:
    """Return the smallest and the largest number, if they are quick to compute."""
    is_small = isinstance(leaf, np.ndarray) and 0 < leaf.size <= _FEW
    if not is_small or leaf.dtype.kind not in "biuf":
        return ""
    if result.points is None:
        leaf = leaf[result.ok]
    finite = leaf[np.isfinite(leaf)]
    if not finite.size:
        return "no finite number"
    return f"{finite.min().item():.6g} to {finite.max().item():.6g}"


def _run(result: SweepResult) -> str:
    """Return a line on how a result was computed, as far as known."""
    devices = f"{result.num_devices} device" + "s" * (result.num_devices != 1)
    took = "" if np.isnan(result.seconds) else f"{result.seconds:.3g} s, "
    waste = result.waste
    steps = "" if waste is None else f", {waste:.3g} steps for each one needed"
    return f"{took}batch size {result.batch_size}, {devices}{steps}"


def _lines(texts: Iterable[str]) -> str:
    return "".join(f"<div>{escape(text)}</div>" for text in texts)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an HTML table of texts, each shortened to a readable length."""
    lines = [_row("th", head), *(_row("td", row) for row in rows)]
    return f'<table style="margin:.3em 0 .8em">{"".join(lines)}</table>'


def _row(tag: str, texts: Sequence[str]) -> str:
    limit = _CELL_CHARS
    short = [x if len(x) <= limit else f"{x[: limit - 3]}..." for x in texts]
    # Notebooks align cells to the right by default.
    cells = (f'<{tag} style="text-align:left">{escape(x)}</{tag}>' for x in short)
    return f"<tr>{''.join(cells)}</tr>"
