"""Arguments that satisfy annotations, and property tests of annotated functions."""

import contextlib
import dataclasses
import functools as ft
import inspect
import types
import typing
from collections.abc import Callable, Collection
from typing import Any

import beartype
import hypothesis as hp
import hypothesis.strategies as st
import jax.tree_util as jtu
from hypothesis.errors import InvalidArgument
from jax.typing import DTypeLike
from jaxtyping import PyTree, jaxtyped

from ..._errors import describe_value, nearest
from .annotations import (
    BARE,
    SIZES,
    Binding,
    annotations_of,
    bind_dtype,
    is_array_annotation,
    value_for,
)
from .arrays import Draw, Elements, check_strategy, invalid

# By default beartype checks only one random item of a list.
_CHECKER = beartype.beartype(
    conf=beartype.BeartypeConf(strategy=beartype.BeartypeStrategy.On)
)


@st.composite
def from_jaxtyping(
    draw: Draw,
    annotation: object,
    *,
    elements: Elements = None,
    max_shapes: int | None = None,
    dtypes: Collection[DTypeLike] = (),
    sizes: Collection[int] = SIZES,
) -> Any:
    """Draw a value that satisfies an annotation.

    All of jaxtyping's syntax is supported: dtypes and groups of dtypes; axes that are
    fixed (`3`, `rows=3`), named (`n`), variadic (`*batch`, `...`), broadcastable
    (`#n`), anonymous (`_`), symbolic (`n+1`) and by tree path (`?n`); scalars (`""`);
    pytrees with named structures; keys; unions and containers. A dataclass or an
    Equinox module is constructed from drawn arguments, and its defaults are kept;
    `hypothesis.strategies.from_type` draws other types. A name stands for the same size
    everywhere in the annotation.

    **Arguments:**

    - `annotation`: a type annotation, such as `Float[Array, "n 3"]`.
    - `elements`: numbers of arrays, and Python floats, as in `arrays`. By default small
        numbers that every dtype represents exactly. (Keyword only.)
    - `max_shapes`: the largest number of combinations of shapes and dtypes, as each
        compiles again. By default unlimited. (Keyword only.)
    - `dtypes`: the dtypes to draw, if an annotation allows them. By default the common
        dtypes that it allows. (Keyword only.)
    - `sizes`: the sizes of axes that the annotation leaves free. (Keyword only.)

    **Returns:** a strategy. Annotations that allow the same dtypes get the same dtype.
    Examples shrink to zeros with axes of size one, or of the smallest allowed sizes.

    **Raises:** when drawn, `hypothesis.errors.InvalidArgument`, a `TypeError`, if no
    value satisfies the annotation, or an option is invalid.

    !!! example

        >>> import eqx_pipe.testing as ept, hypothesis
        >>> from jaxtyping import Array, Float
        >>> @hypothesis.given(ept.from_jaxtyping(Float[Array, "n n+1"]))
        ... def test_shape(matrix):
        ...     assert matrix.shape[1] == matrix.shape[0] + 1
        >>> test_shape()
    """
    binding = Binding(draw, "from_jaxtyping", elements, max_shapes, dtypes, sizes)
    binding.solve(_text_of(annotation))
    return value_for(annotation, binding)


@st.composite
def arguments(
    draw: Draw,
    fn: Callable[..., Any],
    *,
    elements: Elements = None,
    max_shapes: int | None = None,
    dtypes: Collection[DTypeLike] = (),
    sizes: Collection[int] = SIZES,
    **overrides: "st.SearchStrategy | types.EllipsisType",
) -> dict[str, Any]:
    """Draw arguments that satisfy a function's annotations, as a dict by name.

    Call the function with `fn(**arguments)`. A name stands for the same size, shape or
    structure in all arguments. An argument with a default value keeps it. All arrays
    with the bare annotation `Array` are float32 and have the same shape. `*args` and
    `**kwargs` stay empty.

    **Arguments:**

    - `fn`: a function, a method, or a callable module, whose annotated fields also bind
        names of axes.
    - `elements`, `max_shapes`, `dtypes`, `sizes`: as in `from_jaxtyping`. (Keyword
        only.)
    - `overrides`: strategies for single arguments, by name. The sizes of their values
        bind the names of axes. If `...` is given for an argument with a default value,
        it is drawn from its annotation. (Keyword only.)

    **Returns:** a strategy of dicts.

    **Raises:** when drawn, `hypothesis.errors.InvalidArgument`, a `TypeError`, if an
    override is not a strategy, or no value satisfies an annotation.

    !!! example

        >>> import eqx_pipe.testing as ept, hypothesis
        >>> from jaxtyping import Array, Float
        >>> def scale(x: Float[Array, "*batch n"], by: Float[Array, " n"]):
        ...     return x * by
        >>> @hypothesis.given(ept.arguments(scale))
        ... def test_scale(arguments):
        ...     assert scale(**arguments).shape == arguments["x"].shape
        >>> test_scale()
    """
    binding = Binding(draw, "arguments", elements, max_shapes, dtypes, sizes)
    hints = annotations_of(fn, overrides)
    given = {}
    for name, strategy in overrides.items():
        if name not in hints:
            wrong = f"`fn` has no argument `{name}`."
            raise invalid("arguments", wrong, nearest(name, hints))
        if strategy is not ...:
            check_strategy("arguments", name, strategy, optional=False)
            given[name] = draw(strategy)
    around: dict[str, Any] = dict(zip(("self",), _plain_function(fn)[1], strict=False))
    # Arguments whose axes depend on the values of other arguments come last.
    waiting = [name for name in hints if name not in given]
    waiting.sort(key=lambda name: "{" in _text_of(hints[name]))

    for owner in around.values():
        _bind_fields(binding, owner)
    for name, value in given.items():
        _bind(binding, hints[name], value, f"`{name}`")
    binding.solve(" ".join(_text_of(hints[name]) for name in waiting))
    for name in waiting:
        binding.values = {**around, **given}
        given[name] = value_for(hints[name], binding)
    return given


