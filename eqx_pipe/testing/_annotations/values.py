"""A value for any annotation: arrays, pytrees, containers, unions, Python values."""

import collections.abc
import dataclasses
import inspect
import types
import typing
from typing import Any

import hypothesis.strategies as st
import jax
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PRNGKeyArray, PyTree

from .._strategies.arrays import Numbers, arrays, keys
from .._strategies.spaces import meshes
from .._strategies.validate import invalid
from .array import Binding, array_for, is_array_annotation, scalar_of

_STRUCTURES = (0, (0, 0), {"a": 0, "b": 0}, [(0,), {"c": 0}])


def value_for(annotation: Any, binding: Binding, elements: Numbers | None) -> Any:
    """A value that satisfies an annotation, with names bound as in `binding`."""
    if is_array_annotation(annotation):
        return array_for(annotation, binding, elements)
    if annotation == PRNGKeyArray:
        return binding.draw(keys())
    if isinstance(annotation, type) and issubclass(annotation, PyTree):
        return _tree_for(annotation, binding, elements)
    if annotation is None:
        return None
    if annotation is Any or annotation is inspect.Parameter.empty:
        return binding.draw(arrays(elements=elements))
    if annotation in (bool, int, float, complex):
        return binding.draw(scalar_of(annotation, elements))
    if annotation in (jax.Array, np.ndarray):
        drawn = binding.draw(arrays(elements=elements))
        return drawn if annotation is jax.Array else np.asarray(drawn)
    if annotation in (np.number, np.generic, np.bool_):
        kind = np.bool_ if annotation is np.bool_ else np.float32
        return kind(binding.draw(scalar_of(float, elements)))
    if annotation is jax.sharding.Mesh:
        return binding.draw(meshes())
    return _special(annotation, binding, elements)


def _special(annotation: Any, binding: Binding, elements: Numbers | None) -> Any:
    """A value for one of Python's own forms of types."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)

    def inner(part: Any) -> Any:
        return value_for(part, binding, elements)

    if origin in (typing.Union, types.UnionType):
        # None is the simplest.
        ordered = sorted(args, key=lambda part: part is not type(None))
        return inner(binding.draw(st.sampled_from(ordered)))
    if origin is typing.Annotated:
        return inner(args[0])
    if origin is typing.Literal:
        return binding.draw(st.sampled_from(args))
    if isinstance(annotation, typing.TypeVar):
        return inner(_bound_of(annotation))
    if hasattr(annotation, "__supertype__"):  # `NewType`
        return inner(annotation.__supertype__)
    if hasattr(annotation, "__value__"):  # `type X = ...`
        return inner(annotation.__value__)
    if origin is tuple:
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(inner(args[0]) for _ in range(_few(binding)))
        return tuple(inner(part) for part in args if part != ())
    kind = origin or annotation
    if isinstance(kind, type) and args:
        if issubclass(kind, collections.abc.Mapping):
            if args[0] is str:
                return {name: inner(args[1]) for name in "ab"[: _few(binding)]}
            return {inner(args[0]): inner(args[1]) for _ in range(_few(binding))}
        if issubclass(kind, collections.abc.Iterable):
            parts = [inner(args[0]) for _ in range(_few(binding))]
            return kind(parts) if issubclass(kind, set | frozenset) else parts
    if isinstance(annotation, type):
        return _of_class(annotation, binding, elements)
    return _from_type(annotation, binding)


def _few(binding: Binding) -> int:
    return binding.draw(st.integers(1, 2))


def _bound_of(variable: typing.TypeVar) -> Any:
    if variable.__constraints__:
        return typing.Union[variable.__constraints__]  # noqa: UP007
    return Any if variable.__bound__ is None else variable.__bound__


def _of_class(cls: type, binding: Binding, elements: Numbers | None) -> Any:
    """An instance of a class whose fields, or whose `__init__`, are annotated."""
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        hints = typing.get_type_hints(cls, include_extras=True)
        fields = cls._fields  # type: ignore
        given = [value_for(hints[name], binding, elements) for name in fields]
        return cls(*given)
    if typing.is_typeddict(cls):
        hints = typing.get_type_hints(cls, include_extras=False)
        return {k: value_for(v, binding, elements) for k, v in hints.items()}
    if not dataclasses.is_dataclass(cls) or inspect.isabstract(cls):
        return _from_type(cls, binding)
    given = {}
    hints = typing.get_type_hints(cls, include_extras=True)
    for name, parameter in inspect.signature(cls).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        hint = parameter.annotation
        hint = hints.get(name, hint) if isinstance(hint, str) else hint
        optional = parameter.default is not parameter.empty
        if hint is parameter.empty or (optional and not _has_arrays(hint)):
            if optional:
                continue
            raise invalid(
                "from_jaxtyping",
                f"`{cls.__name__}` has an argument `{name}` without an annotation.",
                "Annotate it, or give the whole by a strategy of its own.",
            )
        given[name] = value_for(hint, binding, elements)
    return cls(**given)


def _has_arrays(annotation: Any) -> bool:
    """Whether an annotation says something about arrays."""
    if is_array_annotation(annotation):
        return True
    return any(_has_arrays(part) for part in typing.get_args(annotation))


def _from_type(annotation: Any, binding: Binding) -> Any:
    try:
        return binding.draw(st.from_type(annotation))
    except Exception as error:
        raise invalid(
            "from_jaxtyping",
            f"no value can be made for {annotation!r}: {error}",
            "Give it by a strategy of its own: `arguments(fn, name=strategy)`; or make "
            "the type known by `hypothesis.strategies.register_type_strategy`.",
        ) from error


# Pytrees.


def _tree_for(annotation: Any, binding: Binding, elements: Numbers | None) -> Any:
    leaf = getattr(annotation, "leaftype", Any)
    text = getattr(annotation, "structure", None)
    shape = _skeleton(text, binding)
    places, structure = jtu.tree_flatten(shape)
    leaves = []
    outer = binding.leaf
    for i in range(len(places)):
        binding.leaf = (*outer, text, i) if text else outer
        leaves.append(value_for(leaf, binding, elements))
    binding.leaf = outer
    return jtu.tree_unflatten(structure, leaves)


def _skeleton(text: str | None, binding: Binding) -> Any:
    """A pytree of zeros with a structure such as `"T"`, `"S T"` or `"T ..."`."""
    drawn = st.sampled_from(_STRUCTURES)
    whole: Any = 0
    for name in (text or "...").split():
        if name == "...":
            inner = [binding.draw(drawn) for _ in jtu.tree_leaves(whole)]
            whole = jtu.tree_unflatten(jtu.tree_structure(whole), inner)
            continue
        if name not in binding.structures:
            binding.structures[name] = jtu.tree_structure(binding.draw(drawn))
        structure = binding.structures[name]
        part = jtu.tree_unflatten(structure, [0] * structure.num_leaves)
        whole = jtu.tree_map(lambda _, part=part: part, whole)
    return whole
