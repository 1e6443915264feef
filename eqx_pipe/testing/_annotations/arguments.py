"""Arguments that satisfy a function's annotations, and tests made of them."""

import contextlib
import dataclasses
import functools as ft
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

import beartype
import hypothesis as hp
import hypothesis.strategies as st
import jax.tree_util as jtu
from hypothesis.errors import InvalidArgument
from jaxtyping import PyTree, TypeCheckError, jaxtyped

from ..._errors import describe_value, nearest
from ..._tree import tree_text
from .._strategies.arrays import Numbers
from .._strategies.validate import Draw, check_strategy, composite, invalid
from .array import Binding, attempts, bind_dtype, is_array_annotation, parse
from .values import value_for


@composite
def from_jaxtyping(
    draw: Draw, annotation: object, *, elements: Numbers | None = None
) -> Any:
    """A value that satisfies an annotation.

    All of jaxtyping's language is understood: dtypes and groups of them; axes that are
    fixed (`3`, `rows=3`), named (`n`), variadic (`*batch`, `...`), broadcastable
    (`#n`), anonymous (`_`), symbolic (`n+1`) and by tree path (`?n`); scalars (`""`);
    pytrees with names for their structures; keys. And unions, optionals, containers,
    named tuples, dataclasses and Equinox modules with annotated fields, Python values.
    A name stands for one size throughout.

    **Arguments:**

    - `annotation`: what one writes behind a colon, such as `Float[Array, "n 3"]`.
    - `elements`: a strategy for single numbers of arrays, and for Python floats. By
      default small numbers that every dtype holds exactly. (Keyword only.)

    **Returns:** a strategy. Annotations that allow the same dtypes get the same one. It
    shrinks to zeros of size one, or of the sizes that are asked for.

    **Raises:** when drawn, an error that says why, if nothing satisfies the annotation.

    !!! example

        >>> import eqx_pipe.testing as ept, hypothesis
        >>> from jaxtyping import Array, Float
        >>> @hypothesis.given(ept.from_jaxtyping(Float[Array, "n n+1"]))
        ... def test_shape(matrix):
        ...     assert matrix.shape[1] == matrix.shape[0] + 1
        >>> test_shape()
    """
    check_strategy("from_jaxtyping", "elements", elements)
    return attempts(draw, {}, lambda b: value_for(annotation, b, elements))


