"""Small arrays that a function closes over, compiled into its program.

XLA folds a literal, shares equal gathers of it and simplifies comparisons with it. It
cannot do so with an argument. But a program with other literals is another program: if
the arrays of a function change from one call to the next, they are arguments from then
on.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import numpy as np

from .._cache import LRUCache
from .fingerprint import Fingerprint

_MOST = 512
"""The maximum number of entries of an array that is compiled in."""

_WEAK = {"b": bool, "i": int, "f": float, "c": complex}
"""The Python types of weakly typed arrays, by kind."""


@dataclasses.dataclass(frozen=True)
class Literal:
    """The values of an array, which are hashed with the layout of a program."""

    dtype: Any
    shape: tuple[int, ...]
    data: bytes
    weak: bool

    @property
    def value(self) -> Any:
        """The array, with its type; it becomes a literal where it is traced."""
        array = np.frombuffer(self.data, self.dtype).reshape(self.shape)
        if not self.weak:
            return array
        return jax.lax.convert_element_type(array, _WEAK[self.dtype.kind])


Literals: TypeAlias = tuple[Literal | None, ...]
"""The literal of each array that a function closes over; `None` for an argument."""

_SEEN = LRUCache(256)
_CHANGED = "changed"


def literals_of(program: Fingerprint) -> Literals:
    """Return the literals of a program if they do not change."""
    return tuple(map(_literal, program.constants))


def settled(programs: Sequence[Fingerprint]) -> bool:
    """Return whether the small arrays of programs have been the same at each call."""
    same = True
    for program in programs:
        name, now = program.key, literals_of(program)
        if _SEEN.setdefault(name, now) != now:
            _SEEN.put(name, _CHANGED)
            same = False
    return same


def filled_in(literals: Literals, arguments: Sequence[Any]) -> list[Any]:
    """Return all arrays of a program, from those that are passed in."""
    following = iter(arguments)
    return [next(following) if x is None else x.value for x in literals]


def arguments_of(literals: Literals, constants: Sequence[Any]) -> list[Any]:
    """Return the arrays of a program that are passed in."""
    pairs = zip(literals, constants, strict=True)
    return [x for literal, x in pairs if literal is None]


def _literal(x: Any) -> Literal | None:
    shape, dtype = getattr(x, "shape", None), getattr(x, "dtype", None)
    if not isinstance(x, jax.Array | np.ndarray | np.generic) or shape is None:
        return None
    if math.prod(shape) > _MOST or getattr(dtype, "kind", "") not in _WEAK | {"u": 0}:
        return None
    if not getattr(x, "is_fully_addressable", True):
        return None
    weak = bool(getattr(x, "weak_type", False))
    dtype = np.dtype(jax.dtypes.canonicalize_dtype(dtype))
    if weak and jax.dtypes.canonicalize_dtype(_WEAK.get(dtype.kind, object)) != dtype:
        return None
    return Literal(dtype, tuple(shape), np.asarray(x, dtype).tobytes(), weak)
