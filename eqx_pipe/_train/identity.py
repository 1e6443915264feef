"""The settings of a search or a training as texts, by which a store recognises them."""

import re
import types
from collections.abc import Mapping
from typing import Any

import equinox as eqx

from .._captured import cells, defaults
from .._jaxprs import digest, text_of
from .._tree import as_data

_LONG = 100
"""The maximum length of a setting in a message."""


def as_texts(settings: Mapping[str, object]) -> dict[str, str]:
    """Return the settings of a search as texts, by which its store recognises it.

    A text is the same in every process. Functions count by name, and objects of unknown
    classes by their class.
    """
    return {name: _text(value) for name, value in settings.items()}


def _text(value: Any) -> str:
    if value is None or isinstance(value, str | int):
        return str(value)
    value = as_data(value)
    shown = str(value.tolist()) if eqx.is_array(value) else repr(value)
    shown = " ".join(re.sub(r" at 0x\w+", "", shown).split())
    cut = "..." if len(shown) > _LONG else ""
    return f"{shown[:_LONG]}{cut} #{digest(text_of(value))[:8]}"


def code_text(fn: Any) -> str:
    """Return a callable as text: its name, and a digest of all that it computes with.

    A function counts by its code, constants, defaults and the values that it closes
    over; another callable by its fields.
    """
    if not isinstance(fn, types.FunctionType):
        return _text(fn)
    return f"{fn.__qualname__} #{digest(_function(fn, ()))[:8]}"


def _function(fn: types.FunctionType, outer: tuple[Any, ...]) -> str:
    held = {**cells(fn), **defaults(fn)}
    # A threshold is as often a constant of the module as one of a closure.
    known = fn.__globals__
    held |= {name: known[name] for name in fn.__code__.co_names if name in known}
    texts = [_code(fn.__code__)]
    for name, value in held.items():
        if isinstance(value, types.ModuleType):
            value = value.__name__
        elif isinstance(value, types.FunctionType):
            again = value is fn or value in outer
            value = value.__qualname__ if again else _function(value, (*outer, fn))
        texts.append(f"{name}={text_of(value)}")
    return "\n".join(texts)


def _code(code: types.CodeType) -> str:
    consts = [_code(x) if isinstance(x, types.CodeType) else x for x in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {consts}"
