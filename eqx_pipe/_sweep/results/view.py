"""What people see of a result: as text, and in a notebook."""

from typing import TYPE_CHECKING, Any

import numpy as np

from ..._spaces.html import axes_table, heading, table
from ..._tree import leaf_text, leaves_with_names

if TYPE_CHECKING:
    from .result import SweepResult
else:
    SweepResult = Any

_FEW = 1_000_000
"""How many entries are looked at: of an output to show its range, or at once."""

_LISTED = 5


def text(result: SweepResult) -> str:
    """A few lines: sizes, outputs, what failed, how it was computed."""
    dims = ", ".join(f"{name}: {n:,}" for name, n in result.space.dims.items())
    lines = [f"SweepResult({result.space.size:,} points; {dims})", *_reduced(result)]
    named = [(name or "value", x) for name, x in leaves_with_names(result.values)]
    width = max((len(name) for name, _ in named), default=0)
    lines += [f"  {name:<{width}}  {_leaf(leaf, result)}" for name, leaf in named]
    lines += [f"  {line}" for line in _problems(result)]
    lines += [f"  {_run(result)}"]
    return "\n".join(lines)


def page(result: SweepResult) -> str:
    """The same with the axes and the ranges of the outputs, in HTML."""
    dims = " × ".join(f"{name}: {n:,}" for name, n in result.space.dims.items())
    parts = [heading(f"SweepResult: {result.space.size:,} points ({dims})")]
    parts += [f"<div>{line.strip()}</div>" for line in _reduced(result)]
    parts.append(axes_table(result.space.geometry))
    rows = [
        (name or "value", _leaf(leaf, result), _range(leaf, result))
        for name, leaf in leaves_with_names(result.values)
    ]
    parts.append(table(("output", "", "range"), rows))
    parts += [f"<div>{line}</div>" for line in (*_problems(result), _run(result))]
    return "".join(parts)


def _reduced(result: SweepResult) -> list[str]:
    if result.points is None:
        return []
    early = ", stopped" if len(result.ok) < result.space.size else ""
    return [f"  reduced over {result.points:,} points{early}"]


def _problems(result: SweepResult) -> list[str]:
    """The points that failed or are missing: how many, and the first of them."""
    if result.ok.strides == (0,):  # one bit for all points of a reduction
        return []
    counts, listed = {"failed": 0, "missing": 0}, {"failed": [], "missing": []}
    # A part at a time: the indices of all of them take eight times the memory of `ok`.
    for start in range(0, len(result.ok), _FEW):
        ok = result.ok[start : start + _FEW]
        missing = np.zeros_like(ok)
        if result.missing is not None:
            missing = result.missing[start : start + _FEW]
        for what, found in (("failed", ~(ok | missing)), ("missing", missing)):
            points = np.flatnonzero(found)
            counts[what] += len(points)
            listed[what] += [str(start + i) for i in points[:_LISTED]]
    lines = []
    for what, count in counts.items():
        if count:
            more = ["..."] * (count > _LISTED)
            some = ", ".join(listed[what][:_LISTED] + more)
            lines.append(f"{count:,} points {what}: {some}")
    return lines


def _run(result: SweepResult) -> str:
    devices = f"{result.num_devices} device" + "s" * (result.num_devices != 1)
    took = "" if np.isnan(result.seconds) else f"{result.seconds:.3g} s, "
    return f"{took}batch size {result.batch_size}, {devices}"


def _leaf(leaf: Any, result: SweepResult) -> str:
    """The form of an array; of a reduction the number itself, if it is one."""
    number = result.points is not None and np.ndim(leaf) == 0
    if number and hasattr(leaf, "dtype") and leaf.dtype.kind in "biufc":
        return f"{leaf_text(leaf)}  {leaf.item():.6g}"
    return leaf_text(leaf)


def _range(leaf: Any, result: SweepResult) -> str:
    """The smallest and the largest number, if that is quickly said."""
    if not isinstance(leaf, np.ndarray) or not 0 < leaf.size <= _FEW:
        return ""
    if leaf.dtype.kind not in "biuf":
        return ""
    counted = leaf if result.points is not None else leaf[result.ok]
    finite = counted[np.isfinite(counted)]
    if not finite.size:
        return "no finite number"
    return f"{finite.min().item():.6g} to {finite.max().item():.6g}"
