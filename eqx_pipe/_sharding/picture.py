"""Which part of each array which device has, as a picture: devices beside leaves."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from .._errors import describe_value, optional, type_error, value_error

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
else:  # imported where it is used
    Axes = Any

_FUNCTION = "sharding_info(...).plot"
_MOST_ROWS, _MOST_DEVICES = 200, 128
_EDGE = 0.09
"""How much of a cell is free on each side."""

Part: TypeAlias = tuple[tuple[int, int], ...]
"""Of each axis of an array, from where to where."""


class Row(NamedTuple):
    """A leaf: what is written of it, its shape, and its part on each device by id.

    `said` stands in place of the parts where they are not known.
    """

    name: str
    size: str
    shape: tuple[int, ...]
    parts: Mapping[int, Part]
    said: str


def parts_of(sharding: Any, shape: tuple[int, ...]) -> dict[int, Part]:
    """Which part each device has; empty if the devices are not known."""
    try:
        indices = sharding.devices_indices_map(shape)
    except (AttributeError, ValueError, NotImplementedError):
        return {}  # nothing is placed, or the mesh is known by its shape alone
    return {
        device.id: tuple(s.indices(n)[:2] for s, n in zip(index, shape, strict=True))
        for device, index in indices.items()
    }


def draw(rows: Sequence[Row], title: str, ax: Axes | None) -> Axes:
    """Draws each leaf in a row, and in the column of each device the part it has."""
    plt = optional(_FUNCTION, "matplotlib.pyplot")
    ids = sorted({i for row in rows for i in row.parts})
    _check(rows, ids, ax)
    size = max(6.0, 0.55 * len(ids) + 4.5), 0.36 * max(len(rows), 1) + 1.2
    if ax is None:
        ax = plt.subplots(figsize=size, layout="constrained")[1]
    assert ax is not None
    for y, row in enumerate(rows):
        _draw_row(ax, y, row, ids)
    ax.set_xlim(-0.5, max(len(ids), 1) - 0.5)
    ax.set_ylim(max(len(rows), 1) - 0.5, -0.5)
    step = -(-len(ids) // 32) if ids else 1
    ax.set_xticks(range(0, len(ids), step), [str(i) for i in ids[::step]])
    ax.set_yticks(range(len(rows)), [row.name for row in rows])
    right = ax.secondary_yaxis("right")
    right.set_yticks(range(len(rows)), [row.size for row in rows])
    for axis in (ax, right):
        axis.tick_params(length=0, labelsize="small")
        axis.spines[:].set_visible(False)
    ax.set_xlabel("device")
    ax.set_title(title, fontsize="medium")
    return ax


def _draw_row(ax: Any, y: int, row: Row, ids: list[int]) -> None:
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    if not row.parts:
        middle = (max(len(ids), 1) - 1) / 2
        style = {"ha": "center", "va": "center", "color": "0.45", "fontsize": "small"}
        ax.text(middle, y, row.said, **style)
        return
    different = sorted(set(row.parts.values()))
    colours = _colours(len(different))
    across, down = _shown_axes(row)
    wholes, filled, painted = [], [], []
    for x, device in enumerate(ids):
        if (part := row.parts.get(device)) is None:
            continue
        left, top, side = x - 0.5 + _EDGE, y - 0.5 + _EDGE, 1 - 2 * _EDGE
        wholes.append(Rectangle((left, top), side, side))
        start, wide = _share(part, row.shape, across)
        begin, high = _share(part, row.shape, down)
        place = (left + start * side, top + begin * side)
        filled.append(Rectangle(place, wide * side, high * side))
        painted.append(colours[different.index(part)])
    ax.add_collection(PatchCollection(wholes, facecolor="none", edgecolor="0.75"))
    ax.add_collection(PatchCollection(filled, facecolor=painted, edgecolor="none"))


def _colours(n: int) -> np.ndarray:
    """A colour for each part: equal colours in a row are copies."""
    import matplotlib
    from matplotlib.colors import to_rgba

    if n == 1:
        return np.array([to_rgba("tab:blue", 0.55)])
    return matplotlib.colormaps["viridis"](np.linspace(0.08, 0.92, n))


def _shown_axes(row: Row) -> tuple[int | None, int | None]:
    """The axes drawn to the right and down: two that are split, if there are so many.

    Of a matrix these are its columns and rows.
    """
    ndim = len(row.shape)
    split = [
        axis for axis in range(ndim) if len({p[axis] for p in row.parts.values()}) > 1
    ]
    rest = [axis for axis in range(ndim) if axis not in split]
    chosen = sorted([*split, *rest][:2])
    if len(chosen) < 2:
        return (None, chosen[0]) if chosen else (None, None)
    return chosen[1], chosen[0]


def _share(part: Part, shape: tuple[int, ...], axis: int | None) -> tuple[float, float]:
    """Where on an axis a part begins and how much it is, of all."""
    if axis is None or not shape[axis]:
        return 0.0, 1.0
    start, stop = part[axis]
    return start / shape[axis], (stop - start) / shape[axis]


def _check(rows: Sequence[Row], ids: list[int], ax: object) -> None:
    if ax is not None and not hasattr(ax, "secondary_yaxis"):
        raise type_error(
            _FUNCTION,
            f"`ax` is {describe_value(ax)}.",
            "Give matplotlib `Axes`, such as `plt.subplots()[1]`, or leave it out.",
        )
    for count, most, what in (
        (len(rows), _MOST_ROWS, "arrays"),
        (len(ids), _MOST_DEVICES, "devices"),
    ):
        if count > most:
            raise value_error(
                _FUNCTION,
                f"there are {count} {what}, and a picture has room for {most}.",
                "Ask for a part of the pytree, as in `sharding_info(model.layers[0])`; "
                "the table, `print(sharding_info(model))`, has all.",
            )
