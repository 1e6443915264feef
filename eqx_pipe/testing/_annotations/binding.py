"""The axes that annotations name, and the sizes that are drawn for them."""

import contextlib
import dataclasses
import itertools as it
import random
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import hypothesis.strategies as st
import jax.numpy as jnp
from jax.typing import DTypeLike

from ..._errors import describe_value, quoted
from .._strategies.arrays import Numbers
from .._strategies.validate import check_int, check_strategy, invalid

# One, three and a prime come often: broadcasting, channels, and what divides nothing.
_POOL = (1, 3, 2, 5)
_ALL = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64)
"""Tried one after another where the sizes drawn do not satisfy a symbolic axis."""
_ATTEMPTS = 3

T = TypeVar("T")


class Unmet(Exception):
    """What was drawn does not go together; other sizes or numbers may."""


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


@dataclasses.dataclass(frozen=True)
class Options:
    """What a caller says of all values that are drawn for one call.

    `dtypes` are those to draw where an annotation allows one of them.
    """

    elements: Numbers | None = None
    max_shapes: int | None = None
    min_size: int = 1
    dtypes: Collection[DTypeLike] = ()

    def checked(self, function: str) -> "Options":
        """Itself, if the numbers and the strategy can be used."""
        check_strategy(function, "elements", self.elements)
        if self.max_shapes is not None:
            check_int(function, "max_shapes", self.max_shapes, 1)
        check_int(function, "min_size", self.min_size, 0)
        return dataclasses.replace(self, dtypes=_names_of(function, self.dtypes))


def _names_of(function: str, dtypes: Any) -> tuple[str, ...]:
    """Names of dtypes; raises for what is none."""
    if isinstance(dtypes, tuple | list):
        with contextlib.suppress(TypeError):
            return tuple(jnp.dtype(dtype).name for dtype in dtypes)
    raise invalid(
        function,
        f"`dtypes` is {describe_value(dtypes)}.",
        'Give a tuple of dtypes: `dtypes=("float32", "int32")`.',
    )


class Binding:
    """What names stand for in one call: sizes, shapes, dtypes, tree structures.

    `values` are arguments drawn already, for the `{...}` of symbolic axes. `attempt`
    counts how often drawing was begun again. `form` is the number of one of a few forms
    of arrays; `None` allows any.
    """

    def __init__(
        self,
        draw: Callable[..., Any],
        attempt: int = 0,
        values: Mapping[str, Any] | None = None,
        options: Options = Options(),  # noqa: B008
        form: int | None = None,
    ):
        self.draw, self.attempt, self.values = draw, attempt, dict(values or {})
        self.elements = options.elements
        self.dtypes_asked = [str(dtype) for dtype in options.dtypes]
        # The first of all forms is the simplest.
        # By a text, of which `Random` takes the same seed in every process.
        self._form = None if form is None else random.Random(f"{form} {attempt}")
        self._simplest = form == attempt == 0
        self.sizes: dict[Any, int] = {}
        self.shapes: dict[Any, tuple[int, ...]] = {}
        self.dtypes: dict[Any, str] = {}
        self.structures: dict[str, Any] = {}
        self.leaf: tuple[Any, ...] = ()
        enough = tuple(size for size in _POOL if size >= options.min_size)
        self._pool = enough or (options.min_size, options.min_size + 1)
        self._pool += (0,) if options.min_size == 0 else ()

    def choose(self, among: Sequence[T]) -> T:
        """One of several, the simplest first, on which forms of arrays depend.

        So it is of forms that there are few, if few may be: each compiles anew.
        """
        if self._form is None:
            return self.draw(st.sampled_from(among))
        return among[0] if self._simplest else self._form.choice(among)

    def a_size(self) -> int:
        """Any size."""
        return self.choose(self._pool)

    def a_shape(self) -> tuple[int, ...]:
        """Draw a shape of at most two axes."""
        return tuple(self.a_size() for _ in range(self.choose((0, 1, 2))))

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
        dropped = self.choose(range(len(whole) + 1)) if dim.many else 0
        return tuple(1 if self.choose((False, True)) else n for n in whole[dropped:])

    def size(self, name: Any) -> int:
        """The size that a name stands for."""
        if name not in self.sizes:
            self.sizes[name] = self.a_size()
        return self.sizes[name]

    def solve(self, shapes: str) -> None:
        """Draws the sizes of the names in symbolic axes so that all can be computed.

        What stands in braces is not known yet; those axes are computed where they are
        met.
        """
        codes = {}
        for dim in parse(shapes):
            if dim.kind == "symbolic" and "{" not in dim.text:
                codes[dim.text] = _compiled(dim.text)
        names = [name for code in codes.values() for name in _names_in(code)]
        free = [name for name in dict.fromkeys(names) if name not in self.sizes]
        drawn = tuple(self.a_size() for _ in free)
        # All sizes of three names, and nearly all of four; more would take long.
        tried = [drawn, *it.islice(it.product(_ALL, repeat=len(free)), 20_000)]
        for least in (1, 0):
            for sizes in tried:
                known = {**self.sizes, **dict(zip(free, sizes, strict=True))}
                if all(_computed(t, c, known) >= least for t, c in codes.items()):
                    self.sizes = known
                    return
        texts = quoted(codes)
        fixed = {name: self.sizes[name] for name in names if name in self.sizes}
        given = f" with {fixed}" if fixed else ""
        raise Unmet(f"no sizes up to {_ALL[-1]} give {texts} at least 0{given}")

    def _evaluate(self, text: str) -> int:
        try:
            # As jaxtyping does.
            filled = eval(f"f{text!r}", {**self.values})
        except Exception as error:
            raise _incomputable(text, error) from error
        code = _compiled(filled)
        names = {name: self.size(name) for name in _names_in(code)}
        size = _computed(text, code, names)
        if size < 0:
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


def _compiled(text: str) -> types.CodeType:
    try:
        return compile(text, "<axis>", "eval")
    except SyntaxError as error:
        raise _incomputable(text, error) from error


def _computed(text: str, code: types.CodeType, names: dict[str, int]) -> int:
    try:
        size = eval(code, {}, names)
    except Exception as error:
        raise _incomputable(text, error) from error
    return size if isinstance(size, int) else -1


def _incomputable(text: str, error: Exception) -> Exception:
    return invalid(
        "from_jaxtyping",
        f"the axis `{text}` cannot be computed: {type(error).__name__}: {error}.",
        "Its names are axes, and in braces other arguments: `n+1`, `{n}`.",
    )


def _names_in(code: types.CodeType) -> tuple[str, ...]:
    # Which of the two it is CPython leaves open; `min(a, b)` names no axis `min`.
    known = __builtins__ if isinstance(__builtins__, dict) else vars(__builtins__)
    return tuple(name for name in code.co_names if name not in known)


def attempts(
    draw: Callable[..., Any],
    options: Options,
    make: Callable[[Binding], T],
    values: Mapping[str, Any] | None = None,
) -> T:
    """What `make` gives, with bindings made anew until everything goes together."""
    most = options.max_shapes
    form = None if most is None else draw(st.integers(0, most - 1))
    reason = None
    for attempt in range(_ATTEMPTS):
        try:
            return make(Binding(draw, attempt, values, options, form))
        except Unmet as error:
            reason = error
    raise invalid(
        "from_jaxtyping",
        f"no values were found that satisfy the annotations: {reason}.",
        "Change the annotation, or give the arguments by strategies of their own.",
    )
