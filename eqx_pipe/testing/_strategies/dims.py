"""Bind the axes that annotations name to drawn sizes."""

import builtins
import contextlib
import dataclasses
import operator
import random
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypeVar

import hypothesis
import hypothesis.strategies as st
import jax.numpy as jnp
import jax.tree_util as jtu
from jax.typing import DTypeLike

from ..._check import check_int
from ..._errors import describe_value, quoted
from .arrays import Numbers
from .validate import check_strategy, invalid

# One for broadcasting, three for channels, and small primes, which divide little.
_POOL = (1, 3, 2, 5)
_ALL = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64)
"""Tried at random if the drawn sizes do not satisfy the symbolic axes."""
_TRIED = 5000
STRUCTURES = (0, (0, 0), {"a": 0, "b": 0}, [(0,), {"c": 0}])
"""Pytrees, the simplest first."""

T = TypeVar("T")


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
    # Modifiers, an optional documentation name (`rows=3`), and the size.
    found = re.fullmatch(r"([#*_?]*)(?:\w+=(?!=))?(.*)", token)
    marks, text = found.groups() if found else ("", token)
    many = "*" in marks or token == "..."
    if token == "..." or "_" in marks:
        kind = "any"
    elif text.isidentifier():
        kind = "named"
    else:
        kind = "fixed" if text.isdecimal() else "symbolic"
    return Dim(kind, text, many, broadcasts="#" in marks, by_leaf="?" in marks)


