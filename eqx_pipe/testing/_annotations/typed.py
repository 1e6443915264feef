"""An annotated function as a property test of what it returns."""

import functools as ft
import inspect
import itertools as it
import types
import typing
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import beartype
import beartype.roar
import hypothesis as hp
import hypothesis.strategies as st
from jax.typing import DTypeLike
from jaxtyping import AnnotationError, TypeCheckError, jaxtyped

from ..._errors import message
from ..._tree import tree_text
from .._strategies.arrays import Numbers
from .._strategies.validate import invalid
from .arguments import arguments, fields_of, owner_of
from .binding import parse
from .signature import (
    is_uncheckable,
    name_of,
    signature_of,
    split,
    text_of,
)

# Generators need not end.
_MOST_YIELDED = 64

Override: typing.TypeAlias = "st.SearchStrategy | types.EllipsisType"


@typing.overload
def given_typed(
    fn: Callable[..., Any],
    *,
    elements: Numbers | None = None,
    shapes: Mapping[str, str] | None = None,
    max_shapes: int | None = None,
    min_size: int = 1,
    dtypes: Collection[DTypeLike] = (),
    **overrides: Override,
) -> Callable[[], None]: ...
@typing.overload
def given_typed(
    fn: None = None,
    *,
    elements: Numbers | None = None,
    shapes: Mapping[str, str] | None = None,
    max_shapes: int | None = None,
    min_size: int = 1,
    dtypes: Collection[DTypeLike] = (),
    **overrides: Override,
) -> Callable[[Callable[..., Any]], Callable[[], None]]: ...
def given_typed(
    fn: Callable[..., Any] | None = None,
    *,
    elements: Numbers | None = None,
    shapes: Mapping[str, str] | None = None,
    max_shapes: int | None = None,
    min_size: int = 1,
    dtypes: Collection[DTypeLike] = (),
    **overrides: Override,
) -> Callable[..., Any]:
    """Makes an annotated function a property test: a decorator.

    The test calls `fn` with `arguments(fn)` and checks that what it returns satisfies
    its return annotation, with names bound as in the arguments and in the fields of the
    module that it is a method of. What `fn` raises fails the test, too, so a body with
    `assert` is a test of what it asserts. `hypothesis.assume` in the body skips
    arguments that do not go together. Of a generator the first 64 values are taken,
    each of which must satisfy the annotation. There is no deadline, unless you say
    `@hypothesis.settings`.

    **Arguments:**

    - `fn`: an annotated function.
    - `elements`, `shapes`, `max_shapes`, `min_size`, `dtypes`, `overrides`: as in
        `arguments`. (Keyword only.)

    **Returns:** a test without arguments.

    **Raises:** the test raises an `AssertionError` if the returned value does not
    satisfy the annotation.

    **Warns:** if the return annotation cannot be read, so that it is not checked.

    !!! example

        >>> import eqx_pipe.testing as ept, jax.numpy as jnp
        >>> from jaxtyping import Array, Float
        >>> def steps(x: Float[Array, " n"]) -> Float[Array, " n"]:
        ...     return jnp.diff(x)
        >>> test_steps = ept.given_typed(steps)
        >>> test_steps()
        Traceback (most recent call last):
            ...
        AssertionError: `eqx_pipe.testing.given_typed`: `steps` returned ...
    """
    options = {"elements": elements, "shapes": shapes, "max_shapes": max_shapes}
    options |= {"min_size": min_size, "dtypes": dtypes, **overrides}
    if fn is None:
        return ft.partial(given_typed, **options)
    run = _returning(fn)

    @hp.given(arguments=arguments(fn, **options))
    def test(arguments: dict[str, Any]) -> None:
        __tracebackhide__ = True
        run(arguments)

    return _named_like(test, fn)


def _named_like(test: Callable[..., Any], fn: Callable[..., Any]) -> Callable[..., Any]:
    """A test with the name of what it tests, and without a deadline."""
    test.__name__ = test.__qualname__ = name_of(fn)
    test.__doc__ = fn.__doc__
    test.__module__ = getattr(fn, "__module__", test.__module__)
    # Compiling takes longer than the deadline. `settings` says it only once for a test,
    # and that is for the user to do.
    test._hypothesis_internal_use_settings = hp.settings(deadline=None)  # type: ignore
    return test


