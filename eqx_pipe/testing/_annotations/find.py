"""Arguments of functions that do not say what shapes they take."""

import concurrent.futures
import inspect
import traceback
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import hypothesis as hp
import hypothesis.strategies as st

from .._strategies.validate import Draw, composite
from .arguments import arguments, is_bare
from .array import is_key_name
from .refusals import Calls, Refusals
from .signature import signature_of

_TRIED = ("*Array", "a b", "a", "h w 3", "a a", "b h w 3", "")
_BEFORE_NUMBERS = ("h w 3", "a b", "a")
# Derandomized, so that the shapes that are found are the same in each run; without
# a database, as nothing of the search is worth keeping.
_FEW = hp.settings(
    max_examples=3,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[hp.Phase.generate],
    suppress_health_check=list(hp.HealthCheck),  # type: ignore
)


def arguments_of(
    fn: Callable[..., Any],
    *,
    shapes: Mapping[str, str] | str | None = None,
    refusals: Refusals = None,
    **options: Any,
) -> st.SearchStrategy[dict[str, Any]]:
    """`arguments(fn)`; with `shapes="find"` of shapes that `fn` takes."""
    if shapes != "find":
        return arguments(fn, shapes=typing.cast(Any, shapes), **options)
    found: list[dict[str, str]] = []  # once for all examples, when the first is drawn

    @composite
    def finding(draw: Draw) -> dict[str, Any]:
        if not found:
            found.append(_taken(fn, refusals, options))
        return draw(arguments(fn, shapes=found[0], **options))

    return finding()


def _taken(
    fn: Callable[..., Any], refusals: Refusals, options: dict[str, Any]
) -> dict[str, str]:
    """The first shapes that a function takes; or of which it takes most, or a part."""
    passed = []
    # In a thread, as hypothesis refuses a test within a test; in one for all, as in
    # each hypothesis looks through all of Python's memory (`register_random`).
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        for shapes in _candidates(fn, options):
            calls = Calls(fn, refusals, quiet=True)
            error = thread.submit(_call, calls, shapes, options).exception()
            if error is None and not calls.refused:
                return shapes
            passed.append((error is None, calls.taken, _reached(fn, error), shapes))
    return max(passed, key=lambda found: found[:-1])[-1]


def _reached(fn: Callable[..., Any], error: BaseException | None) -> int:
    """The line of a function in which an error came up: the later, the better."""
    if error is None:
        return 0
    code = getattr(inspect.unwrap(getattr(fn, "__func__", fn)), "__code__", None)
    lines = traceback.walk_tb(error.__traceback__)
    return max((n for frame, n in lines if frame.f_code is code), default=0)


def _candidates(
    fn: Callable[..., Any], options: dict[str, Any]
) -> Iterator[dict[str, str]]:
    for shape in _TRIED:
        yield {"Array": shape}
    parameters = [
        p
        for p in signature_of(fn).parameters.values()
        if p.name not in options and is_bare(p.annotation) and not is_key_name(p.name)
    ]
    needed = [p.name for p in parameters if p.default is p.empty]
    optional = [p.name for p in parameters if p.default is None]
    for shape in _BEFORE_NUMBERS if len(needed) > 1 else ():
        yield {needed[0]: shape, "Array": ""}
    if optional:  # where one of several must be given
        yield {optional[0]: "a", "Array": "a"}


def _call(calls: Calls, shapes: dict[str, str], options: dict[str, Any]) -> None:
    """Calls a function on a few arguments."""

    @_FEW
    @hp.given(arguments(calls.fn, shapes=shapes, **options))
    def test(given: dict[str, Any]) -> None:
        calls(given)

    test()
