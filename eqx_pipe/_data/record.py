"""What a record of a host source must be, and its way into JAX's dtypes."""

from typing import Any

import jax
import jax.tree_util as jtu
import numpy as np

from .._errors import (
    StructureError,
    describe_value,
    structure_error,
    type_error,
    value_error,
)
from .._tree import is_key_array, leaf_text, path_name
from .._types import PyTree


def struct_of(record: PyTree) -> PyTree:
    """The shapes and dtypes of a record, after a check that it can be one."""
    leaves, structure = jtu.tree_flatten_with_path(record)
    if not leaves:
        raise _unusable(0, record, "holds no arrays")
    structs = [_leaf_struct(path_name(path), leaf) for path, leaf in leaves]
    return jtu.tree_unflatten(structure, structs)


def leaves_like(record: PyTree, structure: object) -> list[Any] | None:
    """The leaves of a record, or None if it has another structure."""
    leaves, own = jtu.tree_flatten(record)
    return leaves if own == structure else None


def dtype_of(leaf: np.ndarray) -> np.dtype | None:
    """The dtype that JAX gives an array; None for text and other objects."""
    if leaf.dtype.kind in "OSUMm":
        return None
    return jax.dtypes.canonicalize_dtype(leaf.dtype)


def narrowed(function: str, array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """A NumPy array in the dtype that JAX gives it, unless numbers do not fit."""
    if array.dtype == dtype:
        return array
    with np.errstate(over="ignore"):
        narrow = array.astype(dtype)
    if array.dtype.kind in "iu":
        fits = np.array_equal(narrow, array)
    else:
        fits = np.array_equal(np.isfinite(narrow), np.isfinite(array))
    if not fits:
        raise value_error(
            function,
            f"the source holds {array.dtype} numbers that do not fit into {dtype}.",
            "Switch `jax_enable_x64` on, or let the source give smaller numbers.",
        )
    return narrow


def _leaf_struct(name: str, leaf: object) -> jax.ShapeDtypeStruct:
    array = None if is_key_array(leaf) else np.asarray(leaf)
    if array is None or array.dtype.kind not in "biufcV":
        raise _unusable(0, leaf, "is no array of numbers", name)
    if array.dtype.kind == "V" and array.dtype.names is not None:
        raise _unusable(0, leaf, "is a structured array", name)
    dtype = jax.dtypes.canonicalize_dtype(array.dtype)
    return jax.ShapeDtypeStruct(array.shape, dtype)


def _unusable(i: int, leaf: object, why: str, name: str = "") -> TypeError:
    place = f" at `.{name}`" if name else ""
    shown = leaf_text(leaf) if hasattr(leaf, "dtype") else describe_value(leaf)
    return type_error(
        "Loader",
        f"record {i} of the source{place} is {shown}, which {why}.",
        "A record is a pytree of numbers and arrays. Leave text and the like out, "
        "or encode them as integers.",
    )


def misfit(i: int, record: PyTree, struct: PyTree) -> StructureError:
    leaves, structure = jtu.tree_flatten_with_path(record)
    wanted = jtu.tree_leaves(struct)
    lines = []
    if structure == jtu.tree_structure(struct):
        for (path, leaf), s in zip(leaves, wanted, strict=True):
            if (np.shape(leaf), dtype_of(np.asarray(leaf))) != (s.shape, s.dtype):
                name = path_name(path)
                place = f"at `.{name}`: " if name else ""
                text = leaf_text(np.asarray(leaf))
                lines.append(f"{place}{text} against {leaf_text(s)}")
    shown = "; ".join(lines) or f"{structure} against {jtu.tree_structure(struct)}"
    return structure_error(
        "Loader",
        f"record {i} of the source has another form than record 0: {shown}.",
        "All records agree in structure, shapes and dtypes. Pad or cut them in "
        "the source.",
    )
