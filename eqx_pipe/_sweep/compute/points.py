"""Which points are computed together, in what order, and where their outputs go.

Those with equal `Static` values are a part of a sweep, which is one program. Its points
are found by their number within the part; nothing is kept for each point unless the
points were sorted or the space is a slice. Neighbours in the grid are counted off on
the device; others are listed for it, a row for each point.
"""

import contextlib
import dataclasses
import itertools as it
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int64

from ..._errors import structure_error
from ..._spaces import Geometry, digits_of
from ..._tree import as_hashable, differences, static_text
from .partition import Layout, control, is_narrow, row_width


@dataclasses.dataclass(frozen=True)
class Part:
    """Points that share their static values.

    `plain` has for each dim a position with these values, `text` says what they are;
    `number` counts the combinations of static values, also those without a point.
    The points are `listed`, or the product of the positions `allowed` on each dim
    (`None` for all of them).
    """

    plain: tuple[int, ...]
    text: str
    lengths: tuple[int, ...]
    allowed: tuple[np.ndarray | None, ...]
    listed: Int64[np.ndarray, " points"] | None = None
    number: int = 0

    @property
    def name(self) -> str:
        """Its static values, for people to read."""
        return self.text.replace("`", "")

    @property
    def size(self) -> int:
        """How many points there are."""
        if self.listed is not None:
            return len(self.listed)
        pairs = zip(self.lengths, self.allowed, strict=True)
        return math.prod(n if some is None else len(some) for n, some in pairs)

    def indices(self, first: int, last: int) -> Int64[np.ndarray, " points"]:
        """The indices in the space of the part's points from `first` to `last - 1`."""
        if self.listed is not None:
            return self.listed[first:last]
        left = np.arange(first, last, dtype=np.int64)
        if self._has_all:
            return left
        index = np.zeros(last - first, np.int64)
        stride = 1
        for n, some in zip(reversed(self.lengths), reversed(self.allowed), strict=True):
            left, digit = np.divmod(left, n if some is None else len(some))
            index += (digit if some is None else some[digit]) * stride
            stride *= n
        return index

    @property
    def _has_all(self) -> bool:
        """Whether it has every point of the space."""
        return self.listed is None and all(some is None for some in self.allowed)

    def sorted_by(self, costs: Float[np.ndarray, " points"], base: int = 0) -> "Part":
        """The same points, the cheapest first; `costs` begins with the point `base`."""
        if self._has_all and base == 0:
            return dataclasses.replace(self, listed=_order(costs))
        index = self.indices(0, self.size)
        return dataclasses.replace(self, listed=index[_order(costs[index - base])])


def _order(costs: Float[np.ndarray, " points"]) -> Int64[np.ndarray, " points"]:
    """The places of costs from the least on, ties in order and NaN last."""
    return np.argsort(costs, kind="stable")


@contextlib.contextmanager
def naming(part: Part) -> Iterator[None]:
    """Says in an error which static values it came with."""
    try:
        yield
    except Exception as error:
        if part.text:
            error.add_note(f"While `fn` was traced for `{part.name}`.")
        raise


def parts_of(geometry: Geometry) -> list[Part]:
    """The parts of a space: one, or one for each combination of static values."""
    lengths = geometry.lengths
    groups = groups_of(geometry)
    if not groups:
        plain = (0,) * len(lengths)
        return [Part(plain, "", (geometry.size,), (None,))]
    window = None
    if geometry.is_part:
        window = part_numbers(geometry, groups, np.arange(geometry.size))
    parts = []
    for number, chosen in enumerate(it.product(*groups.values())):
        at = dict(zip(groups, chosen, strict=True))
        listed = None
        if window is not None:
            listed = np.flatnonzero(window == number)
            if not len(listed) and geometry.size:
                continue
        parts.append(
            Part(
                plain=tuple(
                    int(at[dim][0]) if dim in at else 0 for dim in range(len(lengths))
                ),
                text=_text(geometry, {dim: int(some[0]) for dim, some in at.items()}),
                lengths=lengths,
                allowed=tuple(at.get(dim) for dim in range(len(lengths))),
                listed=listed,
                number=number,
            )
        )
        if geometry.size == 0:  # one, for the form of an output
            break
    return parts


def groups_of(geometry: Geometry) -> dict[int, list[np.ndarray]]:
    """For each dim with static axes its positions, those with equal values together."""
    return {dim: _groups(geometry, dim) for dim in geometry.static_dims}


