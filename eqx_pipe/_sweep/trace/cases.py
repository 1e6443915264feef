"""Cases: the points with equal `Static` values, which share a trace and a program."""

import contextlib
import dataclasses
import itertools as it
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Bool, Int64

from ..._errors import structure_error
from ..._spaces import Geometry
from ..._tree import as_hashable, differences, static_text

StaticValues: TypeAlias = Mapping[int, Sequence[np.ndarray]]
"""For each dim with static axes, its positions grouped by equal values."""


@dataclasses.dataclass(frozen=True)
class Case:
    """Points that share their static values.

    `plain` has a position with these values for each dim, and `text` names the values;
    `number` is the index among all combinations of static values.
    """

    number: int
    size: int
    plain: tuple[int, ...]
    text: str

    @property
    def name(self) -> str:
        """The static values as readable text."""
        return self.text.replace("`", "")


@contextlib.contextmanager
def naming(case: Case) -> Iterator[None]:
    """Add a note to an error with the static values for which it was raised."""
    try:
        yield
    except Exception as error:
        if case.text:
            error.add_note(f"While `fn` was traced for `{case.name}`.")
        raise


def cases_of(geometry: Geometry) -> list[Case]:
    """Return the cases of a space: one for each combination of static values."""
    static = static_values_of(geometry)
    if not static:
        return [Case(0, geometry.size, (0,) * len(geometry.lengths), "")]
    here = None
    if geometry.is_part and geometry.size:
        here = np.bincount(case_numbers(geometry, static, np.arange(geometry.size)))
    cases = []
    for number, chosen in enumerate(it.product(*static.values())):
        at = {dim: int(some[0]) for dim, some in zip(static, chosen, strict=True)}
        if here is None:
            size = geometry.size * math.prod(map(len, chosen))
            size //= math.prod(geometry.lengths[dim] for dim in static)
        else:
            size = int(here[number]) if number < len(here) else 0
        if size or not geometry.size:
            plain = tuple(at.get(dim, 0) for dim in range(len(geometry.lengths)))
            cases.append(Case(number, size, plain, _text(geometry, at)))
        if geometry.size == 0:  # one case, for the structure of an output
            break
    return cases


def static_values_of(geometry: Geometry) -> StaticValues:
    """Return the positions on each dim with static axes, grouped by equal values."""
    return {dim: _grouped(geometry, dim) for dim in geometry.static_dims}


def _grouped(geometry: Geometry, dim: int) -> list[np.ndarray]:
    axes = _static_axes(geometry, dim)
    by_values: dict[Any, list[int]] = {}
    for i in range(len(axes[0][1])):
        values = tuple(as_hashable(axis.value(i, None)) for _, axis in axes)
        by_values.setdefault(values, []).append(i)
    return [np.array(positions, np.int64) for positions in by_values.values()]


def case_numbers(
    geometry: Geometry, static: StaticValues, index: Int64[np.ndarray, " points"]
) -> Int64[np.ndarray, " points"]:
    """Return the number of the case of each of some points."""
    number = np.zeros(len(index), np.int64)
    if not static:
        return number
    digits = geometry.digits(index)
    for dim, members in static.items():
        which = np.zeros(geometry.lengths[dim], np.int64)
        for k, positions in enumerate(members):
            which[positions] = k
        number = number * len(members) + which[digits[:, dim]]
    return number


def rows_of(
    geometry: Geometry, cases: Sequence[Case]
) -> list[Int64[np.ndarray, " _points"]]:
    """Return the indices of the points of each case."""
    index = np.arange(geometry.size)
    numbers = case_numbers(geometry, static_values_of(geometry), index)
    return [np.flatnonzero(numbers == case.number) for case in cases]


def points_of_a_case(geometry: Geometry) -> int:
    """Return the number of consecutive points that share a program, or 0."""
    statics = () if geometry.is_part else geometry.static_dims
    # All points along the dims after the last one with static values.
    return math.prod(geometry.lengths[max(statics) + 1 :]) if statics else 0


def has_any(
    geometry: Geometry,
    static: StaticValues,
    case: Case,
    kept: Sequence[Bool[np.ndarray, " _positions"]],
) -> bool:
    """Return whether the static values of a case occur at the `kept` positions.

    `kept` has positions on each dim of the space, or on its first dims.
    """
    if static and geometry.is_part:
        numbers = case_numbers(geometry, static, np.flatnonzero(kept[0]))
        return bool(np.any(numbers == case.number))
    for dim, members in static.items():
        positions = next(each for each in members if each[0] == case.plain[dim])
        if dim < len(kept) and not kept[dim][positions].any():
            return False
    return True


def _static_axes(geometry: Geometry, dim: int) -> list[tuple[str, Any]]:
    pairs = zip(geometry.axes.items(), geometry.axis_dims, strict=True)
    return [item for item, at in pairs if at == dim and item[1].is_static]


def _text(geometry: Geometry, at: Mapping[int, int]) -> str:
    return ", ".join(
        f"`{name}` = {static_text(axis.value(i, None))}"
        for dim, i in at.items()
        for name, axis in _static_axes(geometry, dim)
    )


def check_agree(
    function: str,
    cases: Sequence[Case],
    outputs: Sequence[Any],
    what: str = "outputs of `fn`",
) -> None:
    """Raise a `StructureError` unless the outputs of all cases agree in structure."""
    lines = []
    for case, output in zip(cases[1:], outputs[1:], strict=True):
        if texts := differences(outputs[0], output):
            lines.append(f"- {cases[0].text} against {case.text}: {'; '.join(texts)}")
    if lines:
        more = [f"- and {len(lines) - 5} more"] if len(lines) > 5 else []
        raise structure_error(
            function,
            f"the {what} differ between `Static` values:\n"
            + "\n".join(lines[:5] + more)
            + "\n",
            "Return the same structure, shapes and dtypes for all of them, for "
            "instance a scalar, or sweep over each value by itself.",
        )
