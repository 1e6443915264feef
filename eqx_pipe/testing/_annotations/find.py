"""Arguments of functions that do not say what shapes they take."""

import concurrent.futures
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import hypothesis as hp
import hypothesis.strategies as st

from ..._errors import describe_value, type_error
from .._strategies.validate import Draw, composite
from .arguments import arguments, is_bare
from .array import is_key_name
from .signature import signature_of, split

Refusals: typing.TypeAlias = "type[Exception] | tuple[type[Exception], ...]"

_TRIED = ("*Array", "a b", "a", "h w 3", "a a", "b h w 3", "")
_BEFORE_NUMBERS = ("h w 3", "a b", "a")
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
    refusals: Refusals = (),
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


def called(
    fn: Callable[..., Any], arguments: Mapping[str, Any], refusals: Refusals
) -> Any:
    """What a function gives; examples that it refuses are none of hypothesis's."""
    first, rest = split(fn, arguments)
    try:
        return fn(*first, **rest)
    except refusals:
        hp.reject()


def checked_refusals(function: str, refusals: Any) -> Refusals:
    """Itself, if these are classes of errors."""
    kinds = refusals if isinstance(refusals, tuple) else (refusals,)
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            wrong = (
                f"`refusals` has {describe_value(kind)}, which is no class of errors."
            )
            cure = "Give one, or a tuple of them: `refusals=(ValueError, TypeError)`."
            raise type_error(f"testing.{function}", wrong, cure)
    return refusals


def _taken(
    fn: Callable[..., Any], refusals: Refusals, options: dict[str, Any]
) -> dict[str, str]:
    """The first shapes on which a function does not raise; or does so last."""
    passed = []
    # In a thread, as hypothesis refuses a test within a test; in one for all, as in
    # each hypothesis looks through all of Python's memory (`register_random`).
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        for shapes in _candidates(fn, options):
            count = [0]
            task = thread.submit(_call, fn, shapes, refusals, options, count)
            if task.exception() is None:
                return shapes
            passed.append((count[0], shapes))
    return max(passed, key=lambda pair: pair[0])[1]


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


def _call(
    fn: Callable[..., Any],
    shapes: dict[str, str],
    refusals: Refusals,
    options: dict[str, Any],
    count: list[int],
) -> None:
    """Calls a function on a few arguments, and counts how often it did not raise."""

    @_FEW
    @hp.given(arguments(fn, shapes=shapes, **options))
    def test(given: dict[str, Any]) -> None:
        called(fn, given, refusals)
        count[0] += 1

    test()
