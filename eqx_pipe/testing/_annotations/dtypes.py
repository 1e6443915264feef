"""Arrays of a dtype that a jaxtyping annotation allows."""

import re
from typing import Any

import hypothesis.strategies as st
import jax
import numpy as np
from jax.typing import DTypeLike

from .._strategies.arrays import COMPLEX, EIGHTHS, Numbers, arrays, numpy_array
from .._strategies.validate import invalid
from .dims import Binding, parse

_USUAL = ("float32", "bfloat16", "int32", "uint8", "bool", "complex64")
_MORE = ("float16", "int8", "int16", "uint16", "uint32", "int4", "uint4", "int2")
_MORE += ("uint2", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz")
_MORE += ("float8_e4m3fnuz", "float8_e5m2fnuz", "float4_e2m1fn")
_WIDE = ("float64", "int64", "uint64", "complex128")


def array_for(annotation: Any, binding: Binding, elements: Numbers | None) -> Any:
    """An array that satisfies an annotation such as `Float[Array, "n"]`."""
    kind = annotation.array_type
    dtype = _dtype_for(annotation, binding)
    shape = binding.shape(parse(annotation.dim_str))
    key = dtype == "prng_key"
    if _is_numpy(kind) and not key:
        return binding.draw(numpy_array("from_jaxtyping", shape, dtype, elements))
    struct = jax.ShapeDtypeStruct(shape, jax.random.key(0).dtype if key else dtype)
    if kind is jax.ShapeDtypeStruct:
        return struct
    if kind is Any or (isinstance(kind, type) and issubclass(jax.Array, kind)):
        return binding.draw(arrays(struct, elements=elements))
    raise invalid(
        "from_jaxtyping",
        f"`{annotation.__name__}` asks for arrays of the type {kind}.",
        "JAX and NumPy arrays can be made; give others by a strategy of their own.",
    )


def _dtype_for(annotation: Any, binding: Binding) -> str:
    """A dtype; annotations that allow the same ones get the same in one call."""
    group = _group(annotation)
    known = binding.dtypes.get(group)
    if known is None:
        known = binding.draw(st.sampled_from(_choices(annotation)))
        binding.dtypes[group] = known
    return known


def _group(annotation: Any) -> tuple[str, bool]:
    return str(annotation.dtypes), _is_numpy(annotation.array_type)


def bind_dtype(annotation: Any, binding: Binding, dtype: DTypeLike) -> None:
    """Makes other arrays of an annotation's dtypes have that of a given one."""
    name = "prng_key" if jax.numpy.issubdtype(dtype, jax.dtypes.prng_key) else dtype
    if _allows(annotation.dtypes, str(name)):
        binding.dtypes.setdefault(_group(annotation), str(name))


def _choices(annotation: Any) -> list[str]:
    has_wide = _is_numpy(annotation.array_type) or jax.config.jax_enable_x64  # type: ignore
    # Rare dtypes only where nothing usual is allowed, and keys where nothing else is.
    for names in (_USUAL, (*(_WIDE if has_wide else ()), *_MORE), ("prng_key",)):
        found = [name for name in names if _allows(annotation.dtypes, name)]
        if found:
            return found
    missing = [name for name in _WIDE if _allows(annotation.dtypes, name)]
    cure = "Give the argument by a strategy of its own."
    if missing:
        cure = 'Set `jax.config.update("jax_enable_x64", True)` for 64 bits.'
    raise invalid(
        "from_jaxtyping",
        f"`{annotation.__name__}` allows no dtype that is known here.",
        cure,
    )


def _allows(dtypes: Any, name: str) -> bool:
    if not isinstance(dtypes, tuple | list):
        return name != "prng_key"  # `Shaped`: any dtype
    return any(
        pattern.match(name) if isinstance(pattern, re.Pattern) else pattern == name
        for pattern in dtypes
    )


def _is_numpy(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, np.ndarray)


def scalar_of(kind: type, elements: Numbers | None) -> Numbers:
    """A Python number."""
    if kind is bool:
        return st.booleans()
    if kind is int:
        return st.integers(-8, 8)
    if kind is complex:
        return COMPLEX
    return EIGHTHS if elements is None else elements.map(float)


def is_array_annotation(annotation: Any) -> bool:
    """Whether an annotation is one of jaxtyping's, of a single array."""
    return all(hasattr(annotation, n) for n in ("dim_str", "dtypes", "array_type"))
