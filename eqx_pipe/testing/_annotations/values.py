"""A value for any annotation: arrays, pytrees, containers, unions, modules."""

import collections.abc
import dataclasses
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any

import equinox as eqx
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from hypothesis.errors import InvalidArgument
from jaxtyping import PRNGKeyArray, PyTree

from .._strategies.arrays import keys
from .._strategies.validate import invalid
from .array import array_for, bare_array, is_array_annotation, scalar_of
from .binding import Binding

_STRUCTURES = (0, (0, 0), {"a": 0, "b": 0}, [(0,), {"c": 0}])
BARE = (jax.Array, np.ndarray, jax.ShapeDtypeStruct)
"""Types of arrays without a shape."""
_NUMBERS = (bool, int, float, complex, np.bool_, np.number, np.generic)


def value_for(annotation: Any, binding: Binding) -> Any:
    """Return a value that satisfies an annotation, with names bound as in `binding`."""
    if is_array_annotation(annotation):
        return array_for(annotation, binding)
    if annotation == PRNGKeyArray:
        return binding.draw(keys())
    if isinstance(annotation, type) and issubclass(annotation, PyTree):
        return _tree_for(annotation, binding)
    if annotation is None:
        return None
    if annotation is Any:
        return bare_array(jax.Array, binding)
    if annotation in (bool, int, float, complex):
        return binding.draw(scalar_of(annotation, binding))
    if annotation in BARE:
        return bare_array(annotation, binding)
    return _special(annotation, binding)


def _special(annotation: Any, binding: Binding) -> Any:
    """Return a value for one of Python's own forms of types."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return _one_of(args, binding)
    if origin is typing.Annotated:
        return value_for(args[0], binding)
    if origin is typing.Literal:
        return binding.choose(args)
    if Callable in (origin, annotation):
        return _function_for(args, binding)
    kind = origin or annotation
    if args and isinstance(kind, type) and issubclass(kind, collections.abc.Iterable):
        return _container_for(kind, args, binding)
    if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"):
        return _instance_of(typing.cast(type, kind), binding)
    return _from_type(annotation, binding)


def _instance_of(cls: type, binding: Binding) -> Any:
    """Return an instance of an annotated class; its constructor's defaults are kept."""
    if inspect.isabstract(cls) or getattr(cls, "__abstractvars__", ()):
        return _from_type(cls, binding)  # of a subclass
    hints = typing.get_type_hints(cls, include_extras=True)
    given = {}
    for name, parameter in inspect.signature(cls, eval_str=True).parameters.items():
        variadic = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        if parameter.default is not parameter.empty or variadic:
            continue
        hint = hints.get(name, parameter.annotation)
        if hint is parameter.empty:
            raise invalid(
                "from_jaxtyping",
                f"`{cls.__name__}` has an argument `{name}` without an annotation.",
                "Annotate it, or give the whole by a strategy of its own.",
            )
        given[name] = value_for(hint, binding)
    try:
        return cls(**given)
    except Exception as error:
        raise invalid(
            "from_jaxtyping",
            f"`{cls.__name__}` refuses the drawn values: {error}.",
            "Give the argument by a strategy of its own, as by `hypothesis.strategies."
            "builds`.",
        ) from error


def _from_type(annotation: Any, binding: Binding) -> Any:
    """Draw from the strategy that hypothesis knows of another type."""
    try:
        return binding.draw(st.from_type(annotation))
    # It calls constructors, which raise any error.
    except Exception as error:
        raise invalid(
            "from_jaxtyping",
            f"no value can be made for {annotation!r}: {error}",
            "Give it by a strategy of its own: `arguments(fn, name=strategy)`; or make "
            "the type known by `hypothesis.strategies.register_type_strategy`.",
        ) from error


def _one_of(members: tuple[Any, ...], binding: Binding) -> Any:
    """Return a value of a member of a union that can be made."""
    if jax.Array in members:  # `ArrayLike` and the like
        members = tuple(part for part in members if part not in _NUMBERS)
    # None is the simplest.
    ordered = sorted(members, key=lambda part: part is not type(None))
    chosen = binding.choose(range(len(ordered)))
    error: InvalidArgument | None = None
    for part in [*ordered[chosen:], *ordered[:chosen]]:
        try:
            return value_for(part, binding)
        except InvalidArgument as refused:
            error = error or refused
    assert error is not None
    raise error


def _container_for(kind: type, args: tuple[Any, ...], binding: Binding) -> Any:
    """Return a container of one or two values."""
    abc, new = collections.abc, typing.cast(Any, kind)
    count = 1 if kind is tuple and args[-1] is not ... else binding.choose((1, 2))
    if kind is tuple:
        parts = (args[0],) * count if args[-1] is ... else args
        return tuple(value_for(part, binding) for part in parts)
    if issubclass(kind, abc.Mapping):
        names = list("ab"[:count])
        if args[0] is not str:
            names = [value_for(args[0], binding) for _ in names]
        pairs = {name: value_for(args[1], binding) for name in names}
        return pairs if inspect.isabstract(kind) else new(pairs)
    parts = [value_for(args[0], binding) for _ in range(count)]
    if issubclass(kind, abc.Set) and inspect.isabstract(kind):
        return set(parts)
    return parts if inspect.isabstract(kind) else new(parts)


class _Constant:
    """A function that returns one value for all arguments."""

    def __init__(self, value: Any):
        self.value = value

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return self.value

    def __repr__(self) -> str:
        return f"lambda *_, **__: {self.value!r}"


def first_squashed(first: PyTree = None, *args: object, **kwargs: object) -> PyTree:
    """Return the first of any arguments, elementwise in its numbers."""

    def squashed(leaf: Any) -> Any:
        return jnp.tanh(leaf) if eqx.is_inexact_array_like(leaf) else leaf

    return jtu.tree_map(squashed, first)


def _function_for(args: tuple[Any, ...], binding: Binding) -> Callable[..., Any]:
    """Return an elementwise function if that satisfies `Callable[[...], ...]`."""
    takes, gives = args if len(args) == 2 else (..., Any)
    one = not isinstance(takes, list) or len(takes) == 1
    if one and (gives in (Any, jax.Array) or takes == [gives]):
        return jnp.tanh if isinstance(takes, list) else first_squashed
    return _Constant(value_for(gives, binding))


def _tree_for(annotation: Any, binding: Binding) -> Any:
    leaf = getattr(annotation, "leaftype", Any)
    text = getattr(annotation, "structure", None)
    shape = _skeleton(text, binding)
    places, structure = jtu.tree_flatten(shape)
    leaves = []
    outer = binding.leaf
    for i in range(len(places)):
        binding.leaf = (*outer, text, i) if text else outer
        leaves.append(value_for(leaf, binding))
    binding.leaf = outer
    return jtu.tree_unflatten(structure, leaves)


def _skeleton(text: str | None, binding: Binding) -> Any:
    """Return zeros with a structure such as `"T"`, `"S T"` or `"T ..."`."""
    # Trees without a name are alike, as arrays are.
    whole: Any = 0
    for name in (text or "PyTree").split():
        if name == "...":
            inner = [binding.choose(_STRUCTURES) for _ in jtu.tree_leaves(whole)]
            whole = jtu.tree_unflatten(jtu.tree_structure(whole), inner)
            continue
        if name not in binding.structures:
            binding.structures[name] = jtu.tree_structure(binding.choose(_STRUCTURES))
        structure = binding.structures[name]
        part = jtu.tree_unflatten(structure, [0] * structure.num_leaves)
        whole = jtu.tree_map(lambda _, part=part: part, whole)
    return whole
