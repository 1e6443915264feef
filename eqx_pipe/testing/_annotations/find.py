"""Arguments of functions that do not say what shapes they take."""

import concurrent.futures
from collections.abc import Callable
from typing import Any

import hypothesis as hp
import hypothesis.strategies as st

from .._strategies.validate import Draw, composite
from .arguments import arguments
from .signature import split

_TRIED = ("*Array", "a b", "a", "h w 3", "a a", "b h w 3", "")
_FEW = hp.settings(
    max_examples=3,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[hp.Phase.generate],
    suppress_health_check=list(hp.HealthCheck),  # type: ignore
)


def arguments_of(
    fn: Callable[..., Any], *, shapes: Any = None, **options: Any
) -> st.SearchStrategy[dict[str, Any]]:
    """`arguments(fn)`; with `shapes="find"` of shapes that `fn` takes."""
    if shapes != "find":
        return arguments(fn, shapes=shapes, **options)
    found: list[str] = []  # once for all examples, when the first is drawn

    @composite
    def finding(draw: Draw) -> dict[str, Any]:
        if not found:
            found.append(_taken(fn, options))
        return draw(arguments(fn, shapes={"Array": found[0]}, **options))

    return finding()


def _taken(fn: Callable[..., Any], options: dict[str, Any]) -> str:
    """The first shape on which a function does not raise; or that of all."""
    for shape in _TRIED:
        # In a thread, as hypothesis refuses a test within a test.
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            if thread.submit(_call, fn, shape, options).exception() is None:
                return shape
    return _TRIED[0]


def _call(fn: Callable[..., Any], shape: str, options: dict[str, Any]) -> None:
    """Calls a function on a few arguments with arrays of some shape."""

    @_FEW
    @hp.given(arguments(fn, shapes={"Array": shape}, **options))
    def test(given: dict[str, Any]) -> None:
        first, rest = split(fn, given)
        fn(*first, **rest)

    test()
