"""Functions that are compiled again and again for nothing but another number.

Python and NumPy numbers in a space or a closure are part of the program, since shapes
and branches may depend on them. Where nothing does, each value costs a compilation that
an array would not.
"""

import dataclasses
import functools as ft
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from ..._cache import LRUCache
from ..._captured import contents
from ..._errors import message
from ..._jaxprs import Fingerprint
from ..._spaces import Geometry, Space
from ..._tree import as_hashable, can_be_traced, join_path, leaves_with_names
from .call import fn_name

_PATIENCE = 3  # programs
_DEPTH = 8
_MOST = 1000  # things that are looked at
_SHOWN = 3

_programs, _warned = LRUCache(128), LRUCache(128)
_lock = threading.Lock()


def note_compilation(
    program: Fingerprint,
    fn: Callable[..., Any],
    space: Space,
    geometry: Geometry,
    plain: Sequence[int],
    layout: Any,
) -> None:
    """Notes that a program is compiled; warns if only its numbers are new once more.

    `plain` has a position for each dim, for the values of `Static` axes, each of which
    is rightly compiled by itself; `layout` is what else the compilation depends on.
    """
    pairs: Any = zip(geometry.axes.values(), geometry.axis_dims, strict=True)
    statics = [axis.value(plain[dim], None) for axis, dim in pairs if axis.is_static]
    if not all(map(_is_lasting, statics)):
        return  # an object that is gone may be taken for another one
    held = _Held()
    for name, leaf in leaves_with_names(space.tree):
        if not can_be_traced(leaf):
            held.look(leaf, name, "in the space")
    held.look(fn, "", "in the function")
    codes = tuple(held.codes)
    shape = (program.shape, hash(codes), hash(layout))
    with _lock:
        place = (*shape, *map(as_hashable, statics))
        programs: dict[int, Any] = _programs.setdefault(place, {})
        if len(programs) >= _PATIENCE:
            return
        programs[hash(program.key())] = held.numbers
        if len(programs) < _PATIENCE:
            return
        found = _differing(list(programs.values()))
        place = hash((codes, tuple(found)))  # whatever the static values and layout
        if _warned.get(place):
            return
        _warned.put(place, True)
    _warn(fn, found)


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
            f"`{fn_name(fn)}` is compiled for the third time for nothing but another "
            f"number: {where}.",
            "Python and NumPy numbers are part of the program, arrays are data: give "
            f"`jnp.asarray({value})` if no shape and no `if` depends on it. (Said "
            "once.)",
        ),
        UserWarning,
        stacklevel=2,
    )


def _differing(programs: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """The numbers that are not the same in all programs, with their values."""
    everywhere = [n for n in programs[0] if all(n in numbers for numbers in programs)]
    found = {name: [numbers[name] for numbers in programs] for name in everywhere}
    return {n: values for n, values in found.items() if len({*map(repr, values)}) > 1}


def _is_lasting(value: Any) -> bool:
    """Whether a static value tells itself apart, or is a function, which is small."""
    if isinstance(value, tuple):
        return all(map(_is_lasting, value))
    plain = isinstance(value, bool | int | float | complex | str | bytes)
    return value is None or plain or hasattr(value, "__name__")


@dataclasses.dataclass
class _Held:
    """The numbers that things hold, by name, and the code of functions among them."""

    numbers: dict[str, Any] = dataclasses.field(default_factory=dict)
    codes: list[Any] = dataclasses.field(default_factory=list)
    left: int = _MOST

    def look(self, x: Any, name: str, where: str, depth: int = 0) -> None:
        """Takes note of what a thing holds; not of all, if that is much."""
        self.left -= 1
        if self.left < 0 or depth > _DEPTH:
            return
        if _is_python_number(x):
            self.numbers[f"`{name}` {where}" if name else where] = x
            return
        if isinstance(x, types.FunctionType | types.MethodType):
            self.codes.append(x.__code__)
        for inner, value in _inside(x):
            dotted = join_path(name, inner) if inner else name
            self.look(value, dotted, where, depth + 1)
            if self.left < 0:
                return


def _inside(x: Any) -> Iterator[tuple[str, Any]]:
    """What is in a function, a container or an object, by name."""
    if isinstance(x, types.FunctionType | types.MethodType | ft.partial):
        for kind, name, value in contents(x, plain=True):
            if kind != "global" or _is_python_number(value):
                yield name if kind else "", value
    elif isinstance(x, tuple | list):
        yield from ((str(i), value) for i, value in enumerate(x))
    elif isinstance(x, dict):
        yield from ((str(name), value) for name, value in x.items())
    elif isinstance(x, types.ModuleType | type | np.ndarray | jax.Array):
        return
    elif hasattr(x, "__wrapped__"):
        yield "", x.__wrapped__
    else:
        yield from getattr(x, "__dict__", {}).items()


def _is_python_number(x: Any) -> bool:
    """Whether `x` is a number that JAX writes into a program."""
    if isinstance(x, np.ndarray):
        return x.ndim == 0 and x.dtype.kind in "biufc"
    return isinstance(x, int | float | complex | np.number)