@composite
def arguments(
    draw: Draw,
    fn: Callable[..., Any],
    *,
    elements: Numbers | None = None,
    **overrides: st.SearchStrategy,
) -> dict[str, Any]:
    """Keyword arguments that satisfy a function's annotations, as a dict.

    A name stands for the same size, shape or structure in all of them. An argument with
    a default value and no annotation is left out.

    **Arguments:**

    - `fn`: a function, a method, or a callable module, whose annotated fields bind
        names of axes, too.
    - `elements`: as in `from_jaxtyping`. (Keyword only.)
    - `overrides`: strategies for single arguments, by their names. Names of axes are
      bound to what these give. (Keyword only.)

    **Returns:** a strategy of dicts.

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
    check_strategy("arguments", "elements", elements)
    hints = _hints(fn, overrides)
    for name, strategy in overrides.items():
        check_strategy("arguments", name, strategy, optional=False)
    given = {name: draw(strategy) for name, strategy in overrides.items()}
    self = getattr(fn, "__self__", None if inspect.isfunction(fn) else fn)
    around = {} if self is None else {"self": self}

    def make(binding: Binding) -> dict[str, Any]:
        _bind_fields(binding, self)
        for name, value in given.items():
            _bind(binding, hints.get(name), value, f"`{name}`")
        values = dict(given)
        # Arguments that look at others' values come last.
        waiting = [name for name in hints if name not in given]
        for name in sorted(waiting, key=lambda name: "{" in _text(hints[name])):
            binding.values = {**around, **values}
            values[name] = value_for(hints[name], binding, elements)
        return values

    return attempts(draw, around, make)


def _hints(fn: Callable[..., Any], overrides: Mapping[str, object]) -> dict[str, Any]:
    """The annotation of each argument that needs a value."""
    refused = ft.partial(invalid, "arguments")
    cure = "Give a function with annotations."
    if not callable(fn):
        raise refused(f"`fn` is {describe_value(fn)}, which cannot be called.", cure)
    try:
        parameters = inspect.signature(fn, eval_str=True).parameters
    except (NameError, ValueError, TypeError) as error:
        wrong = f"the annotations of `fn` cannot be read: {error}."
        raise refused(wrong, cure) from error
    hints = {}
    for name, parameter in parameters.items():
        if parameter.kind is parameter.POSITIONAL_ONLY:
            wrong = f"`{name}` of `fn` can only be given by position."
            raise refused(wrong, "Wrap it in a function that takes it by name.")
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.annotation is not parameter.empty:
            hints[name] = parameter.annotation
        elif name in overrides:
            hints[name] = Any
        elif parameter.default is parameter.empty:
            raise refused(
                f"`{name}` of `fn` has no annotation.",
                f"Annotate it, or give it by a strategy: `arguments(fn, "
                f"{name}=strategy)`.",
            )
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        for name in overrides:
            if name not in hints:
                wrong = f"`fn` has no argument `{name}`."
                raise refused(wrong, nearest(name, hints))
    return hints


def _text(annotation: Any) -> str:
    """All shape strings of an annotation, one behind another."""
    own = getattr(annotation, "dim_str", "") or ""
    leaf = getattr(annotation, "leaftype", None)
    inner = [*typing.get_args(annotation), *([leaf] if leaf is not None else [])]
    return own + "".join(_text(part) for part in inner if part is not annotation)


def _bind(binding: Binding, annotation: Any, value: PyTree, place: str) -> None:
    """Binds names to what a given value has."""
    if is_array_annotation(annotation) and hasattr(value, "shape"):
        binding.match(parse(annotation.dim_str), tuple(value.shape), place)
        bind_dtype(annotation, binding, value.dtype)
    elif isinstance(annotation, type) and issubclass(annotation, PyTree):
        name = getattr(annotation, "structure", None)
        if name and name.isidentifier():
            binding.structures[name] = jtu.tree_structure(value)
        for leaf in jtu.tree_leaves(value):
            _bind(binding, getattr(annotation, "leaftype", None), leaf, place)


def _bind_fields(binding: Binding, module: Any) -> None:
    """Binds names of axes to what the annotated fields of a module have.

    jaxtyping does not tie fields to arguments, so where they disagree nothing is wrong.
    """
    if not dataclasses.is_dataclass(module):
        return
    hints = typing.get_type_hints(type(module), include_extras=True)
    for field in dataclasses.fields(module):
        with contextlib.suppress(InvalidArgument):
            value = getattr(module, field.name, None)
            _bind(binding, hints.get(field.name), value, f"`self.{field.name}`")


@typing.overload
def given_typed(
    fn: Callable[..., Any],
    *,
    elements: Numbers | None = None,
    **overrides: st.SearchStrategy,
) -> Callable[[], None]: ...
@typing.overload
def given_typed(
    fn: None = None, *, elements: Numbers | None = None, **overrides: st.SearchStrategy
) -> Callable[[Callable[..., Any]], Callable[[], None]]: ...
def given_typed(
    fn: Callable[..., Any] | None = None,
    *,
    elements: Numbers | None = None,
    **overrides: st.SearchStrategy,
) -> Callable[..., Any]:
    """Makes an annotated function a property test: a decorator.

    The test calls `fn` with `arguments(fn)` and checks that what it returns satisfies
    its return annotation, with names bound as in the arguments. What `fn` raises fails
    the test, too; so a body with `assert` is a test of what it asserts.

    **Arguments:**

    - `fn`: an annotated function.
    - `elements`, `overrides`: as in `arguments`. (Keyword only.)

    **Returns:** a test without arguments.

    **Raises:** the test raises an `AssertionError` if the returned value does not
    satisfy the annotation.

    !!! example

        >>> import eqx_pipe.testing as ept, jax.numpy as jnp
        >>> from jaxtyping import Array, Float
        >>> def outer(a: Float[Array, " m"], b: Float[Array, " n"]) -> Float[
        ...     Array, "n m"
        ... ]:
        ...     return a[:, None] * b
        >>> test_outer = ept.given_typed(outer)
        >>> test_outer()
        Traceback (most recent call last):
            ...
        AssertionError: `eqx_pipe.testing.given_typed`: `outer` returned ...
    """
    if fn is None:
        return ft.partial(given_typed, elements=elements, **overrides)
    checked = _checking(fn)

    @hp.given(arguments(fn, elements=elements, **overrides))
    def test(arguments: dict[str, Any]) -> None:
        __tracebackhide__ = True
        checked(arguments)

    test.__name__ = test.__qualname__ = _name(fn)  # type: ignore
    test.__doc__ = fn.__doc__
    test.__module__ = getattr(fn, "__module__", test.__module__)
    return test


def _checking(fn: Callable[..., Any]) -> Callable[[dict[str, Any]], None]:
    """`fn` on a dict of arguments, with a check of what it returns."""
    signature = inspect.signature(fn, eval_str=True)
    returned = signature.return_annotation
    hints = {k: p.annotation for k, p in signature.parameters.items()}

    def run(arguments: dict[str, Any]) -> None:
        __tracebackhide__ = True
        value = fn(**arguments)
        if returned is signature.empty:
            return
        known = {k: arguments[k] for k in hints if k in arguments}
        # Not raised where it is caught: to hypothesis another context is another error.
        fits = True
        try:
            _check_together(returned, value, hints, known)
        except TypeCheckError:
            fits = False
        if not fits:
            given = ", ".join(f"`{k}` {tree_text(v)}" for k, v in known.items())
            wanted = getattr(returned, "__name__", returned)
            raise AssertionError(
                f"`eqx_pipe.testing.given_typed`: `{_name(fn)}` returned "
                f"{tree_text(value)} for {given}; its annotation is `{wanted}`. Mend "
                "the function or the annotation."
            )

    return run


def _name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__name__", type(fn).__name__)


def _check_together(returned: Any, value: Any, hints: dict, known: dict) -> None:
    """Raises jaxtyping's error unless a value goes together with the arguments.

    jaxtyping checks a function, so one is made that has the annotations. The value
    comes in from outside, so that an error of the user's function itself stays plain.
    """
    typed = {n: v for n, v in known.items() if hints[n] is not inspect.Parameter.empty}
    scope: dict[str, Any] = {"returned_": value}  # no argument has this name
    exec(f"def fn({', '.join(typed)}):\n    return returned_\n", scope)
    fn = scope["fn"]
    fn.__annotations__ = {**{n: hints[n] for n in typed}, "return": returned}
    conf = beartype.BeartypeConf(strategy=beartype.BeartypeStrategy.On)
    jaxtyped(fn, typechecker=beartype.beartype(conf=conf))(**typed)
