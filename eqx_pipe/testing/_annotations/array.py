"""Draw arrays and dtypes for jaxtyping annotations."""

import re
from typing import Any

import hypothesis.strategies as st
import jax
import numpy as np
from jax.typing import DTypeLike

from .._strategies.arrays import COMPLEX, EIGHTHS, Numbers, arrays, numpy_array
from .._strategies.validate import invalid
from .binding import Binding, parse

# Examples shrink to the first.
_USUAL = ("float32", "bfloat16", "float16", "int32", "uint8", "bool", "complex64")
_MORE = ("int8", "int16", "uint16", "uint32")
_WIDE = ("float64", "int64", "uint64", "complex128")


def array_for(annotation: Any, binding: Binding) -> Any:
    """Return an array that satisfies an annotation such as `Float[Array, "n"]`."""
    kind = annotation.array_type
    dtype = _dtype_for(annotation, binding)
    shape = binding.shape(parse(annotation.dim_str))
    key = dtype == "prng_key"
    if _is_numpy(kind) and not key:
        return binding.draw(numpy_array(shape, np.dtype(dtype), binding.elements))
    struct = jax.ShapeDtypeStruct(shape, jax.random.key(0).dtype if key else dtype)
    if kind is jax.ShapeDtypeStruct:
        return struct
    if kind is Any or (isinstance(kind, type) and issubclass(jax.Array, kind)):
        return binding.draw(arrays(struct, elements=binding.elements))
    raise invalid(
        "from_jaxtyping",
        f"`{annotation.__name__}` asks for arrays of the type {kind}.",
        "JAX and NumPy arrays can be made; give others by a strategy of their own.",
    )


def _dtype_for(annotation: Any, binding: Binding) -> str:
    """Return a dtype, the same for all annotations that allow the same dtypes."""
    group = _group(annotation)
    if group not in binding.dtypes:
        asked = [n for n in binding.dtypes_asked if _allows(annotation.dtypes, n)]
        binding.dtypes[group] = binding.choose(asked or _choices(annotation))
    return binding.dtypes[group]


def _group(annotation: Any) -> tuple[str, bool]:
    return str(annotation.dtypes), _is_numpy(annotation.array_type)


def bind_dtype(annotation: Any, binding: Binding, dtype: DTypeLike) -> None:
    """Bind an annotation's dtypes to the dtype of a given array."""
    name = "prng_key" if jax.numpy.issubdtype(dtype, jax.dtypes.prng_key) else dtype
    if _allows(annotation.dtypes, str(name)):
        binding.dtypes.setdefault(_group(annotation), str(name))


def _choices(annotation: Any) -> list[str]:
    x64 = jax.config.jax_enable_x64  # type: ignore
    wide = _WIDE if x64 or _is_numpy(annotation.array_type) else ()
    # Rare dtypes are used only if no common dtype is allowed, and keys only if nothing
    # else is. NumPy always has 64-bit dtypes; JAX has them only with `jax_enable_x64`.
    for names in (_USUAL + _WIDE if x64 else _USUAL, wide + _MORE, ("prng_key",)):
        found = [name for name in names if _allows(annotation.dtypes, name)]
        if found:
            return found
    raise invalid(
        "from_jaxtyping",
        f"`{annotation.__name__}` allows no dtype that is known here.",
        'Set `jax.config.update("jax_enable_x64", True)` if it asks for 64 bits; else '
        "give the argument by a strategy of its own.",
    )


def _allows(dtypes: Any, name: str) -> bool:
    if not isinstance(dtypes, tuple | list):
        return name != "prng_key"  # `Shaped`: any dtype
    return any(re.fullmatch(pattern, name) for pattern in dtypes)


def _is_numpy(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, np.ndarray)


def bare_array(kind: type, binding: Binding) -> Any:
    """Return an array for a bare annotation; all have the same shape."""
    shape = binding.shape(parse("*Array"))
    struct = jax.ShapeDtypeStruct(shape, "float32")
    if kind is jax.ShapeDtypeStruct:
        return struct
    drawn = binding.draw(arrays(struct, elements=binding.elements))
    return np.asarray(drawn) if kind is np.ndarray else drawn


def scalar_of(kind: type, binding: Binding) -> Numbers:
    """Return a strategy of Python numbers."""
    if kind is bool:
        return st.booleans()
    if kind is int:
        return st.integers(-8, 8)
    if kind is complex:
        return COMPLEX
    return EIGHTHS if binding.elements is None else binding.elements.map(float)


def is_array_annotation(annotation: Any) -> bool:
    """Return whether an annotation is one of jaxtyping's, of a single array."""
    return all(hasattr(annotation, n) for n in ("dim_str", "dtypes", "array_type"))
