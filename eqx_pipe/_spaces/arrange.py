"""Which axes vary together: the dims of a space, and the errors they can have."""

from collections.abc import Mapping

from .._errors import value_error
from .axis import MAX_LENGTH, Axis, check_dim

POINT = "point"
"""The dim of a zipped space, and of a slice of any space."""


def arrange(
    axes: Mapping[str, Axis], mode: str
) -> tuple[dict[str, int], tuple[int, ...]]:
    """The length of each dim in order, and for each axis the position of its dim.

    Raises a `ValueError` if the axes do not form a space.
    """
    lengths = {name: _length(name, axis) for name, axis in axes.items()}
    if POINT in axes:
        raise value_error(
            "Space",
            "an axis has the path `point`, which is the dim of zipped and sliced "
            "spaces.",
            "Rename it.",
        )
    if mode == "zip":
        _check_equal(lengths, "Zipped axes", "all axes the same length")
        return {POINT: next(iter(lengths.values()))}, (0,) * len(axes)
    members: dict[str, list[str]] = {}
    for name, axis in axes.items():
        dim = name if axis.dim is None else axis.dim
        _check_name(name, axis, dim, axes)
        members.setdefault(dim, []).append(name)
    for dim, names in members.items():
        _check_design(dim, {name: axes[name] for name in names})
        _check_equal(
            {name: lengths[name] for name in names},
            f"Axes of the dim `{dim}`",
            "axes that share a `dim` the same length, or another `dim` to one of them",
        )
    position = {name: k for k, names in enumerate(members.values()) for name in names}
    dims = {dim: lengths[names[0]] for dim, names in members.items()}
    return dims, tuple(position[name] for name in axes)


def _length(name: str, axis: Axis) -> int:
    n = len(axis)
    if not 1 <= n <= MAX_LENGTH:
        raise value_error(
            "Space",
            f"the axis `{name}` has {n} values.",
            "Give it at least one and at most 2**31 - 1.",
        )
    return n


def _check_name(name: str, axis: Axis, dim: str, axes: Mapping[str, Axis]) -> None:
    check_dim("Space", dim)
    if dim == POINT:
        raise value_error(
            "Space",
            f"the axis `{name}` has the dim `point`, which is the dim of zipped "
            "and sliced spaces.",
            "Rename the dim.",
        )
    other = axes.get(dim)
    if other is not None and dim != name and other.dim != dim:
        raise value_error(
            "Space",
            f"the dim `{dim}` of the axis `{name}` is also the path of another "
            "axis, which does not share it.",
            f"Give the axis `{dim}` `dim={dim!r}` too if they shall vary together, "
            "or rename the dim.",
        )


def _check_design(dim: str, axes: Mapping[str, Axis]) -> None:
    """Raises if two joint designs have one dim: points of one would be tied to those
    of the other, and their common default name makes that likely.
    """
    first: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    for name, axis in axes.items():
        if axis.design is None:
            continue
        first.setdefault(axis.design[0], name)
        if axis.design in seen or len(first) > 1:
            other = next(iter(first.values()))
            raise value_error(
                "Space",
                f"`{other}` and `{name}` are of two joint designs, and both have "
                f"the dim `{dim}`.",
                "Make one design of all bounds, so that together they fill the "
                'box; or give one a name of its own, `dim="..."`, for the product '
                "of both.",
            )
        seen.add(axis.design)


def _check_equal(lengths: Mapping[str, int], who: str, cure: str) -> None:
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"`{name}` has {n}" for name, n in lengths.items())
        raise value_error(
            "Space",
            f"{who} vary together and differ in length: {listed}.",
            f"Give {cure}.",
        )
