"""What people see of a result: as text, and in a notebook."""

import dataclasses
from typing import Any

import numpy as np

from ..._html import heading, table
from ..._spaces import POINT, Geometry, Space
from ..._tree import leaf_text, leaves_with_names
from ..._types import PyTree
from ..store import FAILED, MISSING, OK, Gaps, count_in, first_in, status_in
from .cells import CellPoints

_FEW = 1_000_000
"""How many entries are looked at, of an output to show its range."""

_LISTED = 5


@dataclasses.dataclass(frozen=True)
class Summary:
    """What is shown of a result; the fields are those of `SweepResult`.

    `run` says how it was computed.
    """

    space: Space
    values: PyTree
    gaps: Gaps
    ended: int
    points: int | None
    cells: CellPoints | None
    run: str

    def text(self) -> str:
        """A few lines: sizes, outputs, what failed, how it was computed."""
        dims = ", ".join(f"{name}: {n:,}" for name, n in self.space.dims.items())
        lines = [f"SweepResult({self.space.size:,} points; {dims})"]
        named = [(name or "value", x) for name, x in leaves_with_names(self.values)]
        width = max((len(name) for name, _ in named), default=0)
        outputs = [f"{name:<{width}}  {self._leaf(leaf)}" for name, leaf in named]
        below = [*self._reduced(), *outputs, *self._problems(), self.run]
        return "\n".join([*lines, *(f"  {line}" for line in below)])

    def page(self) -> str:
        """The same with the axes and the ranges of the outputs, in HTML."""
        dims = " × ".join(f"{name}: {n:,}" for name, n in self.space.dims.items())
        parts = [heading(f"SweepResult: {self.space.size:,} points ({dims})")]
        parts += [f"<div>{line}</div>" for line in self._reduced()]
        parts.append(_axes_table(self.space.geometry))
        rows = [
            (name or "value", self._leaf(leaf), self._range(leaf))
            for name, leaf in leaves_with_names(self.values)
        ]
        parts.append(table(("output", "", "range"), rows))
        parts += [f"<div>{line}</div>" for line in (*self._problems(), self.run)]
        return "".join(parts)

    def _reduced(self) -> list[str]:
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
        """The points that failed or are missing: how many, and the first of them."""
        lines = []
        for what, status in (("failed", FAILED), ("missing", MISSING)):
            count = count_in(self.gaps, status)
            if count:
                listed = [str(i) for i in first_in(self.gaps, status, _LISTED)]
                some = ", ".join(listed + ["..."] * (count > _LISTED))
                lines.append(f"{count:,} points {what}: {some}")
        return lines

    def _leaf(self, leaf: Any) -> str:
        """The type of an array; of a reduction the number itself, if it is one."""
        number = self.points is not None and np.ndim(leaf) == 0
        if number and hasattr(leaf, "dtype") and leaf.dtype.kind in "biufc":
            return f"{leaf_text(leaf)}  {leaf.item():.6g}"
        return leaf_text(leaf)

    def _range(self, leaf: Any) -> str:
        """The smallest and the largest number, if that does not take long to find."""
        if not isinstance(leaf, np.ndarray) or not 0 < leaf.size <= _FEW:
            return ""
        if leaf.dtype.kind not in "biuf":
            return ""
        counted = leaf
        if self.points is None:
            counted = leaf[status_in(self.gaps, len(leaf)) == OK]
        finite = counted[np.isfinite(counted)]
        if not finite.size:
            return "no finite number"
        return f"{finite.min().item():.6g} to {finite.max().item():.6g}"


def run_text(
    batch_size: int, num_devices: int, seconds: float, waste: float | None
) -> str:
    """How a result was computed.

    `seconds` are NaN where that is not known, and `waste` is `None`.
    """
    devices = f"{num_devices} device" + "s" * (num_devices != 1)
    took = "" if np.isnan(seconds) else f"{seconds:.3g} s, "
    steps = "" if waste is None else f", {waste:.3g} steps for each one needed"
    return f"{took}batch size {batch_size}, {devices}{steps}"


def _axes_table(geometry: Geometry) -> str:
    """The axes of a space with their dims."""
    names, rows = list(geometry.grid_dims), []
    for (name, axis), k in zip(geometry.axes.items(), geometry.axis_dims, strict=True):
        dim = POINT if geometry.is_part else names[k]
        rows.append((name, dim, f"{len(axis):,}", repr(axis)))
    return table(("axis", "dim", "values", ""), rows)