def _groups(geometry: Geometry, dim: int) -> list[np.ndarray]:
    """The positions on a dim, together where all static values are equal."""
    axes = _static_axes(geometry, dim)
    found: dict[Any, list[int]] = {}
    for i in range(len(axes[0][1])):
        values = tuple(as_hashable(axis.value(i, None)) for _, axis in axes)
        found.setdefault(values, []).append(i)
    return [np.array(positions, np.int64) for positions in found.values()]


def part_numbers(
    geometry: Geometry,
    groups: Mapping[int, Sequence[np.ndarray]],
    index: Int64[np.ndarray, " points"],
) -> Int64[np.ndarray, " points"]:
    """The number of the part that each of some points belongs to."""
    digits = geometry.digits(index)
    number = np.zeros(len(index), np.int64)
    for dim, members in groups.items():
        which = np.zeros(geometry.lengths[dim], np.int64)
        for k, positions in enumerate(members):
            which[positions] = k
        number = number * len(members) + which[digits[:, dim]]
    return number


def _static_axes(geometry: Geometry, dim: int) -> list[tuple[str, Any]]:
    pairs = zip(geometry.axes.items(), geometry.axis_dims, strict=True)
    return [item for item, at in pairs if at == dim and item[1].is_static]


def _text(geometry: Geometry, at: Mapping[int, int]) -> str:
    return ", ".join(
        f"`{name}` = {static_text(axis.value(i, None))}"
        for dim, i in at.items()
        for name, axis in _static_axes(geometry, dim)
    )


def check_agree(function: str, parts: Sequence[Part], outputs: Sequence[Any]) -> None:
    """Raises a `StructureError` unless all parts give outputs of the same form."""
    lines = []
    for part, output in zip(parts[1:], outputs[1:], strict=True):
        found = differences(outputs[0], output)
        if found:
            lines.append(f"- {parts[0].text} against {part.text}: {'; '.join(found)}")
    if lines:
        more = [f"- and {len(lines) - 5} more"] if len(lines) > 5 else []
        raise structure_error(
            function,
            "the outputs of `fn` differ between `Static` values:\n"
            + "\n".join(lines[:5] + more)
            + "\n",
            "Return the same structure, shapes and dtypes for all of them, for "
            "instance a scalar, or sweep over each value by itself.",
        )


@dataclasses.dataclass(frozen=True)
class Neighbours:
    """Points that follow each other in the grid from the index `start` on."""

    start: int = 0

    def kernel_args(self, first: int, points: int, layout: Layout) -> Any:
        """What the kernel is told to compute `points` points from `first` on."""
        digits = digits_of(self.start + first, layout.lengths)
        return control(layout.partition(points), points, digits), None

    def places(self, first: int, last: int) -> slice | Int64[np.ndarray, " points"]:
        """Where in the values of all points the outputs of some go."""
        return slice(first, last)

    def indices(self, first: int, last: int) -> np.ndarray:
        """The indices in the space of some points."""
        return np.arange(first, last)


@dataclasses.dataclass(frozen=True)
class Listed:
    """The points of a part of a space."""

    geometry: Geometry
    part: Part

    @property
    def size(self) -> int:
        """How many points there are."""
        return self.part.size

    def kernel_args(self, first: int, points: int, layout: Layout) -> Any:
        """As for neighbours, with a row of numbers for each point."""
        index = self.indices(first, first + points)
        rows = layout.capacity * layout.batch_size * len(layout.devices)
        table = np.zeros((rows, row_width(layout)), np.uint32)
        # Batches are whole: in the tail of one its last point is there again.
        ends = -(-points // layout.batch_size) * layout.batch_size
        into = table[:points]
        if is_narrow(layout):
            into[:, 0] = self.geometry.grid_indices(index)
        else:
            into[:] = self.geometry.digits(index)
        table[points:ends] = into[-1]
        digits = [0] * len(layout.lengths)
        return control(layout.partition(points), points, digits), table

    def places(self, first: int, last: int) -> slice | Int64[np.ndarray, " points"]:
        """As for neighbours."""
        return self.indices(first, last)

    def indices(self, first: int, last: int) -> np.ndarray:
        """The indices in the space of some points."""
        return self.part.indices(first, last)


@dataclasses.dataclass(frozen=True)
class Chosen:
    """Some listed points whose outputs stand in `rows` of an array of their own."""

    listed: Listed
    rows: Int64[np.ndarray, " points"]

    def kernel_args(self, first: int, points: int, layout: Layout) -> Any:
        """As for those that are listed."""
        return self.listed.kernel_args(first, points, layout)

    def places(self, first: int, last: int) -> Int64[np.ndarray, " points"]:
        """The rows of some points."""
        return self.rows[first:last]

    def indices(self, first: int, last: int) -> Int64[np.ndarray, " points"]:
        """The same, by which failed points are marked."""
        return self.rows[first:last]
