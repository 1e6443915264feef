"""What an axis of a picture shows: positions, edges between them, ticks, a label."""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Float, Int

_NOT_AXES = ("status", "sweep.status")


@dataclasses.dataclass(frozen=True)
class Scale:
    """One dim of what is drawn, in the order in which it is drawn.

    `order` sorts the dim by position. Where there are `texts` the positions are only
    counted.
    """

    label: str
    order: Int[np.ndarray, " n"]
    positions: Float[np.ndarray, " n"]
    texts: list[str] | None
    log: bool

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

    def show(self, ax: Any, which: str) -> None:
        """Sets the scale, ticks and label of the `"x"` or `"y"` axis."""
        set_ = {name: getattr(ax, f"set_{which}{name}") for name in ("scale", "label")}
        set_["label"](self.label)
        if self.log:
            set_["scale"]("log")
        if self.texts is not None:
            getattr(ax, f"set_{which}ticks")(self.positions, self.texts)


def scale_of(data: Any, dim: str, log: frozenset[str]) -> Scale:
    """The scale of a dim of a `DataArray`; coordinates in `log` are geometric."""
    name = coordinate_of(data, dim)
    n = data.sizes[dim]
    if name is None:
        return Scale(dim, np.arange(n), np.arange(n, dtype=float), None, False)
    values = np.asarray(data[name].values)
    if values.dtype.kind not in "iuf":
        texts = [str(v) for v in values]
        return Scale(name, np.arange(n), np.arange(n, dtype=float), texts, False)
    order = np.argsort(values, kind="stable")
    positions = values[order].astype(float)
    geometric = bool(np.all(positions > 0)) and (name in log or _geometric(positions))
    return Scale(name, order, positions, None, geometric)


def coordinate_of(data: Any, dim: str) -> str | None:
    """The coordinate that a dim is labelled by: its own, or the first on it."""
    found = [
        str(name)
        for name, coordinate in data.coords.items()
        if coordinate.dims == (dim,) and name not in _NOT_AXES
    ]
    return dim if dim in found else next(iter(found), None)


def value_text(value: Any) -> str:
    """A coordinate's value in few characters."""
    value = np.asarray(value)
    return f"{value.item():.4g}" if value.dtype.kind == "f" else str(value.item())


def _geometric(x: Float[np.ndarray, " n"]) -> bool:
    """Whether at least three numbers are evenly spaced in the logarithm alone."""
    if len(x) < 3 or x[-1] <= 2 * x[0]:
        return False
    ratios = np.diff(np.log(x))
    return bool(np.allclose(ratios, ratios.mean(), rtol=1e-3))
