"""What an axis of a picture shows: positions, edges between them, ticks, a label."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int, Shaped

from .types import Axes, DataArray, Figure

FEW = 10
"""So many positions have a tick each, and so many lines are told apart by a legend."""

_MOST_TEXTS = 40


@dataclasses.dataclass(frozen=True)
class Scale:
    """The positions of a dim, in the order in which they are drawn.

    `order` sorts the dim by position, and `values` and `texts` are what stands there,
    in that order. Where they are `counted` the positions are 0, 1, 2... as for names;
    `ticks` says whether each position has one. Only those that are `ordered` may be
    joined by a line.
    """

    label: str
    order: Int[np.ndarray, " n"]
    positions: Float[np.ndarray, " n"]
    values: Shaped[np.ndarray, " n"]
    texts: list[str]
    log: bool = False
    ticks: bool = False
    counted: bool = False
    ordered: bool = True

    @property
    def at(self) -> Float[np.ndarray, " n"]:
        """The positions in the order of the dim."""
        found = np.empty_like(self.positions)
        found[self.order] = self.positions
        return found

    @property
    def edges(self) -> Float[np.ndarray, " edges"]:
        """The bounds of cells around the positions."""
        x = np.log(self.positions) if self.log else self.positions
        if len(x) == 1:
            edges = np.array([x[0] - 0.5, x[0] + 0.5])
        else:
            middle = (x[1:] + x[:-1]) / 2
            ends = 2 * x[0] - middle[0], 2 * x[-1] - middle[-1]
            edges = np.array([ends[0], *middle, ends[1]])
        return np.exp(edges) if self.log else edges

    def show(self, ax: Axes, which: Literal["x", "y"]) -> None:
        """Sets the scale, ticks and label of the `"x"` or `"y"` axis."""
        axis = getattr(ax, f"{which}axis")
        axis.set_label_text(self.label)
        if self.log:
            getattr(ax, f"set_{which}scale")("log")
        if self.counted:
            getattr(ax, f"set_{which}lim")(-0.5, len(self.positions) - 0.5)
        if self.ticks:
            step = -(-len(self.texts) // _MOST_TEXTS)
            axis.set_ticks(self.positions[::step], self.texts[::step])
            axis.set_ticks([], minor=True)
            if which == "x":
                _turn(ax, self.texts[::step])
        elif not self.log:
            whole = self.values.dtype.kind in "iu"
            ax.locator_params(axis=which, integer=whole, nbins=_room(ax, which))


def columns_of(data: DataArray, dim: str) -> dict[str, Shaped[np.ndarray, " n"]]:
    """The coordinates along a dim by name, that of its own name first."""
    columns = {
        str(name): np.asarray(coordinate.values)
        for name, coordinate in data.coords.items()
        if coordinate.dims == (dim,) and not is_status(data, name)
    }
    return {dim: columns.pop(dim), **columns} if dim in columns else columns


def is_status(data: DataArray, name: Any) -> bool:
    """Whether a coordinate is the status of the points."""
    own = "sweep.status" if "sweep.status" in data.coords else "status"
    return name == own


def label_of(data: DataArray, name: str | None = None) -> str:
    """The label of a coordinate, or of the variable itself, with its unit."""
    attrs = data.attrs if name is None else data[name].attrs
    label = attrs.get("long_name") or (data.name if name is None else name)
    return f"{label} [{attrs['units']}]" if attrs.get("units") else str(label)


def scale_of(
    data: DataArray,
    dim: str,
    column: str | None,
    log: frozenset[str],
    spread: bool = False,
) -> Scale:
    """The scale of a column of a dim of a `DataArray`; without one, of its positions.

    Columns in `log` are geometric. Those that are `spread` are among the points of
    several columns: numbers stand where they are.
    """
    if column is None:
        return _numbers(dim, np.arange(data.sizes[dim]), False, False)
    label, values = label_of(data, column), columns_of(data, dim)[column]
    if values.dtype.kind in "iuf" and np.all(np.isfinite(values)):
        return _numbers(label, values, column in log, spread)
    return _names(label, values, spread)


def _names(label: str, values: np.ndarray, spread: bool) -> Scale:
    texts = [value_text(v) for v in values]
    positions = np.arange(len(values), dtype=float)
    order = np.arange(len(values))
    if spread:  # points may share a name
        names = list(dict.fromkeys(texts))
        places = np.array([names.index(text) for text in texts])
        order = np.argsort(places, kind="stable")
        positions, values = places[order].astype(float), values[order]
        texts = [texts[i] for i in order]
    return Scale(
        label, order, positions, values, texts, ticks=True, counted=True, ordered=False
    )


def _numbers(label: str, values: np.ndarray, log: bool, spread: bool) -> Scale:
    order = np.argsort(values, kind="stable")
    values = values[order]
    positions = values.astype(float)
    n, few = len(values), len(values) <= FEW and not spread
    even = _is_even(positions)
    positive = bool(np.all(positions > 0))
    log = positive and (log or (not even and _is_geometric(positions)))
    texts, short = _number_texts(values)
    # A few numbers that somebody wrote down stand side by side, as names do; others,
    # such as random draws, where they are.
    counted = few and short and not even and not log
    if counted:
        positions = np.arange(n, dtype=float)
    # Otherwise decades are easier to read.
    plain = short or not log or positions[-1] < 100 * positions[0]
    ticks = bool(few and plain and (counted or even or log))
    return Scale(label, order, positions, values, texts, log, ticks, counted)


def value_text(value: Any) -> str:
    """A coordinate's value in few characters."""
    value = np.asarray(value)
    return f"{value.item():.4g}" if value.dtype.kind == "f" else str(value.item())


