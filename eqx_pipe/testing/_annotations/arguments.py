"""Arguments that satisfy a function's annotations."""

import contextlib
import dataclasses
import functools as ft
import inspect
import types
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any

import hypothesis.strategies as st
import jax
import jax.tree_util as jtu
from hypothesis.errors import InvalidArgument
from jax.typing import DTypeLike
from jaxtyping import PyTree

from ..._errors import describe_value, nearest
from ..._tree import is_key_array
from .._strategies.arrays import Numbers
from .._strategies.validate import Draw, check_strategy, composite, invalid
from .array import bind_dtype, is_array_annotation
from .binding import Binding, Options, attempts, parse
from .signature import hints_of_class, signature_of, text_of
from .values import BARE, value_for


@composite
def from_jaxtyping(
    draw: Draw,
    annotation: object,
    *,
    elements: Numbers | None = None,
    max_shapes: int | None = None,
    min_size: int = 1,
    dtypes: Collection[DTypeLike] = (),
) -> Any:
    """A value that satisfies an annotation.

    All of jaxtyping's language is understood: dtypes and groups of them; axes that are
    fixed (`3`, `rows=3`), named (`n`), variadic (`*batch`, `...`), broadcastable
    (`#n`), anonymous (`_`), symbolic (`n+1`) and by tree path (`?n`); scalars (`""`);
    pytrees with names for their structures; keys. And unions, optionals, containers,
    functions, named tuples, Python values. Of a dataclass or an Equinox module what
    its constructor asks for is drawn, and its defaults are kept; of an abstract one a
    subclass. A name stands for one size throughout.

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
    options = Options(elements, {}, max_shapes, min_size, dtypes).checked(
        "from_jaxtyping"
    )

    def make(binding: Binding) -> Any:
        binding.solve(text_of(annotation))
        return value_for(annotation, binding)

    return attempts(draw, options, make)


@composite
def arguments(
    draw: Draw,
    fn: Callable[..., Any],
    *,
    elements: Numbers | None = None,
    shapes: Mapping[str, str] | None = None,
    max_shapes: int | None = None,
    min_size: int = 1,
    dtypes: Collection[DTypeLike] = (),
    **overrides: "st.SearchStrategy | types.EllipsisType",
) -> dict[str, Any]:
    """Arguments that satisfy a function's annotations, as a dict by their names.

    A name stands for the same size, shape or structure in all of them. An argument with
    a default value keeps it. Arrays whose annotation is `Array` alone are of float32
    and of one shape; one that is called `key` or `rng` is a key. Integers that are
    called a size or a count (`num_layers`) are positive.

    The dict is what `fn(**arguments)` takes, but for two kinds of arguments, which
    `given_typed` passes by position: those that take no name, and `*args`, which stands
    there as a tuple. `*args` and `**kwargs` are filled if they have an annotation other
    than `Any`.

    **Arguments:**

    - `fn`: a function, a method, or a callable module, whose annotated fields bind
        names of axes, too.
    - `elements`, `max_shapes`, `min_size`, `dtypes`: as in `from_jaxtyping`. (Keyword
        only.)
    - `shapes`: shape strings for arguments whose annotation has none, by their names;
      and under `"Array"` for all others that have none. (Keyword only.)
    - `overrides`: strategies for single arguments, by their names. Names of axes are
      bound to what these give. An argument with a default value is drawn from its
      annotation if `...` is given for it. (Keyword only.)

    **Returns:** a strategy of dicts.

    **Raises:** `hypothesis.errors.InvalidArgument`, a `TypeError`, if what is given for
    an argument is no strategy; when drawn, if nothing satisfies an annotation.

    !!! example

        >>> import eqx_pipe.testing as ept, hypothesis, jax
        >>> from jaxtyping import Array, Float
        >>> def scale(x: Float[Array, "*batch n"], by: jax.Array):
        ...     return x * by
        >>> @hypothesis.given(ept.arguments(scale, shapes={"by": "n"}))
        ... def test_scale(arguments):
        ...     assert scale(**arguments).shape == arguments["x"].shape
        >>> test_scale()
    """
    shapes = _checked_shapes(shapes)
    options = Options(elements, shapes, max_shapes, min_size, dtypes).checked(
        "arguments"
    )
    hints = _hints(fn, overrides, shapes)
    given = {}
    for name, strategy in overrides.items():
        if strategy is not ...:
            check_strategy("arguments", name, strategy, optional=False)
            given[name] = draw(strategy)
    self = owner_of(fn)
    around = {} if self is None else {"self": self}
    # Arguments that look at others' values come last.
    waiting = [name for name in hints if name not in given]
    waiting.sort(key=lambda name: "{" in text_of(hints[name][0]))

    def make(binding: Binding) -> dict[str, Any]:
        for name, (hint, value) in fields_of(self).items():
            with contextlib.suppress(InvalidArgument):
                _bind(binding, hint, value, f"`self.{name}`")
        for name, value in given.items():
            binding.argument = name
            _bind(binding, hints.get(name, (Any, None))[0], value, f"`{name}`")
        texts = [*shapes.values(), *(text_of(hints[name][0]) for name in waiting)]
        binding.solve(" ".join(texts))
        values = dict(given)
        for name in waiting:
            binding.values, binding.argument = {**around, **values}, name
            values.update(_filled(name, *hints[name], binding, hints))
        return values

    return attempts(draw, options, make, around)


def _filled(
    name: str, hint: Any, kind: Any, binding: Binding, taken: Mapping[str, Any]
) -> dict[str, Any]:
    """The value of one argument, or those of a variadic one."""
    if kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        return {name: value_for(hint, binding)}
    count = binding.choose((1, 2))
    if kind is inspect.Parameter.VAR_POSITIONAL:
        return {name: tuple(value_for(hint, binding) for _ in range(count))}
    names = [n for n in ("a", "b", "first", "second") if n not in taken][:count]
    return {n: value_for(hint, binding) for n in names}


def _checked_shapes(shapes: Any) -> dict[str, str]:
    pairs = dict(shapes) if isinstance(shapes, Mapping) else {}
    if shapes is not None and not isinstance(shapes, Mapping):
        wrong = f"`shapes` is {describe_value(shapes)}."
    else:
        bad = [k for k, v in pairs.items() if not isinstance(v, str)]
        if not bad:
            return pairs
        wrong = f"`shapes` has {describe_value(pairs[bad[0]])} for {bad[0]!r}."
    raise invalid(
        "arguments", wrong, 'Give a dict of shape strings: `shapes={"x": "*batch n"}`.'
    )


def _hints(
    fn: Callable[..., Any], overrides: Mapping[str, object], shapes: Mapping[str, str]
) -> dict[str, tuple[Any, Any]]:
    """The annotation of each argument that needs a value, and of which kind it is."""
    refused = ft.partial(invalid, "arguments")
    cure = "Give a function with annotations."
    if not callable(fn):
        raise refused(f"`fn` is {describe_value(fn)}, which cannot be called.", cure)
    try:
        parameters = signature_of(fn).parameters
    except (NameError, ValueError, TypeError) as error:
        wrong = f"the annotations of `fn` cannot be read: {error}."
        raise refused(wrong, cure) from error
    hints = {}
    for name, parameter in parameters.items():
        hint, kind = parameter.annotation, parameter.kind
        if kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            if name in overrides or hint not in (parameter.empty, Any):
                hints[name] = (hint, kind)
        elif (
            name in overrides or name in shapes or parameter.default is parameter.empty
        ):
            hints[name] = (_hint(name, hint, overrides, shapes), kind)
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for given in (overrides, {n: s for n, s in shapes.items() if n != "Array"}):
        for name in given:
            if name not in hints and not open_ended:
                wrong = f"`fn` has no argument `{name}`."
                raise refused(wrong, nearest(name, parameters))
    return hints


def _hint(
    name: str, hint: Any, overrides: Mapping[str, object], shapes: Mapping[str, str]
) -> Any:
    """The annotation of an argument that needs a value; raises if it has none."""
    if name in shapes:
        if hint is inspect.Parameter.empty:
            return jax.Array
        if text_of(hint) or not _is_bare(hint):
            raise invalid(
                "arguments",
                f"`shapes` has a shape for `{name}`, which is annotated as `{hint}`.",
                "Give shapes for arguments that are annotated as `Array` alone.",
            )
        return hint if hint in BARE else jax.Array
    elif hint is inspect.Parameter.empty and overrides.get(name, ...) is ...:
        raise invalid(
            "arguments",
            f"`{name}` of `fn` has no annotation.",
            f"Annotate it, or give it by a strategy: `arguments(fn, {name}=strategy)`; "
            f'if it is an array, by its shape: `shapes={{"{name}": "*batch n"}}`.',
        )
    return Any if hint is inspect.Parameter.empty else hint


def _is_bare(hint: Any) -> bool:
    """Whether an annotation asks for an array of any shape."""
    return hint in BARE or hint is Any or any(map(_is_bare, typing.get_args(hint)))


def owner_of(fn: Callable[..., Any]) -> Any:
    """What a method is bound to; a callable module itself; `None` for a function."""
    return getattr(fn, "__self__", None if inspect.isfunction(fn) else fn)


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
    elif annotation in BARE and hasattr(value, "shape") and not is_key_array(value):
        shape = binding.bare.get(binding.argument, binding.bare.get("Array"))
        if shape is not None:
            binding.match(parse(shape), tuple(value.shape), place)
        else:  # others of which nothing is said are like the first
            binding.shapes.setdefault("Array", tuple(value.shape))


def _nothing(strategy: st.SearchStrategy, label: object = None) -> Any:
    """Draws nothing: what an array has is only compared."""
    raise AssertionError("please report")


def fields_of(module: Any) -> dict[str, tuple[Any, Any]]:
    """The annotated fields of a module that go together: annotations and values.

    jaxtyping does not tie fields to each other or to arguments, so where two disagree
    nothing is wrong, and the first counts.
    """
    if not dataclasses.is_dataclass(module) or isinstance(module, type):
        return {}
    hints, found = hints_of_class(type(module)), {}
    binding = Binding(_nothing)
    for field in dataclasses.fields(module):
        value, hint = getattr(module, field.name, None), hints.get(field.name)
        known = binding.sizes.copy(), binding.shapes.copy()
        try:
            _bind(binding, hint, value, field.name)
        except InvalidArgument:
            binding.sizes, binding.shapes = known
        else:
            if text_of(hint):
                found[field.name] = (hint, value)
    return found
