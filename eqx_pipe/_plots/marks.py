"""What is shown of a point without a number: that it failed, or is NaN, or infinite."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int, Shaped

from .scale import is_status


@dataclasses.dataclass(frozen=True)
class Mark:
    """One kind of point without a number, as a marker and as a filled cell.

    `height` is where it stands above points whose value would be their height, as a
    share of the picture.
    """

    name: str
    color: str
    marker: str
    height: float
    face: str
    hatch: str = ""

    def cell(self, **options: Any) -> dict[str, Any]:
        """How a cell is filled."""
        edge = self.color if self.hatch else self.face
        style = {"facecolor": self.face, "edgecolor": edge, "hatch": self.hatch or None}
        return {**style, "linewidth": 0.0, **options}

    def dots(self, size: float) -> dict[str, Any]:
        """How markers are drawn."""
        face = "none" if self.marker in "os" else self.color
        return {"marker": self.marker, "s": size, "c": face, "edgecolors": self.color}


MARKS = (
    Mark("failed", "tab:red", "X", 0.03, "white", "xxxx"),
    Mark("NaN", "dimgray", "o", 0.03, "0.8"),
    Mark("inf", "black", "^", 0.97, "black"),
    Mark("-inf", "black", "v", 0.03, "0.45"),
    Mark("not computed", "0.6", "s", 0.03, "white", "...."),
)


def kinds(array: Any) -> Int[np.ndarray, "..."]:
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


def legend(where: Any, marks: Sequence[Mark], cells: bool, outside: bool) -> None:
    """Says what marks mean, above an `Axes` or, `outside`, below the figure."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = []
    for mark in marks:
        if cells:
            shown = mark.cell(linewidth=0.6, label=mark.name)
            handles.append(Patch(**{**shown, "edgecolor": mark.color}))
            continue
        face = "none" if mark.marker in "os" else mark.color
        style = {"marker": mark.marker, "color": mark.color, "markerfacecolor": face}
        handles.append(Line2D([], [], linestyle="", label=mark.name, **style))
    place: dict[str, Any] = {"loc": "outside lower center"}
    if not outside:
        place = {"loc": "lower right", "bbox_to_anchor": (1, 1), "borderaxespad": 0.1}
    made = where.legend(
        handles=handles, ncols=len(handles), frameon=False, fontsize="small", **place
    )
    if not outside:
        where.add_artist(made)  # a second legend would take its place
