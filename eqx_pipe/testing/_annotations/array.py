"""Arrays that a jaxtyping annotation asks for: their dtypes."""

import re
from typing import Any

import hypothesis.strategies as st
import jax
import numpy as np
from jax.typing import DTypeLike

from .._strategies.arrays import COMPLEX, EIGHTHS, Numbers, arrays, keys, numpy_array
from .._strategies.validate import invalid
from .binding import Binding, parse

# Examples shrink to the first.
_USUAL = ("float32", "bfloat16", "float16", "int32", "uint8", "bool", "complex64")
_MORE = ("int8", "int16", "uint16", "uint32", "int4", "uint4", "int2")
_MORE += ("uint2", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz")
_MORE += ("float8_e4m3fnuz", "float8_e5m2fnuz", "float4_e2m1fn")
_WIDE = ("float64", "int64", "uint64", "complex128")


def array_for(annotation: Any, binding: Binding) -> Any:
    """An array that satisfies an annotation such as `Float[Array, "n"]`."""
    kind = annotation.array_type
    dtype = _dtype_for(annotation, binding)
    shape = binding.shape(parse(annotation.dim_str))
    key = dtype == "prng_key"
    if _is_numpy(kind) and not key:
        return binding.draw(
            numpy_array("from_jaxtyping", shape, np.dtype(dtype), binding.elements)
        )
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
    """A dtype; annotations that allow the same ones get the same in one call."""
    group = _group(annotation)
    known = binding.dtypes.get(group)
    if known is None:
        found = _choices(annotation)
        asked = [
            name for name in binding.dtypes_asked if _allows(annotation.dtypes, name)
        ]
        known = binding.choose(asked or found)
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
    x64 = jax.config.jax_enable_x64  # type: ignore
    wide = _WIDE if x64 or _is_numpy(annotation.array_type) else ()
    # Rare dtypes only where nothing usual is allowed, and keys where nothing else is.
    # NumPy has 64 bits always; without `jax_enable_x64` JAX would cut them.
    for names in (_USUAL + _WIDE if x64 else _USUAL, wide + _MORE, ("prng_key",)):
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


def bare_array(kind: type, binding: Binding) -> Any:
    """An array whose annotation says nothing of shape or dtype.

    All of one call are alike; one that is called a key is a key.
    """
    if _is_key_name(binding.argument):
        return binding.draw(keys())
    shape = binding.bare.get(binding.argument, binding.bare.get("Array", "*Array"))
    struct = jax.ShapeDtypeStruct(binding.shape(parse(shape)), "float32")
    if kind is jax.ShapeDtypeStruct:
        return struct
    drawn = binding.draw(arrays(struct, elements=binding.elements))
    return np.asarray(drawn) if kind is np.ndarray else drawn


def _is_key_name(argument: str) -> bool:
    """Whether an argument says by its name that it is a random key."""
    return bool({"key", "rng", "prng"} & set(argument.split("_")))


def scalar_of(kind: type, binding: Binding) -> Numbers:
    """A Python number."""
    if kind is bool:
        return st.booleans()
    if kind is int:
        if binding.argument.lower() in ("axis", "dim"):
            return st.sampled_from((-1, 0))
        if not _SIZES & set(binding.argument.lower().split("_")):
            return st.integers(-8, 8)
        # hypothesis begins with the least, which a constructor may refuse each time.
        return st.integers(0, 3).map(lambda n: 1 + (n + binding.attempt) % 4)
    if kind is complex:
        return COMPLEX
    return EIGHTHS if binding.elements is None else binding.elements.map(float)


# Words by which arguments say that they are sizes or counts, which are positive.
_SIZES = {"n", "num", "number", "count", "size", "sizes", "shape", "length", "len"}
_SIZES |= {
    "dims",
    "ndim",
    "ndims",
    "width",
    "height",
    "depth",
    "rows",
    "cols",
    "columns",
}
_SIZES |= {"features", "channels", "heads", "layers", "groups", "classes", "steps"}
_SIZES |= {"samples", "batch", "epochs", "iterations", "iters", "bins", "knots"}
_SIZES |= {"stride", "strides", "kernel", "window", "order", "degree", "factor"}


def is_array_annotation(annotation: Any) -> bool:
    """Whether an annotation is one of jaxtyping's, of a single array."""
    return all(hasattr(annotation, n) for n in ("dim_str", "dtypes", "array_type"))
