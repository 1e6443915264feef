"""A result as text, and as HTML for notebooks."""

import dataclasses
import html
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..._spaces import POINT, Space
from ..._tree import leaf_text, leaves_with_names
from ..._types import PyTree
from ..store import FAILED, MISSING, OK, Gaps, count_in, first_in, status_in
from .cells import CellPoints

_FEW = 1_000_000
"""The range of an output with more entries than this is not looked for."""

_LISTED = 5
_CELL_CHARS = 120


@dataclasses.dataclass(frozen=True)
class ResultView:
    """The parts of a result that are shown; the fields are those of `SweepResult`.

    `run` is a line on how it was computed.
    """

    space: Space
    values: PyTree
    gaps: Gaps
    ended: int
    points: int | None
    cells: CellPoints | None
    run: str

    def text(self) -> str:
        """Return a few lines: sizes, outputs, failed points, the run."""
        outputs = [(name, self._leaf(leaf)) for name, leaf in self._outputs]
        width = max((len(name) for name, _ in outputs), default=0)
        rows = [f"{name:<{width}}  {text}" for name, text in outputs]
        lines = [*self._reduced(), *rows, *self._problems(), self.run]
        return "\n  ".join([self._title, *lines])

    def html(self) -> str:
        """Return the same with the axes, and with the ranges of the outputs."""
        outputs = [
            (n, self._leaf(leaf), self._range(leaf)) for n, leaf in self._outputs
        ]
        return "".join(
            [
                f"<div><b>{html.escape(self._title)}</b></div>",
                _lines(self._reduced()),
                _table(("axis", "dim", "values", ""), self._axes()),
                _table(("output", "", "range"), outputs),
                _lines([*self._problems(), self.run]),
            ]
        )

    @property
    def _title(self) -> str:
        dims = ", ".join(f"{name}: {n:,}" for name, n in self.space.dims.items())
        return f"SweepResult({self.space.size:,} points; {dims})"

    @property
    def _outputs(self) -> list[tuple[str, Any]]:
        return [(name or "value", x) for name, x in leaves_with_names(self.values)]

    def _axes(self) -> list[tuple[str, str, str, str]]:
        """The axes with their dims."""
        geometry = self.space.geometry
        names = list(geometry.grid_dims)
        dims = [POINT if geometry.is_part else names[k] for k in geometry.axis_dims]
        axes = zip(geometry.axes.items(), dims, strict=True)
        return [(name, dim, f"{len(axis):,}", repr(axis)) for (name, axis), dim in axes]

    def _reduced(self) -> list[str]:
        """The number of points in a reduction."""
        if self.cells is not None and self.cells.points.size:
            few, many = self.cells.points.min(), self.cells.points.max()
            count = f"{few:,}" if few == many else f"{few:,} to {many:,}"
            failed = int(self.cells.failed.sum())
            lost = f", of which {failed:,} in all failed" if failed else ""
            return [f"each reduced over {count} points{lost}"]
        if self.points is None:
            return []
        early = ", stopped" if self.ended < self.space.size else ""
        return [f"reduced over {self.points:,} points{early}"]

    def _problems(self) -> list[str]:
        """The number of failed and of missing points, and the first of them."""
        lines = []
        for word, status in (("failed", FAILED), ("missing", MISSING)):
            count = count_in(self.gaps, status)
            if count:
                listed = [str(i) for i in first_in(self.gaps, status, _LISTED)]
                some = ", ".join(listed + ["..."] * (count > _LISTED))
                lines.append(f"{count:,} points {word}: {some}")
        return lines

    def _leaf(self, leaf: Any) -> str:
        """The type of an array; the number itself for a reduction to one."""
        number = self.points is not None and np.ndim(leaf) == 0
        if number and hasattr(leaf, "dtype") and leaf.dtype.kind in "biufc":
            return f"{leaf_text(leaf)}  {leaf.item():.6g}"
        return leaf_text(leaf)

    def _range(self, leaf: Any) -> str:
        """The smallest and the largest number, if they are soon found."""
        is_small = isinstance(leaf, np.ndarray) and 0 < leaf.size <= _FEW
        if not is_small or leaf.dtype.kind not in "biuf":
            return ""
        if self.points is None:
            leaf = leaf[status_in(self.gaps, len(leaf)) == OK]
        finite = leaf[np.isfinite(leaf)]
        if not finite.size:
            return "no finite number"
        return f"{finite.min().item():.6g} to {finite.max().item():.6g}"


def run_text(
    batch_size: int, num_devices: int, seconds: float, waste: float | None
) -> str:
    """Return a line on how a result was computed.

    `seconds` are NaN, and `waste` is `None`, if they are not known.
    """
    devices = f"{num_devices} device" + "s" * (num_devices != 1)
    took = "" if np.isnan(seconds) else f"{seconds:.3g} s, "
    steps = "" if waste is None else f", {waste:.3g} steps for each one needed"
    return f"{took}batch size {batch_size}, {devices}{steps}"


def _lines(texts: Iterable[str]) -> str:
    return "".join(f"<div>{html.escape(text)}</div>" for text in texts)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """An HTML table of texts, each shortened to a readable length."""
    lines = [_row("th", head), *(_row("td", row) for row in rows)]
    return f'<table style="margin:.3em 0 .8em">{"".join(lines)}</table>'


def _row(tag: str, texts: Sequence[str]) -> str:
    limit = _CELL_CHARS
    short = [x if len(x) <= limit else f"{x[: limit - 3]}..." for x in texts]
    # Notebooks would set all cells to the right.
    cells = (f'<{tag} style="text-align:left">{html.escape(x)}</{tag}>' for x in short)
    return f"<tr>{''.join(cells)}</tr>"
