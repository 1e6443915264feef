"""A value for any annotation: arrays, pytrees, containers, unions, Python values."""

import collections
import collections.abc
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from hypothesis.errors import InvalidArgument
from jax.typing import DTypeLike
from jaxtyping import PRNGKeyArray, PyTree

from .._strategies.arrays import keys
from .._strategies.validate import invalid
from .array import array_for, bare_array, is_array_annotation, scalar_of
from .binding import Binding
from .classes import from_type, instance_of, is_record
from .signature import Unreadable, signature_of

_STRUCTURES = (0, (0, 0), {"a": 0, "b": 0}, [(0,), {"c": 0}])
BARE = (jax.Array, np.ndarray, jax.ShapeDtypeStruct)
"""Types of arrays that say nothing of a shape."""
_NUMBERS = (bool, int, float, complex, np.bool_, np.number, np.generic)


def value_for(annotation: Any, binding: Binding) -> Any:
    """A value that satisfies an annotation, with names bound as in `binding`."""
    if is_array_annotation(annotation):
        return array_for(annotation, binding)
    if annotation == PRNGKeyArray:
        return binding.draw(keys())
    if isinstance(annotation, type) and issubclass(annotation, PyTree):
        return _tree_for(annotation, binding)
    if annotation is None:
        return None
    if annotation is Any or annotation is inspect.Parameter.empty:
        return bare_array(jax.Array, binding)
    if annotation in (bool, int, float, complex):
        return binding.draw(scalar_of(annotation, binding))
    if annotation in BARE:
        return bare_array(annotation, binding)
    if annotation in (np.number, np.generic, np.bool_):
        kind = np.bool_ if annotation is np.bool_ else np.float32
        return kind(binding.draw(scalar_of(float, binding)))
    if annotation == DTypeLike:
        return jnp.float32
    return _special(annotation, binding)


def _special(annotation: Any, binding: Binding) -> Any:
    """A value for one of Python's own forms of types."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if isinstance(annotation, Unreadable | str | typing.ForwardRef):
        raise _unread(annotation)
    if origin in (typing.Union, types.UnionType):
        return _one_of(args, binding)
    if origin is typing.Annotated:
        return value_for(args[0], binding)
    if origin is typing.Literal:
        return binding.choose(args)
    if isinstance(annotation, typing.TypeVar):
        return value_for(_bound_of(annotation), binding)
    if hasattr(annotation, "__supertype__"):  # `NewType`
        return value_for(annotation.__supertype__, binding)
    if hasattr(annotation, "__value__"):  # `type X = ...`
        return value_for(annotation.__value__, binding)
    if origin is np.ndarray:  # `NDArray`
        return bare_array(np.ndarray, binding)
    if Callable in (origin, annotation) or annotation is typing.Callable:
        return _function_for(args, binding)
    kind = origin or annotation
    if isinstance(kind, type):
        iterable = issubclass(kind, collections.abc.Iterable)
        if args and iterable and not is_record(kind):
            return _container_for(kind, args, binding)
        if getattr(kind, "_is_protocol", False) and "__call__" in vars(kind):
            returned = signature_of(vars(kind)["__call__"]).return_annotation
            return _Constant(value_for(returned, binding))
        if _is_of(kind, "optax", "GradientTransformation"):
            return _optimiser(binding)
        return instance_of(kind, args, binding, value_for)
    return from_type(annotation, binding)


def _unread(annotation: Any) -> InvalidArgument:
    text = getattr(
        annotation, "text", getattr(annotation, "__forward_arg__", annotation)
    )
    why = f": {annotation.reason}" if isinstance(annotation, Unreadable) else ""
    return invalid(
        "from_jaxtyping",
        f"the annotation `{text}` cannot be read at run time{why}.",
        "Give the argument by a strategy of its own: `arguments(fn, name=strategy)`; "
        "or import the name outside of `if TYPE_CHECKING:`.",
    )


def _one_of(members: tuple[Any, ...], binding: Binding) -> Any:
    """A value of one member of a union; of those that can be made."""
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


def _bound_of(variable: typing.TypeVar) -> Any:
    if variable.__constraints__:
        return typing.Union[variable.__constraints__]  # noqa: UP007
    return Any if variable.__bound__ is None else variable.__bound__


# Containers.


def _few(binding: Binding) -> int:
    return binding.choose((1, 2))


def _container_for(kind: type, args: tuple[Any, ...], binding: Binding) -> Any:
    if kind is tuple:
        if len(args) == 2 and args[1] is Ellipsis:
            args = (args[0],) * _few(binding)
        return tuple(value_for(part, binding) for part in args)
    abc, new = collections.abc, typing.cast(Any, kind)
    if issubclass(kind, abc.Mapping) and len(args) == 2:
        names = "ab"[: _few(binding)]
        if args[0] is not str:
            names = [value_for(args[0], binding) for _ in names]
        pairs = {name: value_for(args[1], binding) for name in names}
        if issubclass(kind, collections.defaultdict):
            return new(None, pairs)
        return pairs if inspect.isabstract(kind) else new(pairs)
    parts = [value_for(args[0], binding) for _ in range(_few(binding))]
    if issubclass(kind, abc.Iterator):
        return (part for part in parts)  # which is a generator, too
    if issubclass(kind, abc.Set) and inspect.isabstract(kind):
        return set(parts)
    abstract = inspect.isabstract(kind) or getattr(kind, "_is_protocol", False)
    return parts if abstract else new(parts)


# Functions.


class _Constant:
    """A function that gives one value, whatever it is given."""

    def __init__(self, value: Any):
        self.value = value

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return self.value

    def __repr__(self) -> str:
        return f"lambda *_, **__: {self.value!r}"


def first_squashed(first: PyTree = None, *args: object, **kwargs: object) -> PyTree:
    """A function of any arguments, elementwise in the numbers of the first."""

    def squashed(leaf: Any) -> Any:
        return jnp.tanh(leaf) if eqx.is_inexact_array_like(leaf) else leaf

    return jtu.tree_map(squashed, first)


def _function_for(args: tuple[Any, ...], binding: Binding) -> Callable[..., Any]:
    """An elementwise function where that satisfies `Callable[[...], ...]`."""
    takes, gives = args if len(args) == 2 else (..., Any)
    says_nothing = gives in (Any, jax.Array) or isinstance(gives, typing.TypeVar)
    one = not isinstance(takes, list) or len(takes) == 1
    if one and (says_nothing or takes == [gives]):
        return jnp.tanh if isinstance(takes, list) else first_squashed
    return _Constant(value_for(gives, binding))


def _is_of(kind: type, package: str, name: str) -> bool:
    # Also a `GradientTransformationExtraArgs`.
    return kind.__module__.partition(".")[0] == package and kind.__name__.startswith(
        name
    )


def _optimiser(binding: Binding) -> Any:
    """One of optax; its class is a pair of functions, of which not any two will do."""
    import optax

    rates = (None, 0.0, 0.5)  # of momentum; `None` keeps no state
    return optax.sgd(0.125, binding.choose(rates))


# Pytrees.


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
    """A pytree of zeros with a structure such as `"T"`, `"S T"` or `"T ..."`."""
    # Trees of which nothing is said are alike, as arrays are.
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