def given_typed(
    fn: Callable[..., Any] | None = None, **options: Any
) -> Callable[..., Any]:
    """Make a property test of an annotated function. Can be used as a decorator.

    The test calls `fn` with `arguments(fn)`; jaxtyping and beartype check that its
    return value satisfies the annotation, with names bound as in the arguments, and in
    the annotated fields of a module. An
    error that `fn` raises also fails the test, so `fn` may contain `assert`;
    `hypothesis.assume` skips unsuitable arguments. The test has no deadline unless you
    set one with `@hypothesis.settings`.

    **Arguments:**

    - `fn`: an annotated function.
    - `options`: `elements`, `max_shapes`, `dtypes`, `sizes`, and strategies for single
        arguments, as in `arguments`. (Keyword only.)

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
            f"`fn` is {describe_value(fn)}, a coroutine, which a call does not run.",
            "Wrap it: `lambda x: asyncio.run(fn(x))`, in a function with annotations.",
        )
    function, owner = _plain_function(fn)
    fields = _annotated_fields(*owner) if owner else {}
    checked = jaxtyped(_with_fields(function, fields), typechecker=_CHECKER)
    values = {"fields_": tuple(v for _, v in fields.values())} if fields else {}

    @hp.given(arguments=arguments(fn, **options))
    def test(arguments: dict[str, Any]) -> None:
        __tracebackhide__ = True
        checked(*owner, **arguments, **values)

    # pytest uses these to name the test, and to show its source.
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        if hasattr(fn, name):
            setattr(test, name, getattr(fn, name))
    # Compilation may take longer than the default deadline. Users may still set one.
    settings = hp.settings(deadline=None)
    test._hypothesis_internal_use_settings = settings  # type: ignore
    return test


def _plain_function(fn: Callable[..., Any]) -> tuple[Callable[..., Any], tuple]:
    """Return the function of a method or module, and the object that it is bound to."""
    method: Any = fn if hasattr(fn, "__self__") else getattr(fn, "__call__", None)  # noqa: B004
    # Not `types.MethodType`: Equinox's bound methods have another type.
    inner = getattr(method, "__func__", None)
    return (fn, ()) if inner is None else (inspect.unwrap(inner), (method.__self__,))


def _text_of(annotation: Any) -> str:
    """Return all shape strings of an annotation, joined."""
    own = getattr(annotation, "dim_str", "") or ""
    leaf = getattr(annotation, "leaftype", None)
    inner = [*typing.get_args(annotation), *([leaf] if leaf is not None else [])]
    parts = [own, *(_text_of(part) for part in inner if part is not annotation)]
    return " ".join(part for part in parts if part)


def _bind(binding: Binding, annotation: Any, value: PyTree, place: str) -> None:
    """Bind names to the sizes of a given value."""
    if is_array_annotation(annotation) and hasattr(value, "shape"):
        binding.match(annotation.dim_str, tuple(value.shape), place)
        bind_dtype(annotation, binding, value.dtype)
    elif isinstance(annotation, type) and issubclass(annotation, PyTree):
        name = getattr(annotation, "structure", None)
        if name and name.isidentifier():
            binding.structures[name] = jtu.tree_structure(value)
        for leaf in jtu.tree_leaves(value):
            _bind(binding, getattr(annotation, "leaftype", None), leaf, place)
    elif annotation in BARE and hasattr(value, "shape"):
        # All arrays without a shape have the shape of the first.
        binding.shapes.setdefault("Array", tuple(value.shape))


def _annotated_fields(module: Any) -> dict[str, tuple[Any, Any]]:
    """Return the annotation and value of each field of a module that is an array."""
    if not dataclasses.is_dataclass(module) or isinstance(module, type):
        return {}
    hints = typing.get_type_hints(type(module), include_extras=True)
    values = {
        field.name: (hints.get(field.name), getattr(module, field.name, None))
        for field in dataclasses.fields(module)
    }
    return {name: pair for name, pair in values.items() if is_array_annotation(pair[0])}


def _bind_fields(binding: Binding, module: Any) -> None:
    """Bind names to the sizes of a module's annotated fields.

    If two fields disagree, the first counts.
    """
    for name, (hint, value) in _annotated_fields(module).items():
        with contextlib.suppress(InvalidArgument):
            _bind(binding, hint, value, f"`self.{name}`")


def _with_fields(
    function: Callable[..., Any], fields: dict[str, tuple[Any, Any]]
) -> Callable[..., Any]:
    """Return a method that also takes fields, whose annotations are checked with it.

    jaxtyping binds names of axes in one call, and does not look into `self`.
    """
    if not fields:
        return function

    @ft.wraps(function)
    def method(*args: Any, fields_: tuple[Any, ...], **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    signature = inspect.signature(function, eval_str=True)
    hints = tuple(hint for hint, _ in fields.values())
    kind = inspect.Parameter.KEYWORD_ONLY
    extra = inspect.Parameter("fields_", kind, annotation=tuple[hints])
    parameters = sorted([*signature.parameters.values(), extra], key=lambda p: p.kind)
    method.__signature__ = signature.replace(parameters=parameters)  # type: ignore
    return method
