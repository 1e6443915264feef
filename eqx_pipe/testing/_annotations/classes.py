"""Instances of classes, made of values for what their constructors ask for."""

import dataclasses
import functools as ft
import inspect
import types
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any, Generic, TypeVar

import hypothesis.strategies as st
from hypothesis.errors import InvalidArgument

from .._strategies.validate import invalid
from .binding import Binding, Unmet
from .signature import hints_of_class, resolved

Make = Callable[[Any, Binding], Any]
"""`value_for`, which these functions and it call in turn."""

_MOST_TRIED = 6  # subclasses; making one may compile
_DEEPEST = 3  # where modules stand in modules


def instance_of(cls: type, args: tuple[Any, ...], binding: Binding, make: Make) -> Any:
    """An instance of a class, with `args` for the parameters of a generic one."""
    whole = cls[args] if args else cls  # type: ignore
    if cls in _known_types():
        return from_type(whole, binding)
    if is_record(cls):
        meanings = _meanings(cls, args)
        hints = hints_of_class(cls).items()
        given = {k: make(substituted(v, meanings), binding) for k, v in hints}
        return cls(**given)
    if is_abstract(cls):
        return _of_a_subclass(cls, binding, make)
    if not dataclasses.is_dataclass(cls):
        return from_type(whole, binding)
    return _built(cls, args, binding, make)


def is_record(cls: type) -> bool:
    """Whether a class is a named tuple or a typed dict: its annotations say all."""
    named = issubclass(cls, tuple) and hasattr(cls, "_fields")
    return named or typing.is_typeddict(cls)


def is_abstract(cls: type) -> bool:
    """Whether a class has methods, or fields of Equinox, that subclasses must give."""
    abstract = ("__abstractvars__", "__abstractclassvars__")
    return inspect.isabstract(cls) or any(getattr(cls, name, ()) for name in abstract)


def _built(cls: type, args: tuple[Any, ...], binding: Binding, make: Make) -> Any:
    """What the constructor of an annotated class gives; its defaults are kept."""
    meanings, given, outer = _meanings(cls, args), {}, binding.argument
    for name, hint in _asked(cls, binding.attempt).items():
        binding.argument = name
        given[name] = make(substituted(hint, meanings), binding)
    binding.argument = outer
    try:
        return cls(**given)
    # Whatever it raises, it may take other numbers.
    except Exception as error:
        kind = f"{type(error).__name__}: {error}".splitlines()[0]
        raise Unmet(f"`{cls.__name__}` refuses what was drawn for it: {kind}") from None


def _asked(cls: type, attempt: int) -> dict[str, Any]:
    """The arguments that a constructor is given, with their annotations.

    Those without a default; and where these were refused, as when one of several must
    be there, also the first that may be `None`, then the second, then both, and so on.
    """
    hints, asked, optional = hints_of_class(cls), {}, 0
    for name, parameter in inspect.signature(cls).parameters.items():
        hint = parameter.annotation
        if isinstance(hint, str):
            hint = hints.get(name, resolved(hint, cls))
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.default is parameter.empty:
            if hint is parameter.empty:
                raise invalid(
                    "from_jaxtyping",
                    f"`{cls.__name__}` has an argument `{name}` without an annotation.",
                    "Annotate it, or give the whole by a strategy of its own.",
                )
            asked[name] = hint
        elif parameter.default is None and hint is not parameter.empty:
            if attempt >> optional & 1:
                asked[name] = _but_none(hint)
            optional += 1
    return asked


def _meanings(cls: type, args: tuple[Any, ...]) -> dict[TypeVar, Any]:
    """What the type variables of a generic class, and of its bases, stand for."""
    variables: tuple[Any, ...] = getattr(cls, "__parameters__", ())
    meanings = dict(zip(variables, args, strict=False))
    for base in getattr(cls, "__orig_bases__", ()):
        origin = typing.get_origin(base)
        if isinstance(origin, type) and origin is not Generic:
            given = (substituted(part, meanings) for part in typing.get_args(base))
            meanings = {**_meanings(origin, tuple(given)), **meanings}
    return meanings


def _but_none(hint: Any) -> Any:
    """An annotation without the `None` that it allows."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint
    parts = [part for part in typing.get_args(hint) if part is not type(None)]
    return typing.Union[tuple(parts)]  # noqa: UP007


def substituted(hint: Any, meanings: Mapping[TypeVar, Any]) -> Any:
    """An annotation with type variables replaced, as those of a generic class are."""
    if isinstance(hint, TypeVar):
        return meanings.get(hint, hint)
    parameters = getattr(hint, "__parameters__", ())
    if meanings and parameters and typing.get_origin(hint) is not None:
        return hint[tuple(meanings.get(p, p) for p in parameters)]
    return hint


def _of_a_subclass(cls: type, binding: Binding, make: Make) -> Any:
    """An instance of one of the concrete subclasses that were imported."""
    found = _concrete(cls)
    if binding.depth >= _DEEPEST:
        raise Unmet(f"`{cls.__name__}` stands in itself without end")
    start = 0
    if binding.depth == 0 and found:
        start = binding.choose(range(min(len(found), _MOST_TRIED)))
    binding.depth += 1
    reasons, refused = [], None
    try:
        for candidate in [*found[start:], *found[:start]][:_MOST_TRIED]:
            try:
                return instance_of(candidate, (), binding, make)
            except Unmet as error:
                refused = refused or error
            except InvalidArgument as error:
                reasons.append(f"{candidate.__name__}: {error}")
    finally:
        binding.depth -= 1
    if refused is not None:
        raise refused
    why = "; ".join(reasons) or "it has none"
    raise invalid(
        "from_jaxtyping",
        f"`{cls.__name__}` is abstract, and no subclass of it could be made: {why}.",
        "Give it by a strategy of its own, or import a subclass whose constructor is "
        "annotated.",
    )


@ft.lru_cache(256)
def _simplicity(cls: type) -> tuple[int, int]:
    """How many arguments a constructor needs; and of these, without an annotation."""
    try:
        parameters = inspect.signature(cls).parameters.values()
    except (ValueError, TypeError):
        return (99, 99)
    needed = [p for p in parameters if p.default is p.empty]
    return (len(needed), sum(p.annotation is p.empty for p in needed))


def _concrete(cls: type) -> list[type]:
    """The public concrete subclasses, simplest first."""
    found: dict[type, None] = {}
    waiting = list(cls.__subclasses__())
    while waiting:
        sub = waiting.pop(0)
        waiting += sub.__subclasses__()
        if not is_abstract(sub) and not sub.__name__.startswith("_"):
            found[sub] = None
    return sorted(found, key=_simplicity)


def _known_types() -> Collection[type]:
    """The types with a strategy of their own, of the user's or of hypothesis."""
    # There is no public way to ask; `from_type` would also build what is not known.
    from hypothesis.strategies._internal import types

    return getattr(types, "_global_type_lookup", ())


def from_type(annotation: Any, binding: Binding) -> Any:
    """What hypothesis knows of other types."""
    try:
        return binding.draw(st.from_type(annotation))
    # It calls constructors, which raise what they like.
    except Exception as error:
        raise invalid(
            "from_jaxtyping",
            f"no value can be made for {annotation!r}: {error}",
            "Give it by a strategy of its own: `arguments(fn, name=strategy)`; or make "
            "the type known by `hypothesis.strategies.register_type_strategy`.",
        ) from error
