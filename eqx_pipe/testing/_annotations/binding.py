"""The axes that annotations name, and the sizes that are drawn for them."""

import builtins
import contextlib
import dataclasses
import random
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
"""Tried at random where the sizes drawn do not satisfy the symbolic axes."""
_TRIED = 5000
_ATTEMPTS = 3

T = TypeVar("T")


class Unmet(Exception):
    """A contradiction in drawn values, which other sizes or numbers may avoid."""


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
    """Return the axes of a shape string that jaxtyping has accepted."""
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
    kind = "fixed" if token.isdecimal() else "symbolic"
    return Dim(kind, token, **options)


@dataclasses.dataclass(frozen=True)
class Options:
    """The options for all values that are drawn for one call.

    `dtypes` are those to draw where an annotation allows one of them.
    """

    elements: Numbers | None = None
    max_shapes: int | None = None
    min_size: int = 1
    dtypes: Collection[DTypeLike] = ()

    def checked(self, function: str) -> "Options":
        """Return the options, with names of dtypes, after a check."""
        check_strategy(function, "elements", self.elements)
        if self.max_shapes is not None:
            check_int(function, "max_shapes", self.max_shapes, 1)
        check_int(function, "min_size", self.min_size, 0)
        if isinstance(self.dtypes, tuple | list):
            with contextlib.suppress(TypeError):
                names = tuple(jnp.dtype(dtype).name for dtype in self.dtypes)
                return dataclasses.replace(self, dtypes=names)
        raise invalid(
            function,
            f"`dtypes` is {describe_value(self.dtypes)}.",
            'Give a tuple of dtypes: `dtypes=("float32", "int32")`.',
        )


class _Sizes(dict[Any, int]):
    """The sizes of names; a name that is new gets one that is drawn."""

    def __init__(self, known: Mapping[Any, int], draw: Callable[[], int]):
        super().__init__(known)
        self._draw = draw

    def __missing__(self, name: Any) -> int:
        return self.setdefault(name, self._draw())

    def evaluate(self, text: str) -> int:
        """Return the size of a symbolic axis; what is no integer counts as -1."""
        try:
            code = compile(text, "<axis>", "eval")
            # `min(a, b)` names no axis `min`.
            names = [name for name in code.co_names if not hasattr(builtins, name)]
            size = eval(code, {}, {name: self[name] for name in names})
        except Exception as error:
            raise _incomputable(text, error) from error
        return size if isinstance(size, int) else -1