def _returning(fn: Callable[..., Any]) -> Callable[[dict[str, Any]], None]:
    """`fn` on a dict of arguments, with a check of what it returns."""
    if inspect.iscoroutinefunction(fn):
        raise invalid(
            "given_typed",
            f"`{name_of(fn)}` is a coroutine, which a call does not run.",
            "Wrap it: `lambda x: asyncio.run(fn(x))`, in a function with annotations.",
        )
    signature = signature_of(fn)
    returned = signature.return_annotation
    owner = owner_of(fn)
    fields = fields_of(owner)
    if is_uncheckable(returned):
        text = getattr(returned, "text", returned)
        why = getattr(returned, "reason", "it has text in it, or a static protocol")
        wrong = (
            f"what `{name_of(fn)}` returns is not checked, as its annotation "
            f"`{text}` cannot be read: {why}."
        )
        cure = "Import the name outside of `if TYPE_CHECKING:`."
        warnings.warn(message("testing.given_typed", wrong, cure), stacklevel=3)

    def run(arguments: dict[str, Any]) -> None:
        __tracebackhide__ = True
        first, rest = split(fn, arguments)
        value = made = fn(*first, **rest)
        annotation = returned
        if isinstance(made, types.GeneratorType):
            value = list(it.islice(made, _MOST_YIELDED))
            annotation = _of_each(returned)
        if annotation is signature.empty or is_uncheckable(annotation):
            return
        typed = [*fields.values(), *_pairs(signature, arguments)]
        values = value if isinstance(made, types.GeneratorType) else [value]
        # beartype would look at one of a list, by chance.
        each = {tree_text(v): v for v in values}.values()
        if not all(_fits(annotation, v, typed, arguments, owner) for v in each):
            given = ", ".join(f"`{k}` {tree_text(v)}" for k, v in arguments.items())
            wanted = getattr(annotation, "__name__", annotation)
            raise AssertionError(
                f"`eqx_pipe.testing.given_typed`: `{name_of(fn)}` returned "
                f"{tree_text(value)} for {given}; its annotation is `{wanted}`. "
                "Mend the function or the annotation."
            )

    return run


def _of_each(returned: Any) -> Any:
    """The annotation of what a generator yields."""
    return next(iter(typing.get_args(returned)), inspect.Signature.empty)


def _pairs(
    signature: inspect.Signature, arguments: Mapping[str, Any]
) -> Iterator[tuple[Any, Any]]:
    """The annotations that arguments have, with their values."""
    for name, parameter in signature.parameters.items():
        hint = parameter.annotation
        if name not in arguments or hint is parameter.empty:
            continue
        if is_uncheckable(hint):  # it says nothing that could be checked
            continue
        variadic = parameter.kind is parameter.VAR_POSITIONAL
        for value in arguments[name] if variadic else (arguments[name],):
            yield hint, value


def _fits(
    returned: Any,
    value: Any,
    typed: list[tuple[Any, Any]],
    arguments: Mapping[str, Any],
    owner: Any,
) -> bool:
    """Whether a value goes together with what binds names, as jaxtyping sees it.

    jaxtyping checks a function, so one is made that has the annotations. The value
    comes in from outside, so that an error of the user's function itself stays plain.
    """
    # What computes an axis comes behind what names it.
    parts = _parts(returned, value)
    if len(parts) > 1:
        typed, returned = [*typed, *parts], Any
    typed = [part for pair in typed for part in _parts(*pair)]
    typed = sorted(typed, key=lambda pair: _computes(text_of(pair[0])))
    hints = {f"typed{i}_": hint for i, (hint, _) in enumerate(typed)}
    values = {f"typed{i}_": given for i, (_, given) in enumerate(typed)}
    # The `{...}` of axes look for arguments by their names, which need no annotation.
    plain = {**({"self": owner} if owner is not None else {}), **arguments}
    scope: dict[str, Any] = {"returned_": value}
    exec(f"def fn({', '.join([*plain, *hints])}):\n    return returned_\n", scope)
    fn = scope["fn"]
    fn.__annotations__ = {**hints, "return": returned}
    # By default beartype looks at one item of a list, drawn at random.
    conf = beartype.BeartypeConf(strategy=beartype.BeartypeStrategy.On)
    try:
        checked = jaxtyped(fn, typechecker=beartype.beartype(conf=conf))
        checked(**plain, **values)
    except TypeCheckError:
        return False
    except (AnnotationError, beartype.roar.BeartypeException) as error:
        raise invalid(
            "given_typed",
            f"the annotations cannot be checked together: {error}.",
            "Change the annotation; a name in a symbolic axis must be that of an axis "
            "of an argument.",
        ) from error
    return True


def _parts(hint: Any, value: Any) -> list[tuple[Any, Any]]:
    """An annotation and its value; of a tuple, each member's."""
    args = typing.get_args(hint)
    alike = type(value) is tuple and len(value) == len(args) and ... not in args
    if typing.get_origin(hint) is not tuple or not alike:
        return [(hint, value)]
    pairs = zip(args, value, strict=True)
    return [part for pair in pairs for part in _parts(*pair)]


def _computes(text: str) -> bool:
    return any(dim.kind == "symbolic" for dim in parse(text))
