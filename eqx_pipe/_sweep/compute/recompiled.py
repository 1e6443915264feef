"""A warning about functions that are recompiled only because a number has changed.

Python and NumPy numbers in a space or a closure are part of the program, since shapes
and branches may depend on them. If nothing does, each value costs a compilation that an
array would avoid.
"""

import sys
import threading
import warnings
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np

from ..._cache import LRUCache
from ..._captured import contents
from ..._errors import message
from ..._tree import can_be_traced, leaves_with_names
from ..options import fn_name
from .trace import Traced

_PATIENCE = 3  # programs
_SHOWN = 3

_programs, _warned = LRUCache(128), LRUCache(128)
_lock = threading.Lock()


def note_compilation(traced: Traced, layout: Any) -> None:
    """Record a compilation; warn once if only numbers have changed repeatedly.

    `layout` has the other inputs of the compilation. Each value of a `Static` axis
    needs its own compilation and does not count.
    """
    fn, space, geometry, _ = traced.source
    if geometry.static_dims:
        return
    held = list(contents(fn, plain=True))
    leaves = leaves_with_names(space.tree)
    numbers = {f"`{name}` in the function": x for how, name, x in held if how}
    numbers |= {f"`{n}` in the space": x for n, x in leaves if not can_be_traced(x)}
    numbers = {name: x for name, x in numbers.items() if _is_number(x)}
    codes = _code(fn), *(_code(x) for *_, x in held if isinstance(x, FunctionType))
    # Use hashes, so that objects of a program can be collected.
    place = hash(traced.program.shape), codes, hash(layout)
    with _lock:
        programs = _programs.setdefault(place, {})
        if len(programs) >= _PATIENCE:
            return
        programs[hash(traced.program.key())] = numbers
        found = _differing(list(programs.values()))
        known = codes, tuple(found)  # for any layout
        if len(programs) < _PATIENCE or _warned.get(known):
            return
        _warned.put(known, True)
    _warn(fn, found)


def _code(fn: Any) -> Any:
    return getattr(fn, "__code__", type(fn))


def _warn(fn: Callable[..., Any], found: dict[str, list[Any]]) -> None:
    lines = [
        f"{name} ({', '.join(map(str, values))})"
        for name, values in list(found.items())[:_SHOWN]
    ]
    more = [f"{len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    where = "; ".join(lines + more) or "somewhere in the function or the space"
    value = next(iter(found.values()), [2.0])[-1]
    warnings.warn(
        message(
            "sweep",
            f"`{fn_name(fn)}` compiles for the third time, only because a Python "
            f"number changed: {where}.",
            "Python and NumPy numbers are part of the program, arrays are data: give "
            f"`jnp.asarray({value})` if no shape and no `if` depends on it. (This "
            "warning appears once.)",
        ),
        UserWarning,
        stacklevel=_users_level(),
    )


def _users_level() -> int:
    """Return the `stacklevel` for `_warn` of the first frame outside this package."""
    package, level = __name__.partition(".")[0], 0
    frame = sys._getframe(1)
    while frame is not None:
        level += 1
        if frame.f_globals.get("__name__", "").partition(".")[0] != package:
            return level
        frame = frame.f_back
    return level


def _differing(programs: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return the numbers that differ between programs, with their values."""
    names = set.intersection(*map(set, programs))
    found = {n: [numbers[n] for numbers in programs] for n in programs[0] if n in names}
    return {n: values for n, values in found.items() if len({*map(repr, values)}) > 1}


def _is_number(x: Any) -> bool:
    """Return whether `x` is a number that JAX writes into a program."""
    if isinstance(x, np.ndarray):
        return x.ndim == 0 and x.dtype.kind in "biufc"
    return isinstance(x, int | float | complex | np.number)