class Binding:
    """The values of names in one call: sizes, shapes, dtypes, tree structures.

    A new name gets a drawn value. `values` are the arguments drawn so far, for the
    `{...}` of symbolic axes.
    """

    def __init__(
        self,
        draw: Callable[..., Any],
        function: str,
        elements: Numbers | None,
        max_shapes: int | None,
        dtypes: Collection[DTypeLike],
    ):
        check_strategy(function, "elements", elements)
        self.draw, self.elements = draw, elements
        self.dtypes_asked = _names_of(function, dtypes)
        self._pick: Callable[[Any], Any] = lambda among: draw(st.sampled_from(among))
        if max_shapes is not None:
            check_int(f"testing.{function}", "max_shapes", max_shapes, 1)
            form = draw(st.integers(0, max_shapes - 1))
            # Form 0 is the simplest.
            simplest = operator.itemgetter(0)
            self._pick = random.Random(f"form {form}").choice if form else simplest
        self.values: dict[str, Any] = {}
        self.sizes: defaultdict[Any, int] = defaultdict(self._a_size)
        self.shapes: defaultdict[Any, tuple[int, ...]] = defaultdict(self._a_shape)
        self.structures: defaultdict[str, Any] = defaultdict(
            lambda: jtu.tree_structure(self.choose(STRUCTURES))
        )
        self.dtypes: dict[Any, str] = {}
        self.leaf: tuple[Any, ...] = ()

    def choose(self, among: Sequence[T]) -> T:
        """Return one of several values; the first is the simplest.

        All shapes and dtypes are chosen here, so `max_shapes` limits their
        combinations, each of which compiles again.
        """
        return self._pick(among)

    def shape(self, dims: list[Dim]) -> tuple[int, ...]:
        """Return a shape that satisfies a shape string."""
        return tuple(size for dim in dims for size in self._sizes_of(dim))

    def _a_size(self) -> int:
        return self.choose(_POOL)

    def _a_shape(self) -> tuple[int, ...]:
        return tuple(self._a_size() for _ in range(self.choose((0, 1, 2))))

    def _sizes_of(self, dim: Dim) -> tuple[int, ...]:
        name = (*self.leaf, dim.text) if dim.by_leaf else dim.text
        match dim.kind:
            case "any":
                whole = self._a_shape() if dim.many else (self._a_size(),)
            case "fixed":
                whole = (int(dim.text),)
            case "symbolic":
                whole = (self._filled(dim.text),)
            case _:
                whole = self.shapes[name] if dim.many else (self.sizes[name],)
        if not dim.broadcasts:
            return whole
        dropped = self.choose(range(len(whole) + 1)) if dim.many else 0
        return tuple(1 if self.choose((False, True)) else n for n in whole[dropped:])

    def solve(self, shapes: str) -> None:
        """Draw the sizes of names so that all symbolic axes can be computed.

        Values in braces are not known yet; axes with them are computed later.
        """
        symbolic = [dim.text for dim in parse(shapes) if dim.kind == "symbolic"]
        texts = [text for text in symbolic if "{" not in text]
        sizes = defaultdict(self._a_size, self.sizes)
        for least in (1, 0):
            wider = random.Random(0)
            for _ in range(_TRIED):
                if all(_evaluate(text, sizes) >= least for text in texts):
                    self.sizes.update(sizes)
                    return
                sizes = defaultdict(lambda: wider.choice(_ALL), self.sizes)  # noqa: B023
        given = f" with {dict(self.sizes)}" if self.sizes else ""
        raise invalid(
            "from_jaxtyping",
            f"no sizes up to {_ALL[-1]} give {quoted(texts)} at least 0{given}.",
            "Change the annotation, or give the arguments by strategies of their own.",
        )

    def _filled(self, text: str) -> int:
        """Return the size of a symbolic axis, with arguments in place of braces."""
        with _computing(text):  # as jaxtyping does
            filled = eval(f"f{text!r}", {**self.values})
        size = _evaluate(filled, self.sizes)
        hypothesis.assume(size >= 0)
        return size

    def match(self, text: str, shape: tuple[int, ...], place: str) -> None:
        """Bind names to the sizes of a given array; raise if its shape differs."""
        dims = parse(text)
        found: list[Any] = list(shape)
        for i in (i for i, dim in enumerate(dims) if dim.many):  # one at most
            end = len(shape) - (len(dims) - i - 1)
            found[i : max(i, end)] = [shape[i:end]]
        if len(found) != len(dims) or not all(map(self._fits, dims, found)):
            known = {**self.sizes, **self.shapes}
            given = f" with {known}" if known else ""
            raise invalid(
                "arguments",
                f"{place} is an array of shape {shape}, which its annotation "
                f"`{text.strip()}` rules out{given}.",
                "Give a strategy whose values satisfy the annotation.",
            )

    def _fits(self, dim: Dim, found: Any) -> bool:
        """Bind the name of one axis, or of several; return whether it matches."""
        if dim.broadcasts and (dim.many or found == 1):
            return True
        if dim.kind == "named":
            known: dict[Any, Any] = self.shapes if dim.many else self.sizes
            return known.setdefault(dim.text, found) == found
        return dim.kind != "fixed" or int(dim.text) == found


def _evaluate(text: str, sizes: defaultdict[Any, int]) -> int:
    """Return the size of a symbolic axis, or -1 if it is not an integer."""
    with _computing(text):
        code = compile(text, "<axis>", "eval")
        # In `min(a, b)`, `min` is not the name of an axis.
        names = [name for name in code.co_names if not hasattr(builtins, name)]
        size = eval(code, {}, {name: sizes[name] for name in names})
    return size if isinstance(size, int) else -1


@contextlib.contextmanager
def _computing(text: str) -> Iterator[None]:
    """Add the axis to errors that its expression raises."""
    try:
        yield
    except Exception as error:
        raise invalid(
            "from_jaxtyping",
            f"the axis `{text}` cannot be computed: {type(error).__name__}: {error}.",
            "Its names are axes, and in braces other arguments: `n+1`, `{n}`.",
        ) from error


def _names_of(function: str, dtypes: Any) -> list[str]:
    """Return the names of dtypes; raise if one is not a dtype."""
    if isinstance(dtypes, tuple | list):
        with contextlib.suppress(TypeError):
            return [jnp.dtype(dtype).name for dtype in dtypes]
    raise invalid(
        function,
        f"`dtypes` is {describe_value(dtypes)}.",
        'Give a tuple of dtypes: `dtypes=("float32", "int32")`.',
    )
