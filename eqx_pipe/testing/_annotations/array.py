"""Arrays that a jaxtyping annotation asks for: the sizes of their axes, and dtypes."""

import dataclasses
import re
import types
from collections.abc import Callable
from typing import Any, TypeVar

import hypothesis.strategies as st
import jax
import numpy as np
from jax.typing import DTypeLike

from .._strategies.arrays import COMPLEX, EIGHTHS, Numbers, arrays, numpy_array
from .._strategies.validate import Draw, invalid

_POOLS = ((1, 2, 3), (1, 2, 3), (2, 3, 4, 5), (1, 3, 5, 8), (4, 6, 8, 12), (8, 12, 16))


T = TypeVar("T")


class Unmet(Exception):
    """Sizes were drawn that a symbolic axis cannot do with; others may."""


@dataclasses.dataclass(frozen=True)
class Dim:
    """One axis, or several, of a shape string.

    `kind` is `"fixed"`, `"named"`, `"symbolic"` or `"any"`; `text` is the size, the
    name or the expression.
    """

    kind: str
    text: str = ""
    many: bool = False
    broadcasts: bool = False
    by_leaf: bool = False


def parse(shape: str) -> list[Dim]:
    """The axes of a shape string that jaxtyping has accepted."""
    return [_parse_one(token) for token in shape.split()]


def _parse_one(token: str) -> Dim:
    if token == "...":
        return Dim("any", many=True)
    marked, token = token, token.lstrip("#*_?")
    marks = marked.removesuffix(token)
    if token.count("=") == 1:  # `rows=3`
        token = token.partition("=")[2]
    options = {"many": "*" in marks, "broadcasts": "#" in marks}
    if "_" in marks:
        return Dim("any", many="*" in marks)
    if token.isidentifier():
        return Dim("named", token, by_leaf="?" in marks, **options)
    try:
        return Dim("fixed", str(int(token)), **options)
    except ValueError:
        return Dim("symbolic", token, **options)


class Binding:
    """What names stand for in one call: sizes, shapes, dtypes, tree structures.

    `values` are arguments drawn already, for the `{...}` of symbolic axes. `attempt`
    counts how often drawing was begun again with other sizes.
    """

    def __init__(self, draw: Draw, attempt: int, values: dict[str, Any]):
        self.draw, self.values = draw, values
        self.sizes: dict[Any, int] = {}
        self.shapes: dict[Any, tuple[int, ...]] = {}
        self.dtypes: dict[Any, str] = {}
        self.structures: dict[str, Any] = {}
        self.leaf: tuple[Any, ...] = ()
        self._pool = _POOLS[min(attempt, len(_POOLS) - 1)]

    def a_size(self) -> int:
        """Any size."""
        return self.draw(st.sampled_from(self._pool))

    def a_shape(self) -> tuple[int, ...]:
        """Any shape of at most two axes."""
        return tuple(self.a_size() for _ in range(self.draw(st.integers(0, 2))))

    def shape(self, dims: list[Dim]) -> tuple[int, ...]:
        """A shape that satisfies a shape string."""
        return tuple(size for dim in dims for size in self._sizes_of(dim))

    def _sizes_of(self, dim: Dim) -> tuple[int, ...]:
        if dim.kind == "any":
            return self.a_shape() if dim.many else (self.a_size(),)
        name = (*self.leaf, dim.text) if dim.by_leaf else dim.text
        if dim.many and name not in self.shapes:
            self.shapes[name] = self.a_shape()
        match dim.kind:
            case "fixed":
                whole = (int(dim.text),)
            case "symbolic":
                whole = (self._evaluate(dim.text),)
            case _:
                whole = self.shapes[name] if dim.many else (self.size(name),)
        if not dim.broadcasts:
            return whole
        dropped = self.draw(st.integers(0, len(whole))) if dim.many else 0
        return tuple(1 if self.draw(st.booleans()) else n for n in whole[dropped:])

    def size(self, name: Any) -> int:
        """The size that a name stands for."""
        if name not in self.sizes:
            self.sizes[name] = self.a_size()
        return self.sizes[name]

    def _evaluate(self, text: str) -> int:
        try:
            filled = eval(f"f{text!r}", {**self.values})
            code = compile(filled, "<axis>", "eval")
            names = {name: self.size(name) for name in _names_in(code)}
            size = eval(code, {}, names)
        except Exception as error:
            raise invalid(
                "from_jaxtyping",
                f"the axis `{text}` cannot be computed: {type(error).__name__}: "
                f"{error}.",
                "Its names are axes, and in braces other arguments: `n+1`, `{n}`.",
            ) from error
        if not isinstance(size, int) or size < 0:
            raise Unmet(f"the axis `{text}` would be {size} for {names}")
        return size

    def match(self, dims: list[Dim], shape: tuple[int, ...], place: str) -> None:
        """Binds the names to what a given array has; raises if it has another form."""
        many = next((i for i, dim in enumerate(dims) if dim.many), len(dims))
        behind = len(dims) - many - 1  # -1 where no axis is variadic
        found: list[Any] = list(shape)
        if behind >= 0 and len(shape) >= len(dims) - 1:
            end = len(shape) - behind
            found[many:end] = [shape[many:end]]  # as one
        wrong = None if len(found) == len(dims) else f"has {len(shape)} axes"
        for dim, size in zip(dims, found, strict=False):
            wrong = wrong or self._match(dim, size)
        if wrong:
            raise invalid(
                "arguments",
                f"{place} is an array of shape {shape}, which its annotation rules "
                f"out: {wrong}.",
                "Give a strategy whose values satisfy the annotation.",
            )

    def _match(self, dim: Dim, found: Any) -> str | None:
        """Binds the name of one axis, or of several; or what is wrong with it."""
        if dim.kind == "any" or (dim.broadcasts and (dim.many or found == 1)):
            return None
        if dim.kind == "fixed" and int(dim.text) != found:
            return f"an axis is {dim.text}"
        if dim.kind == "named":
            known = self.shapes if dim.many else self.sizes
            if known.setdefault(dim.text, found) != found:
                star = "*" if dim.many else ""
                return f"`{star}{dim.text}` is already {known[dim.text]}"
        return None


def _names_in(code: types.CodeType) -> tuple[str, ...]:
    known = __builtins__ if isinstance(__builtins__, dict) else vars(__builtins__)
    return tuple(name for name in code.co_names if name not in known)


def attempts(draw: Draw, values: dict[str, Any], make: Callable[[Binding], T]) -> T:
    """What `make` gives, with sizes drawn until every axis can be computed."""
    reason = None
    for attempt in range(4 * len(_POOLS)):
        try:
            return make(Binding(draw, attempt // 4, dict(values)))
        except Unmet as error:
            reason = error
    raise invalid(
        "from_jaxtyping",
        f"no sizes were found that satisfy the annotations: {reason}.",
        "Change the annotation, or give the arguments by strategies of their own.",
    )


# Dtypes.

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