def _number_texts(values: np.ndarray) -> tuple[list[str], bool]:
    """Numbers in few digits, but told apart; and whether these are all their digits."""
    if values.dtype.kind != "f":
        return [str(v) for v in values.tolist()], True
    texts: list[str] = []
    for digits in range(4, 18):
        texts = [f"{v:.{digits}g}" for v in values.tolist()]
        if len(set(texts)) == len(np.unique(values)):
            break
    return texts, bool(
        np.array_equal(np.array(texts, float).astype(values.dtype), values)
    )


def _is_even(x: Float[np.ndarray, " n"]) -> bool:
    """Whether different numbers are evenly spaced."""
    steps = np.diff(x)
    if not len(steps):
        return True
    return bool(np.all(steps > 0) and np.allclose(steps, steps.mean(), rtol=1e-3))


def _is_geometric(x: Float[np.ndarray, " n"]) -> bool:
    """Whether positive numbers are spread evenly in the logarithm rather than as such.

    Those are if their steps are equal, or over two decades and more if their median is
    nearer to the middle of the logarithms.
    """
    if x[-1] <= 2 * x[0] or len(x) < 3:
        return False
    if _is_even(np.log(x)):
        return True
    if x[-1] < 100 * x[0]:
        return False
    return _off_middle(np.log(x)) < _off_middle(x)


def _off_middle(x: Float[np.ndarray, " n"]) -> float:
    return abs(float((np.median(x) - x[0]) / (x[-1] - x[0])) - 0.5)


def _room(ax: Axes, which: str) -> int:
    """So many ticks stand beside one another."""
    inches = _width(ax)
    return 4 if which == "x" and inches < 3 else 8


def _turn(ax: Axes, texts: Sequence[str]) -> None:
    """Turns tick labels that would not stand beside one another."""
    inches = _width(ax)
    if max(map(len, texts)) + 1.5 > 11 * inches / len(texts):
        ax.tick_params(axis="x", labelrotation=40)
        for text in ax.get_xticklabels():
            text.set(ha="right", rotation_mode="anchor")


def _width(ax: Axes) -> float:
    """In inches."""
    figure: Figure = ax.figure
    return ax.get_position().width * figure.get_figwidth()
