"""What the annotations of functions and classes say, also where some cannot be read."""

import ast
import contextlib
import dataclasses
import functools as ft
import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Unreadable:
    """An annotation that is text, and names what its module has not at run time."""

    text: str
    reason: str


def signature_of(fn: Callable[..., Any]) -> inspect.Signature:
    """A signature whose annotations are no texts; some may be `Unreadable`."""
    try:
        return inspect.signature(fn, eval_str=True)
    except (NameError, AttributeError, SyntaxError, TypeError):
        plain = inspect.signature(fn)
    inner: Any = inspect.unwrap(getattr(fn, "__func__", fn))
    read = ft.partial(resolved, place=inner)
    parameters = [
        p.replace(annotation=read(p.annotation)) for p in plain.parameters.values()
    ]
    returned = read(plain.return_annotation)
    return plain.replace(parameters=parameters, return_annotation=returned)


def resolved(annotation: Any, place: Any) -> Any:
    """An annotation written as text, as its module would read it."""
    if not isinstance(annotation, str):
        return annotation
    if not hasattr(place, "__module__"):
        place = type(place)
    names = dict(vars(sys.modules.get(place.__module__, typing)))
    names |= getattr(place, "__globals__", {})
    try:
        return eval(annotation, names)
    except NameError as error:
        with contextlib.suppress(Exception):
            return eval(annotation, {**_for_checkers(place.__module__), **names})
        reason = error
    except Exception as error:
        reason = error
    return Unreadable(annotation, f"{type(reason).__name__}: {reason}")


@ft.lru_cache(64)
def _for_checkers(module: str) -> dict[str, Any]:
    """What a module imports for type checkers alone.

    That is to import nothing in a circle; by now all modules are there.
    """
    found: dict[str, Any] = {"__name__": module, "__package__": module}
    try:
        source = inspect.getsource(sys.modules[module])
        found["__package__"] = sys.modules[module].__package__
        body = ast.parse(source).body
    except (OSError, TypeError, KeyError, SyntaxError):
        return {}
    for block in body:
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test):
            for line in block.body:
                if isinstance(line, ast.Import | ast.ImportFrom):
                    with contextlib.suppress(Exception):
                        exec(ast.unparse(line), found)
    return found


def hints_of_class(cls: type) -> dict[str, Any]:
    """The annotations of a class's fields, those of its bases first."""
    try:
        return typing.get_type_hints(cls, include_extras=True)
    except Exception:
        # It reads all or none: one by one, those that can be read are kept.
        hints = {}
        for base in reversed(cls.__mro__):
            for name, annotation in inspect.get_annotations(base).items():
                hints[name] = resolved(annotation, base)
        return hints


def is_uncheckable(annotation: Any) -> bool:
    """Whether an annotation, or a part, is no more than text, or a static protocol."""
    if isinstance(annotation, Unreadable | str | typing.ForwardRef):
        return True
    if getattr(annotation, "_is_protocol", False):
        return not getattr(annotation, "_is_runtime_protocol", False)
    if typing.get_origin(annotation) is typing.Literal:
        return False
    return any(map(is_uncheckable, typing.get_args(annotation)))


def text_of(annotation: Any) -> str:
    """All shape strings of an annotation, one behind another."""
    own = getattr(annotation, "dim_str", "") or ""
    leaf = getattr(annotation, "leaftype", None)
    inner = [*typing.get_args(annotation), *([leaf] if leaf is not None else [])]
    parts = [own, *(text_of(part) for part in inner if part is not annotation)]
    return " ".join(part for part in parts if part)


def name_of(fn: Callable[..., Any]) -> str:
    """The name of a function, or of the class of a callable object."""
    return getattr(fn, "__name__", type(fn).__name__)


def split(
    fn: Callable[..., Any], arguments: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Arguments by name as those by position, where it must be so, and the others."""
    parameters = signature_of(fn).parameters.values()
    variadic = [p for p in parameters if p.kind is p.VAR_POSITIONAL]
    by_place = bool(variadic and arguments.get(variadic[0].name))
    chooses = hasattr(fn, "dispatch") and hasattr(fn, "registry")  # `singledispatch`
    first, rest = [], dict(arguments)
    for i, p in enumerate(parameters):
        if p.kind is p.VAR_POSITIONAL:
            first += rest.pop(p.name, ())
        elif p.kind is p.POSITIONAL_ONLY or (
            (by_place or chooses and i == 0) and p.kind is p.POSITIONAL_OR_KEYWORD
        ):
            if p.name in rest or p.default is not p.empty:
                first.append(rest.pop(p.name, p.default))
    return first, rest
