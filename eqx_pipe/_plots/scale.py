"""What an axis of a picture shows: positions, edges between them, ticks, a label."""

import dataclasses
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float, Shaped

from .._errors import describe_value, nearest, value_error

# Optional libraries, which are imported where they are used.
if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from xarray import DataArray as DataArray
    from xarray import Dataset as Dataset
else:
    Axes = DataArray = Dataset = Any

Colours: TypeAlias = Any
"""A `matplotlib.cm.ScalarMappable`, whose annotations say too little of its norm."""

FUNCTION = "SweepResult.plot"

FEW = 10
"""So many positions have a tick each, and so many lines are told apart by a legend."""

KIND = "sweep.kind"
"""A coordinate made by `pick`: 0 where there is a number, otherwise which mark."""

_MOST_TEXTS = 40


class Place(NamedTuple):
    """A dim, the column that says what stands on it (or none), and all its columns.

    They are a `cloud` if they go their own ways; `chosen` says that a column was named.
    Where nothing is known of a dim it `repeats` the others.
    """

    dim: str
    column: str | None
    columns: tuple[str, ...]
    cloud: bool
    repeats: bool
    chosen: bool


@dataclasses.dataclass(frozen=True)
class Scale:
    """Where the positions of a dim are drawn, and what stands there.

    Where they are `counted` they are 0, 1, 2... as for names; `ticks` says whether each
    has one. Only those that are `ordered` may be joined by a line.
    """

    place: Place
    label: str
    values: Shaped[np.ndarray, " n"]
    at: Float[np.ndarray, " n"]
    texts: list[str]
    log: bool = False
    ticks: bool = False
    counted: bool = False
    ordered: bool = True

    @property
    def edges(self) -> Float[np.ndarray, " edges"]:
        """The bounds of cells around the positions, which rise."""
        x = np.log(self.at) if self.log else self.at
        around = np.array([x[0] - 1, x[0], x[0] + 1])
        if len(x) > 1:
            # Steps go on beyond the ends as they were inside, so that outer cells have
            # their middle at the position too.
            around = np.pad(x, 1, mode="reflect", reflect_type="odd")
        edges = (around[1:] + around[:-1]) / 2
        return np.exp(edges) if self.log else edges

    def show(self, ax: Axes, which: Literal["x", "y"]) -> None:
        """Sets the scale, ticks and label of the `"x"` or `"y"` axis."""
        axis = getattr(ax, f"{which}axis")
        axis.set_label_text(self.label)
        if self.log:
            getattr(ax, f"set_{which}scale")("log")
        if self.counted:
            getattr(ax, f"set_{which}lim")(-0.5, self.at.max() + 0.5)
        if self.ticks:
            step = -(-len(self.texts) // _MOST_TEXTS)
            texts = self.texts[::step]
            style = _turned(ax, texts) if which == "x" else {}
            axis.set_ticks(self.at[::step], texts, **style)
            axis.set_ticks([], minor=True)
        elif not self.log and self.values.dtype.kind in "iu":
            axis.get_major_locator().set_params(integer=True)


def columns_of(data: DataArray, dim: str) -> dict[str, Shaped[np.ndarray, " n"]]:
    """The coordinates along a dim by name, that of its own name first."""
    columns = {
        str(name): np.asarray(coordinate.values)
        for name, coordinate in data.coords.items()
        if coordinate.dims == (dim,) and name != KIND
    }
    return {dim: columns.pop(dim), **columns} if dim in columns else columns


def find(
    data: DataArray, what: str, name: object
) -> tuple[str, Shaped[np.ndarray, " n"] | None]:
    """The dim that is called so, or has a column called so, and that column.

    `what` says in an error who asked.
    """
    dims = {str(dim): columns_of(data, str(dim)) for dim in data.dims}
    owners = {column: dim for dim in dims for column in (dim, *dims[dim])}
    if name not in owners:
        wrong = f"{what} {describe_value(name)}."
        raise value_error(FUNCTION, wrong, nearest(name, owners))
    dim = owners[str(name)]
    return dim, dims[dim].get(str(name))


def is_number(values: Shaped[np.ndarray, " n"]) -> bool:
    """Whether a column has numbers that can be put in order, not names or flags."""
    return values.dtype.kind in "iuf" and bool(np.all(np.isfinite(values)))


def label_of(data: DataArray, name: str | None = None) -> str:
    """The label of a coordinate, or of the variable itself, with its unit."""
    attrs = data.attrs if name is None else data[name].attrs
    label = attrs.get("long_name") or (data.name if name is None else name)
    return f"{label} [{attrs['units']}]" if attrs.get("units") else str(label)


def value_text(value: Any) -> str:
    """A coordinate's value in few characters."""
    value = np.asarray(value)
    return f"{value.item():.4g}" if value.dtype.kind == "f" else str(value.item())


def sort(data: DataArray, place: Place) -> DataArray:
    """Data in which the numbers on a dim rise; names stay as they are."""
    column = place.column or next(iter(place.columns), None)
    if column is None or not is_number(columns_of(data, place.dim)[column]):
        return data
    return data.sortby(column)


def scale_of(data: DataArray, place: Place, log: frozenset[str]) -> Scale:
    """The scale of a sorted dim by its column, or by positions if it has none.

    Other columns that rise and fall with it are named too. Columns in `log` are
    geometric. In a cloud numbers stand where they are, and equal names in one place.
    """
    column = place.column or next(iter(place.columns), None)
    scale = _scale_of(data, place, column, log)
    others = [name for name in place.columns if name != column]
    if place.chosen or place.cloud or not others:
        return scale
    if len(scale.texts) > FEW:
        label = f"{scale.label} (with it {', '.join(others)})"
        return dataclasses.replace(scale, label=label)
    every = [scale, *(_scale_of(data, place, name, log) for name in others)]
    texts = [", ".join(at) for at in zip(*(s.texts for s in every), strict=True)]
    label = ", ".join(s.label for s in every)
    return dataclasses.replace(scale, label=label, texts=texts, ticks=True)


def _scale_of(
    data: DataArray, place: Place, column: str | None, log: frozenset[str]
) -> Scale:
    label, values = place.dim, np.arange(data.sizes[place.dim])
    if column is not None:
        label, values = label_of(data, column), columns_of(data, place.dim)[column]
    if not is_number(values):
        texts = [value_text(v) for v in values]
        at = np.arange(float(len(texts)))
        if place.cloud:
            names = list(dict.fromkeys(texts))
            at = np.array([float(names.index(text)) for text in texts])
        shown = {"ticks": True, "counted": True, "ordered": False}
        return Scale(place, label, values, at, texts, **shown)
    texts = [value_text(v) for v in values]
    # Four digits do not tell them apart.
    if len(set(texts)) < len(np.unique(values)):
        texts = [str(v) for v in values]
    at = values.astype(float)
    rising = np.sort(at)
    even, few = _is_even(rising), len(at) <= FEW and not place.cloud
    is_log = bool(rising[0] > 0) and (
        column in log or (not even and _is_geometric(rising))
    )
    # A few numbers that somebody wrote down stand side by side, as names do; others,
    # such as random draws, which have more digits, where they are.
    written = np.array_equal(np.array(texts, float).astype(values.dtype), values)
    counted = few and written and max(map(len, texts)) < 9 and not even and not is_log
    if counted:
        at = np.arange(float(len(at)))
    ticks = few and (counted or even or is_log)
    return Scale(place, label, values, at, texts, is_log, ticks, counted)


def _is_even(x: Float[np.ndarray, " n"]) -> bool:
    """Whether different numbers, which rise, are evenly spaced."""
    steps = np.diff(x)
    return bool(
        not steps.size
        or (np.all(steps > 0) and np.allclose(steps, steps.mean(), rtol=1e-3))
    )


def _is_geometric(x: Float[np.ndarray, " n"]) -> bool:
    """Whether positive numbers, which rise, are spread evenly in the logarithm."""
    if x[-1] <= 2 * x[0] or len(x) < 3:
        return False
    # Of draws over two decades and more, half are below a tenth if they are so.
    drawn = x[-1] >= 100 * x[0] and np.median(x) < 0.2 * x[-1]
    return bool(drawn) or _is_even(np.log(x))


def _turned(ax: Axes, texts: list[str]) -> dict[str, Any]:
    """The style of tick labels, turned if they would not stand beside one another."""
    inches = ax.bbox.width / ax.figure.dpi
    if max(map(len, texts)) + 1.5 <= 11 * inches / len(texts):
        return {}
    return {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}
