"""The dims of outputs that are arrays at each point: their names and coordinates."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from jax.core import Tracer
from jaxtyping import Array

from ..._errors import describe_value, nearest, type_error, value_error
from ..._jaxprs import digest, text_of

OutputCoords: TypeAlias = Mapping[
    str, Mapping[str, Sequence[int | float | str] | Array | np.ndarray | None]
]
"""For outputs by their paths the dims of one value, in order, with coordinates."""

KnownCoords: TypeAlias = dict[str, dict[str, np.ndarray | None]]
"""The same after checks, in NumPy arrays."""

_SHOWN = 3


def as_output_coords(given: OutputCoords | None) -> KnownCoords:
    """`output_coords` after all checks that need no outputs."""
    known: KnownCoords = {}
    for path, dims in _as_mapping("output_coords", given or {}).items():
        inner = _as_mapping(f"output_coords[{path!r}]", dims)
        known[path] = {
            dim: _as_coords(f"output_coords[{path!r}][{dim!r}]", coords)
            for dim, coords in inner.items()
        }
    shared = coords_of(known)
    for path, dims in known.items():
        for dim, coords in dims.items():
            if coords is not None and not np.array_equal(coords, shared[dim]):
                raise value_error(
                    "sweep",
                    f"`output_coords[{path!r}]` has other values of {dim!r} than "
                    "another output.",
                    "Outputs that share a dim have it in common: give one of the dims "
                    "another name.",
                )
    # A dim that is named without values may have them from another output.
    return {path: {dim: shared.get(dim) for dim in known[path]} for path in known}


def coords_of(known: KnownCoords) -> dict[str, np.ndarray]:
    """The coordinates of the dims that have some."""
    found: dict[str, np.ndarray] = {}
    for dims in known.values():
        for dim, coords in dims.items():
            if coords is not None:
                found.setdefault(dim, coords)
    return found


def dims_of(known: KnownCoords) -> set[str]:
    """The names of all dims of outputs that are named."""
    return {dim for dims in known.values() for dim in dims}


def check_output_coords(
    known: KnownCoords, shapes: Mapping[str, tuple[int, ...]], taken: set[str]
) -> None:
    """Raises a `ValueError` unless the names fit outputs of these shapes.

    The names of a space are `taken`.
    """
    lengths: dict[str, int] = {}
    for path, dims in known.items():
        what = f"`output_coords[{path!r}]`"
        if path not in shapes:
            arrays = [name for name, shape in shapes.items() if shape]
            raise value_error(
                "sweep", f"`output_coords` names {path!r}.", nearest(path, arrays)
            )
        shape = shapes[path]
        if len(dims) != len(shape):
            raise value_error(
                "sweep",
                f"{what} names {len(dims)} dims ({', '.join(dims)}), and one value of "
                f"this output has the shape {shape}.",
                f"Name {len(shape)}, in order; None in the place of coordinates names "
                "a dim and nothing else.",
            )
        for (dim, coords), length in zip(dims.items(), shape, strict=True):
            if dim in taken:
                raise value_error(
                    "sweep",
                    f"{what} has the dim {dim!r}, and the space has this name too.",
                    "Give the dim of the output another name.",
                )
            if coords is not None and len(coords) != length:
                raise value_error(
                    "sweep",
                    f"{what} has {len(coords)} values of {dim!r}, and this dim of the "
                    f"output is {length} long.",
                    "Give a value for each position.",
                )
            if lengths.setdefault(dim, length) != length:
                raise value_error(
                    "sweep",
                    f"{what} has a dim {dim!r} of {length}, and another output one of "
                    f"{lengths[dim]}.",
                    "Give one of the dims another name.",
                )


def coords_texts(known: KnownCoords) -> dict[str, str]:
    """What tells the dims of each output from others, as people can read it."""
    return {
        path: "; ".join(f"{dim}: {_text(coords)}" for dim, coords in dims.items())
        for path, dims in known.items()
    }


def _text(coords: np.ndarray | None) -> str:
    if coords is None:
        return "no values"
    some = ", ".join(map(repr, coords[:_SHOWN].tolist()))
    more = ", ..." if len(coords) > _SHOWN else ""
    return f"{some}{more} ({len(coords)}) #{digest(text_of(coords))[:8]}"


def _as_mapping(what: str, given: object) -> Mapping[str, object]:
    names = given if isinstance(given, Mapping) else {None: given}
    if not all(isinstance(name, str) and name for name in names):
        raise type_error(
            "sweep",
            f"`{what}` is {describe_value(given)}.",
            "Give a dict from outputs to dicts from the names of their dims to "
            'coordinates: `{"curve": {"step": steps}}`.',
        )
    return names


def _as_coords(what: str, given: object) -> np.ndarray | None:
    if given is None:
        return None
    if isinstance(given, Tracer):
        found = np.empty((), object)
    else:
        found = np.asarray(given)
    if found.ndim != 1 or found.dtype.kind not in "biufcU":
        raise type_error(
            "sweep",
            f"`{what}` is {describe_value(given)}.",
            "Give a list or an array with a number or text for each position on the "
            "dim, or None for a name alone.",
        )
    return found
