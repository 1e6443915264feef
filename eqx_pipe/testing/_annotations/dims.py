"""The axes of a jaxtyping shape string, and the sizes that their names stand for."""

import dataclasses
import types
from collections.abc import Callable
from typing import Any, TypeVar

import hypothesis.strategies as st

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
    marks = set()
    while token and token[0] in "#*_?":
        marks.add(token[0])
        token = token[1:]
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
        if dim.many:
            if name not in self.shapes:
                self.shapes[name] = self.a_shape()
            whole = self.shapes[name]
            return self._narrowed(whole) if dim.broadcasts else whole
        if dim.kind == "fixed":
            size = int(dim.text)
        elif dim.kind == "named":
            size = self.size(name)
        else:
            size = self._evaluate(dim.text)
        return (1,) if dim.broadcasts and self.draw(st.booleans()) else (size,)

    def size(self, name: Any) -> int:
        """The size that a name stands for."""
        if name not in self.sizes:
            self.sizes[name] = self.a_size()
        return self.sizes[name]

    def _narrowed(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A shape that broadcasts to `shape`."""
        dropped = self.draw(st.integers(0, len(shape)))
        kept = shape[dropped:]
        return tuple(1 if self.draw(st.booleans()) else size for size in kept)

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
