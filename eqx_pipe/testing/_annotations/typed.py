"""An annotated function as a property test of its return value."""

import functools as ft
import inspect
from collections.abc import Callable
from typing import Any

import beartype
import hypothesis as hp
from jaxtyping import jaxtyped

from .._strategies.validate import invalid
from .arguments import arguments, name_of, plain_function

# By default beartype checks only one random item of a list.
_CHECKER = beartype.beartype(
    conf=beartype.BeartypeConf(strategy=beartype.BeartypeStrategy.On)
)


def given_typed(
    fn: Callable[..., Any] | None = None, **options: Any
) -> Callable[..., Any]:
    """Make a property test of an annotated function. Can be used as a decorator.

    The test calls `fn` with `arguments(fn)`; jaxtyping and beartype check that its
    return value satisfies the annotation, with names bound as in the arguments. An
    error that `fn` raises also fails the test, so `fn` may contain `assert`;
    `hypothesis.assume` skips unsuitable arguments. The test has no deadline unless you
    set one with `@hypothesis.settings`.

    **Arguments:**

    - `fn`: an annotated function.
    - `options`: `elements`, `max_shapes`, `min_size`, `dtypes`, and strategies for
        single arguments, as in `arguments`. (Keyword only.)

    **Returns:** a test without arguments.

    **Raises:** the test raises `jaxtyping.TypeCheckError` if the return value does not
    satisfy the annotation. A coroutine function raises
    `hypothesis.errors.InvalidArgument` at once.

    !!! example

        >>> import eqx_pipe.testing as ept, jax.numpy as jnp
        >>> from jaxtyping import Array, Float
        >>> def steps(x: Float[Array, " n"]) -> Float[Array, " n"]:
        ...     return jnp.diff(x)
        >>> test_steps = ept.given_typed(steps)
        >>> test_steps()
        Traceback (most recent call last):
            ...
        jaxtyping.TypeCheckError: Type-check error whilst checking the return value ...
    """
    if fn is None:
        return ft.partial(given_typed, **options)
    if inspect.iscoroutinefunction(fn):
        raise invalid(
            "given_typed",
            f"`{name_of(fn)}` is a coroutine, which a call does not run.",
            "Wrap it: `lambda x: asyncio.run(fn(x))`, in a function with annotations.",
        )
    function, owner = plain_function(fn)
    checked = jaxtyped(function, typechecker=_CHECKER)

    @hp.given(arguments=arguments(fn, **options))
    def test(arguments: dict[str, Any]) -> None:
        __tracebackhide__ = True
        checked(*owner, **arguments)

    # pytest uses these to name the test, and to show its source.
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        if hasattr(fn, name):
            setattr(test, name, getattr(fn, name))
    # Compilation may take longer than the default deadline. Users may still set one.
    settings = hp.settings(deadline=None)
    test._hypothesis_internal_use_settings = settings  # type: ignore
    return test
