"""Small multiples: a panel for each position on one dim, or on two."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from .._errors import value_error
from .roles import Roles, place_scale
from .scale import Scale
from .types import DataArray

MOST_PANELS = 36


@dataclasses.dataclass(frozen=True)
class Layout:
    """Rows and columns of panels, and the parts of an array that stand in them."""

    rows: int
    columns: int
    parts: list[tuple[str, Any]]


def layout_of(
    function: str, array: DataArray, roles: Roles, log: frozenset[str]
) -> Layout | None:
    """Where panels stand, in reading order; `None` if there is one alone."""
    scales = [
        (place.dim, place_scale(array, place, log))
        for place in (roles.row, roles.col)
        if place is not None
    ]
    if not scales:
        return None
    n = math.prod(len(scale.texts) for _, scale in scales)
    if n > MOST_PANELS:
        shown = " and ".join(f"`{dim}` has {len(s.texts)}" for dim, s in scales)
        raise value_error(
            function,
            f"{shown} positions, and each would be a panel.",
            f"Draw at most {MOST_PANELS}: let a shorter dim be `col=`, or select "
            "a value in `sel=`.",
        )
    if len(scales) == 2:
        rows, columns = (len(scale.texts) for _, scale in scales)
    elif roles.row is not None:
        rows, columns = n, 1
    else:
        columns = n if n <= 3 else math.ceil(math.sqrt(n))
        rows = math.ceil(n / columns)
    return Layout(rows, columns, list(_parts(array, scales, [])))


def _parts(
    array: DataArray, scales: list[tuple[str, Scale]], title: list[str]
) -> Iterator[tuple[str, Any]]:
    if not scales:
        yield ", ".join(title), array
        return
    (dim, scale), *others = scales
    for at, text in zip(scale.order, scale.texts, strict=True):
        part = array.isel({dim: int(at)})
        yield from _parts(part, others, [*title, f"{scale.label} = {text}"])


def subplots(plt: Any, layout: Layout, wide: bool) -> tuple[Any, Any]:
    """A figure with all panels, and the others' places empty."""
    width, height = (4.5, 3.0) if wide else (2.7, 2.3)
    figure, axes = plt.subplots(
        layout.rows,
        layout.columns,
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
        figsize=(width * layout.columns + 1.5, height * layout.rows + 0.6),
    )
    for ax in axes.flat[len(layout.parts) :]:
        ax.set_axis_off()
    return figure, axes


def label_outer(axes: Any, layout: Layout) -> None:
    """Leaves labels at the left, and below the last panel of each column."""
    for k, ax in enumerate(axes.flat[: len(layout.parts)]):
        if k % layout.columns:
            ax.set_ylabel("")
        if (
            not hasattr(ax.xaxis.get_major_locator(), "locs")
            and ax.get_xscale() != "log"
        ):
            ax.locator_params(axis="x", nbins=4)
        last = k + layout.columns >= len(layout.parts)
        ax.tick_params(axis="x", labelbottom=last)
        if not last:
            ax.set_xlabel("")
