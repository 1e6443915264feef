"""What is shown of a point without a number: that it failed, or is NaN, or infinite."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int, Shaped

from .scale import is_status
from .types import DataArray


@dataclasses.dataclass(frozen=True)
class Mark:
    """One kind of point without a number, as a marker and as a filled cell.

    A cell has the colour `face`, and perhaps a hatch in that of the marker. `height` is
    where it stands, as a share of the picture, if it is one of no height.
    """

    name: str
    color: str
    marker: str
    height: float
    face: str
    hatch: str = ""

    def dots(self, size: float) -> dict[str, Any]:
        """How markers are drawn."""
        face = "none" if self.marker in "os" else self.color
        return {"marker": self.marker, "s": size, "c": face, "edgecolors": self.color}


MARKS = (
    Mark("failed", "tab:red", "X", 0.03, "#f9d9d9", "xxxx"),
    Mark("NaN", "dimgray", "o", 0.03, "0.8"),
    Mark("inf", "black", "^", 0.97, "black"),
    Mark("-inf", "black", "v", 0.03, "0.45"),
    Mark("not computed", "0.6", "s", 0.03, "white", "...."),
)


def kinds(array: DataArray) -> Int[np.ndarray, "..."]:
    """For each value 0 if it is finite, otherwise 1 + its place in `MARKS`."""
    values = np.asarray(array.values)
    found = np.select(
        [np.isnan(values), values == np.inf, values == -np.inf], [2, 3, 4]
    )
    for name in array.coords:
        if is_status(array, name):
            status = array.coords[name].broadcast_like(array).transpose(*array.dims)
            found[status.values == 2] = 1
            found[status.values == 0] = 5
    return found


def marks_in(found: Shaped[np.ndarray, "..."]) -> list[tuple[int, Mark]]:
    """The kinds that there are, with their marks."""
    return [(k, mark) for k, mark in enumerate(MARKS, 1) if np.any(found == k)]


def legend(where: Any, marks: Sequence[Mark], cells: bool, **place: Any) -> None:
    """Says what marks mean, in an `Axes` or a figure, beside a legend that is there."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = []
    for mark in marks:
        style: dict[str, Any] = {"label": mark.name}
        if cells:
            style |= {"edgecolor": mark.color, "linewidth": 0.6}
            style |= {"facecolor": mark.face, "hatch": mark.hatch or None}
            handles.append(Patch(**style))
        else:
            face = "none" if mark.marker in "os" else mark.color
            style |= {"marker": mark.marker, "linestyle": "", "markerfacecolor": face}
            handles.append(Line2D([], [], color=mark.color, **style))
    other = where.get_legend() if hasattr(where, "get_legend") else None
    where.legend(
        handles=handles, ncols=len(handles), frameon=False, fontsize="small", **place
    )
    if other is not None:
        where.add_artist(other)
        other.set_clip_on(False)  # or the layout has no room for it
