"""The settings of a search or a training as texts, by which a store recognises them."""

import functools as ft
import re
import types
from collections.abc import Mapping
from typing import Any

import equinox as eqx

from .._captured import JITTED, contents
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

    A function counts by its code, constants, defaults, globals and the values that it
    closes over; another callable by its fields.
    """
    if not isinstance(fn, _FUNCTIONS):
        return _text(fn)
    return f"{getattr(fn, '__qualname__', 'partial')} #{digest(_function(fn, ()))[:8]}"


_FUNCTIONS = (types.FunctionType, types.MethodType, ft.partial, JITTED)


def _function(fn: Any, outer: tuple[Any, ...]) -> str:
    outer = *outer, fn
    texts = [_code(fn.__code__)] if isinstance(fn, types.FunctionType) else []
    for _, name, value in contents(fn, plain=True):
        if isinstance(value, types.ModuleType):
            value = value.__name__
        elif isinstance(value, _FUNCTIONS):
            again = any(value is each for each in outer)
            value = name if again else _function(value, outer)
        texts.append(f"{name}={text_of(value)}")
    return "\n".join(texts)


def _code(code: types.CodeType) -> str:
    consts = map(_constant, code.co_consts)
    return f"{code.co_code.hex()} {code.co_names} {[*consts]}"


def _constant(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return _code(value)
    # The order of a set of texts differs from process to process.
    return repr(sorted(map(repr, value)) if isinstance(value, frozenset) else value)