class Binding:
    """The meaning of names in one call: sizes, shapes, dtypes, tree structures.

    `values` are arguments drawn already, for the `{...}` of symbolic axes. `attempt`
    counts how often drawing was begun again. `form` is the number of one of a few forms
    of arrays; `None` allows any.
    """

    def __init__(
        self,
        draw: Callable[..., Any],
        options: Options,
        attempt: int,
        form: int | None,
    ):
        self.draw = draw
        self.elements = options.elements
        self.dtypes_asked = [str(dtype) for dtype in options.dtypes]
        # By a text, of which `Random` takes the same seed in every process.
        self._form = None if form is None else random.Random(f"{form} {attempt}")
        # The first of all forms is the simplest.
        self._simplest = form == attempt == 0
        self.values: dict[str, Any] = {}
        self.sizes = _Sizes({}, self._a_size)
        self.shapes: dict[Any, tuple[int, ...]] = {}
        self.dtypes: dict[Any, str] = {}
        self.structures: dict[str, Any] = {}
        self.leaf: tuple[Any, ...] = ()
        enough = tuple(size for size in _POOL if size >= options.min_size)
        self._pool = enough or (options.min_size, options.min_size + 1)
        self._pool += (0,) if options.min_size == 0 else ()

    def choose(self, among: Sequence[T]) -> T:
        """Return one of several, the simplest first, on which forms of arrays depend.

        So it is of forms that there are few, if few may be: each compiles anew.
        """
        if self._form is None:
            return self.draw(st.sampled_from(among))
        return among[0] if self._simplest else self._form.choice(among)

    def shape(self, dims: list[Dim]) -> tuple[int, ...]:
        """Return a shape that satisfies a shape string."""
        return tuple(size for dim in dims for size in self._sizes_of(dim))

    def _a_size(self) -> int:
        return self.choose(self._pool)

    def _a_shape(self) -> tuple[int, ...]:
        return tuple(self._a_size() for _ in range(self.choose((0, 1, 2))))

    def _sizes_of(self, dim: Dim) -> tuple[int, ...]:
        if dim.kind == "any":
            return self._a_shape() if dim.many else (self._a_size(),)
        name = (*self.leaf, dim.text) if dim.by_leaf else dim.text
        if dim.many and name not in self.shapes:
            self.shapes[name] = self._a_shape()
        match dim.kind:
            case "fixed":
                whole = (int(dim.text),)
            case "symbolic":
                whole = (self._evaluate(dim.text),)
            case _:
                whole = self.shapes[name] if dim.many else (self.sizes[name],)
        if not dim.broadcasts:
            return whole
        dropped = self.choose(range(len(whole) + 1)) if dim.many else 0
        return tuple(1 if self.choose((False, True)) else n for n in whole[dropped:])

    def solve(self, shapes: str) -> None:
        """Draw the sizes of the names in symbolic axes so that all can be computed.

        What stands in braces is not known yet; those axes are computed where they are
        met.
        """
        symbolic = [dim.text for dim in parse(shapes) if dim.kind == "symbolic"]
        texts = [text for text in symbolic if "{" not in text]
        sizes = _Sizes(self.sizes, self._a_size)
        for least in (1, 0):
            wider = random.Random(0)
            for _ in range(_TRIED):
                if all(sizes.evaluate(text) >= least for text in texts):
                    self.sizes.update(sizes)
                    return
                sizes = _Sizes(self.sizes, lambda: wider.choice(_ALL))  # noqa: B023
        given = f" with {dict(self.sizes)}" if self.sizes else ""
        what = f"no sizes up to {_ALL[-1]} give {quoted(texts)} at least 0{given}"
        raise Unmet(what)

    def _evaluate(self, text: str) -> int:
        try:
            # As jaxtyping does.
            filled = eval(f"f{text!r}", {**self.values})
        except Exception as error:
            raise _incomputable(text, error) from error
        size = self.sizes.evaluate(filled)
        if size < 0:
            raise Unmet(f"the axis `{text}` would be {size} for {dict(self.sizes)}")
        return size

    def match(self, text: str, shape: tuple[int, ...], place: str) -> None:
        """Bind names to the sizes of a given array; raise if its shape does not fit."""
        dims = parse(text)
        many = next((i for i, dim in enumerate(dims) if dim.many), len(dims))
        behind = len(dims) - many - 1  # -1 where no axis is variadic
        found: list[Any] = list(shape)
        if behind >= 0 and len(shape) >= len(dims) - 1:
            end = len(shape) - behind
            found[many:end] = [shape[many:end]]  # as one
        fits = len(found) == len(dims) and all(map(self._fits, dims, found))
        if not fits:
            known = {**self.sizes, **self.shapes}
            given = f" with {known}" if known else ""
            raise invalid(
                "arguments",
                f"{place} is an array of shape {shape}, which its annotation "
                f"`{text.strip()}` rules out{given}.",
                "Give a strategy whose values satisfy the annotation.",
            )

    def _fits(self, dim: Dim, found: Any) -> bool:
        """Bind the name of one axis, or of several; return whether it fits."""
        if dim.broadcasts and (dim.many or found == 1):
            return True
        if dim.kind == "named":
            known: dict[Any, Any] = self.shapes if dim.many else self.sizes
            return known.setdefault(dim.text, found) == found
        return dim.kind != "fixed" or int(dim.text) == found


def _incomputable(text: str, error: Exception) -> Exception:
    return invalid(
        "from_jaxtyping",
        f"the axis `{text}` cannot be computed: {type(error).__name__}: {error}.",
        "Its names are axes, and in braces other arguments: `n+1`, `{n}`.",
    )


def attempts(
    draw: Callable[..., Any], options: Options, make: Callable[[Binding], T]
) -> T:
    """Return what `make` makes of a binding, of a new one until all names agree."""
    most = options.max_shapes
    form = None if most is None else draw(st.integers(0, most - 1))
    reason = None
    for attempt in range(_ATTEMPTS):
        try:
            return make(Binding(draw, options, attempt, form))
        except Unmet as error:
            reason = error
    raise invalid(
        "from_jaxtyping",
        f"no values were found that satisfy the annotations: {reason}.",
        "Change the annotation, or give the arguments by strategies of their own.",
    )
