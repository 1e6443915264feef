"""The dims of outputs that are arrays at each point: their names and coordinates."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from jax.core import Tracer
from jaxtyping import Array

from ..._errors import describe_value, nearest, type_error, value_error
from ..._jaxprs import digest, text_of
from ..._reduce import ReducerTree
from ..._spaces import raw_shape
from ..._tree import leaves_with_names
from ..._types import PyTree

OutputCoords: TypeAlias = Mapping[
    str, Mapping[str, Sequence[int | float | str] | Array | np.ndarray | None]
]
"""The dims of one value of each output, in order, with coordinates; keyed by path."""

KnownCoords: TypeAlias = dict[str, dict[str, np.ndarray | None]]
"""The same after checks, with NumPy arrays."""

_SHOWN = 3


def as_output_coords(function: str, given: OutputCoords) -> KnownCoords:
    """Return `output_coords` after all checks that need no outputs."""
    known = {
        path: {
            dim: _as_coords(function, path, dim, x)
            for dim, x in _as_dict(function, dims).items()
        }
        for path, dims in _as_dict(function, given).items()
    }
    shared = coords_of(known)
    for path, dims in known.items():
        for dim, coords in dims.items():
            if coords is not None and not np.array_equal(coords, shared[dim]):
                raise value_error(
                    function,
                    f"`output_coords[{path!r}]` has other values of {dim!r} than "
                    "another output.",
                    "Outputs that share a dim share its coordinates: rename one of "
                    "the dims.",
                )
    # A dim without coordinates may get them from another output.
    return {path: {dim: shared.get(dim) for dim in known[path]} for path in known}


def coords_of(known: KnownCoords) -> dict[str, np.ndarray]:
    """Return the coordinates of the dims that have coordinates."""
    found: dict[str, np.ndarray] = {}
    for dims in known.values():
        for dim, coords in dims.items():
            if coords is not None:
                found.setdefault(dim, coords)
    return found


def dims_of(known: KnownCoords) -> set[str]:
    """Return the names of all named dims of outputs."""
    return {dim for dims in known.values() for dim in dims}


def check_output_coords(
    known: KnownCoords, shapes: Mapping[str, tuple[int, ...]], taken: set[str]
) -> None:
    """Raise a `ValueError` unless the names fit outputs of these shapes.

    `taken` are the names of the space.
    """
    lengths: dict[str, int] = {}
    for path, dims in known.items():
        if path not in shapes:
            arrays = [name for name, shape in shapes.items() if shape]
            wrong = f"`output_coords` names {path!r}."
            raise value_error("sweep", wrong, nearest(path, arrays))
        shape = shapes[path]
        if len(dims) != len(shape):
            names = ", ".join(dims)
            wrong = (
                f"names {len(dims)} dims ({names}), but the output has {len(shape)}, "
                f"with the shape {shape}"
            )
            raise _misfit(
                path,
                wrong,
                "Name all in order; None in the place of values gives only a name",
            )
        for (dim, coords), length in zip(dims.items(), shape, strict=True):
            other = lengths.setdefault(dim, length)
            if dim in taken:
                wrong = f"has the dim {dim!r}, but the space has this name too"
                raise _misfit(path, wrong, "Rename the dim of the output")
            if coords is not None and len(coords) != length:
                wrong = (
                    f"has {len(coords)} values of {dim!r}, which has the size {length}"
                )
                raise _misfit(path, wrong, "Give a value for each position")
            if other != length:
                wrong = f"has a dim {dim!r} of {length}, and another output of {other}"
                raise _misfit(path, wrong, "Rename one of the dims")


def check_reduced_coords(
    known: KnownCoords,
    outputs: PyTree,
    results: Callable[[], PyTree],
    taken: set[str],
) -> None:
    """Raise a `ValueError` unless the names fit outputs that are reduced.

    They may also name dims of `results()`, the reductions of no points.
    """
    shapes = _shapes(outputs)
    if any(len(dims) != len(shapes.get(path, ())) for path, dims in known.items()):
        # The `finish` of a user's reducer may need points.
        with contextlib.suppress(Exception):
            reduced = _shapes(results()).items()
            shapes |= {
                path: shape
                for path, shape in reduced
                if path not in shapes or len(shape) == len(known.get(path, ()))
            }
    check_output_coords(known, shapes, taken)


def reduced_coords(
    reducers: ReducerTree, results: PyTree, known: KnownCoords, taken: set[str]
) -> KnownCoords:
    """Return the names of the dims of reductions, by their paths.

    `known` names dims of outputs, which their reductions keep, or of `results`. The
    dims that a reducer adds lead. Their names get a prefix if they are `taken`, or are
    those of other coordinates.
    """
    named: KnownCoords = {}
    taken = taken | dims_of(known)
    added: dict[str, np.ndarray | None] = {}
    for place, reducer, part in reducers.parts(results):
        for leaf_path, leaf in leaves_with_names(part):
            path = ".".join(filter(None, (place, leaf_path)))
            shape = _shape_of(leaf)
            leading, source = reducer.dims_at(leaf_path, shape)
            kept = {} if source is None else known.get(source or "value", {})
            own: dict[str, np.ndarray | None] = dict(leading)
            if own and not kept:
                unnamed = range(len(own), len(shape))
                own |= {f"{path or 'value'}.{k}": None for k in unnamed}
            dims: dict[str, np.ndarray | None] = {}
            for dim, coords in own.items():
                while dim in taken or not np.array_equal(
                    added.get(dim, coords), coords
                ):
                    dim = f"{place or 'result'}.{dim}"
                added[dim] = dims[dim] = coords
            path = path or "value"
            choices = [{**dims, **kept}, known.get(path, {})]
            for each in choices if kept else reversed(choices):
                if each and _fits(each, shape):
                    named.setdefault(path, each)
    return named


def _fits(dims: Mapping[str, np.ndarray | None], shape: tuple[int, ...]) -> bool:
    """Return whether an output of this shape has these dims."""
    return len(dims) == len(shape) and all(
        coords is None or len(coords) == length
        for coords, length in zip(dims.values(), shape, strict=True)
    )


def _shapes(outputs: PyTree) -> dict[str, tuple[int, ...]]:
    return {path or "value": _shape_of(x) for path, x in leaves_with_names(outputs)}


def _shape_of(leaf: Any) -> tuple[int, ...]:
    """Return the shape of an array, of its struct, or of another value."""
    return raw_shape(leaf) if hasattr(leaf, "dtype") else np.shape(leaf)


def _misfit(path: str, wrong: str, cure: str) -> ValueError:
    return value_error("sweep", f"`output_coords[{path!r}]` {wrong}.", f"{cure}.")


def coords_texts(known: KnownCoords) -> dict[str, str]:
    """Return a text that identifies the dims of each output."""
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


def _as_dict(function: str, given: object) -> Mapping[str, Any]:
    if isinstance(given, Mapping) and all(isinstance(x, str) and x for x in given):
        return given
    raise type_error(
        function,
        f"`output_coords` has {describe_value(given)}.",
        "Give a dict from outputs to dicts from the names of their dims to "
        'coordinates: `{"curve": {"step": steps}}`.',
    )


def _as_coords(function: str, path: str, dim: str, given: object) -> np.ndarray | None:
    if given is None:
        return None
    found = np.empty(()) if isinstance(given, Tracer) else np.asarray(given)
    if found.ndim != 1 or found.dtype.kind not in "biufcU":
        raise type_error(
            function,
            f"`output_coords[{path!r}][{dim!r}]` is {describe_value(given)}.",
            "Give a list or an array with a number or text for each position on the "
            "dim, or None for a name alone.",
        )
    return found
