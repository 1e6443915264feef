"""What makes two traced functions the same program.

The cache key of a jaxpr is a nest of tuples: primitives, their parameters, and
variables by number. It leaves out what may change from one sweep to the next without
another compilation: the values of arrays that the function closes over (they are
handed in as arguments), names, and rules of differentiation, since a sweep does not
differentiate. Whatever is not understood counts by identity: at worst a program is
compiled again, but two programs never share an entry.
"""

import dataclasses
import functools as ft
import hashlib
import struct
import types
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer

from .._tree import Same
from .jaxpr import Equation, is_jaxpr, is_literal, open_jaxpr
from .table import bodies, entry

# As a tuple made once: a union of types is made anew wherever it is written.
_PLAIN = (bool, int, str, bytes, type)
_NO_EFFECTS: frozenset[str] = frozenset()
_SHORT = 256  # bytes

Callbacks = list[tuple[types.FunctionType, Any]]
"""Python functions in a program, each with its key when it was traced."""


class CacheKey:
    """A nest of tuples as one value, whose hash is worked out once."""

    __slots__ = ("_hash", "_parts")

    def __init__(self, parts: Any):
        self._parts, self._hash = parts, hash(parts)

    @property
    def parts(self) -> Any:
        """What it is made of."""
        return self._parts

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CacheKey):
            return NotImplemented
        return self._hash == other._hash and self._parts == other._parts


# Jaxprs hash by identity, and an entry goes together with the function it was traced
# from.
_jitted: weakref.WeakKeyDictionary[Any, tuple[CacheKey, list[Any]]]
_jitted = weakref.WeakKeyDictionary()


@dataclasses.dataclass(frozen=True)
class Program:
    """The cache key of a jaxpr, and what belongs to this trace of it.

    `constants` are the arrays to hand in, in the order of `evaluate`. `callbacks` are
    the Python functions in it, each with what it was at this moment.
    """

    cache_key: CacheKey
    constants: list[Any]
    callbacks: Callbacks

    def without_constants(self) -> "Program":
        """The same without the arrays, which may be large."""
        return dataclasses.replace(self, constants=[])

    def still_valid(self) -> bool:
        """Whether no callback has changed what it closes over since the trace."""
        return all(function_key(f, freeze) == was for f, was in self.callbacks)


def identify(jaxpr: Any) -> Program:
    """The cache key of a closed jaxpr, with what belongs to this trace of it."""
    constants: list[Any] = []
    callbacks: Callbacks = []
    parts = _jaxpr(jaxpr, constants, callbacks)
    return Program(CacheKey(parts), constants, callbacks)


def _jaxpr(closed: Any, constants: list[Any] | None, callbacks: Callbacks) -> Any:
    """`constants` collects the arrays to hand in; where it is `None` they stay."""
    jaxpr, consts = open_jaxpr(closed)
    numbers: dict[Any, int] = {}
    heads = _binders((*jaxpr.constvars, *jaxpr.invars), numbers)
    if constants is None:
        heads += [_freeze(c, callbacks) for c in consts]
    else:
        constants += consts
    equations = []
    for eqn in jaxpr.eqns:
        inner, known = bodies(eqn), entry(eqn)
        params: list[Any] = [_body(eqn, b, constants, callbacks) for b in inner]
        # What was written above by `_body`, with its constants apart, is not written
        # again.
        skipped = known.aside.union(known.bodies if inner else ()) if known else ()
        for name, value in sorted(eqn.params.items()):
            if name in skipped:
                continue
            if name == "rule" and eqn.primitive.name == "custom_vmap_call":
                # It runs when the program is compiled, and may look at anything.
                value = getattr(value, "rule", value)
                params.append((name, Same(value)))
            params.append((name, _freeze(value, callbacks)))
        equations.append(
            (
                eqn.primitive,
                _atoms(eqn.invars, numbers, callbacks),
                tuple(_binders(eqn.outvars, numbers)),
                tuple(params),
                _context(eqn.ctx),
                frozenset(map(str, eqn.effects)) if eqn.effects else _NO_EFFECTS,
            )
        )
    # How many of the heads are closed over: they are handed in by another way.
    return (
        len(jaxpr.constvars),
        tuple(heads),
        tuple(equations),
        _atoms(jaxpr.outvars, numbers, callbacks),
    )


def _atoms(
    atoms: Sequence[Any], numbers: dict[Any, int], callbacks: Callbacks
) -> tuple[Any, ...]:
    return tuple(
        ("literal", v.aval, _freeze(v.val, callbacks))
        if is_literal(v)
        else numbers.setdefault(v, len(numbers))
        for v in atoms
    )


def _binders(variables: Sequence[Any], numbers: dict[Any, int]) -> list[Any]:
    return [(numbers.setdefault(v, len(numbers)), v.aval) for v in variables]


def _body(
    eqn: Equation, closed: Any, constants: list[Any] | None, callbacks: Callbacks
) -> Any:
    """The parts of a jaxpr in an equation; those of a jitted function are cached.

    JAX traces one once and gives the same jaxpr ever after. One with callbacks is
    looked at again, since what they close over may change.
    """
    if eqn.primitive.name != "jit" or constants is None:
        return _jaxpr(closed, constants, callbacks)
    known = _jitted.get(closed)
    if known is None:
        own: list[Any] = []
        seen: Callbacks = []
        known = CacheKey(_jaxpr(closed, own, seen)), own
        if not seen:
            _jitted[closed] = known
        callbacks += seen
    constants += known[1]
    return known[0]


def freeze(x: Any) -> Any:
    """A hashable stand-in for a value: equal only for those that do the same."""
    return _freeze(x, [])


def _context(ctx: Any) -> Any:
    # Its mesh is left out: a sweep runs on a mesh of its own, see `evaluate.py`.
    return (ctx.compute_type, ctx.threefry_partitionable, str(ctx.xla_metadata))


def _freeze(x: Any, callbacks: Callbacks) -> Any:
    """A hashable stand-in for a parameter: equal only where the program is the same."""
    if x is None or isinstance(x, _PLAIN):
        return (type(x), x)
    if isinstance(x, float):  # 0.0 and -0.0 differ; a NaN equals itself
        return (float, struct.pack("d", x))
    if isinstance(x, complex):
        return (complex, struct.pack("dd", x.real, x.imag))
    if is_jaxpr(x):
        return _jaxpr(x, None, callbacks)
    if isinstance(x, tuple | list):
        return (type(x), tuple(_freeze(item, callbacks) for item in x))
    if isinstance(x, dict):
        items = tuple((k, _freeze(v, callbacks)) for k, v in x.items())
        return (dict, items)
    if isinstance(x, ft.partial):
        parts = captured_key((*x.args, *x.keywords.items()), freeze)
        return (ft.partial, _freeze(x.func, callbacks), len(x.args), parts)
    if isinstance(x, types.FunctionType):
        found = function_key(x, freeze)
        callbacks.append((x, found))
        return found
    if isinstance(x, types.MethodType):
        parts = (_freeze(x.__func__, callbacks), Same(x.__self__))
        return (types.MethodType, parts)
    if isinstance(x, Tracer):
        # Equinox keeps the jaxpr of a function that it has converted (an operator of
        # lineax, say) among the static parameters of its primitives, and the values
        # that the function closes over among the inputs. From JAX 0.12 on the jaxpr
        # comes with constants, which are then tracers of the trace that made it. That
        # trace is over, so no program can read them: only their types can matter.
        return (Tracer, x.aval)
    if isinstance(x, jax.Array) or hasattr(x, "__array__"):
        return _array(x)
    if isinstance(x, jtu.PyTreeDef):
        return _structure(x, callbacks)
    if isinstance(x, eqx.Module):
        leaves, structure = jtu.tree_flatten(x)
        return _freeze((structure, leaves), callbacks)
    if _is_flatten(x):
        return _freeze(("Flatten", *x.get()), callbacks)
    held = getattr(x, "__dict__", {})
    if any(map(is_jaxpr, held.values())):
        # Optimistix says of all its wrappers of jaxprs that they are equal.
        return (type(x), _freeze(held, callbacks))
    if callable(x) and not type(x).__module__.startswith("jax."):
        return Same(x)
    if dataclasses.is_dataclass(x):
        fields = [getattr(x, f.name) for f in dataclasses.fields(x)]
        return (type(x), tuple(_freeze(value, callbacks) for value in fields))
    return (type(x), Same(x) if _by_identity(x) else x)


def _array(x: Any) -> Any:
    if isinstance(x, jax.Array):
        if jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key):
            return (str(x.dtype), _array(jax.random.key_data(x)))
        if not x.is_fully_addressable:
            return Same(x)
    value = np.asarray(x)
    if value.dtype == object:
        return Same(x)
    weak = bool(getattr(x, "weak_type", False))
    content = value.tobytes()
    if len(content) > _SHORT:  # a key lives longer than what it is made from
        content = hashlib.sha256(content).digest()
    return (str(value.dtype), value.shape, weak, content)


def _structure(x: Any, callbacks: Callbacks) -> Any:
    """The nodes of a pytree; what is equal to JAX may yet hold other jaxprs."""
    children = tuple(_structure(child, callbacks) for child in x.children())
    return (jtu.PyTreeDef, _freeze(x.node_data(), callbacks), children)


def _is_flatten(x: Any) -> bool:
    """Whether `x` is what Equinox's primitives note the form of their output in.

    It is made anew by each trace, and callable, but does no more than what it notes.
    """
    known = type(x).__name__ == "Flatten" and type(x).__module__.startswith("equinox.")
    return known and x.called()


def _by_identity(x: Any) -> bool:
    try:
        hash(x)
    except TypeError:
        return True
    return type(x).__eq__ is object.__eq__


Freeze = Callable[[Any], Hashable]
_FROZEN = (str, bytes, bool, int, float, complex, type, type(None), jtu.PyTreeDef)


def function_key(
    f: types.FunctionType, freeze: Freeze, outer: tuple[types.FunctionType, ...] = ()
) -> Hashable:
    """A function by its code and by what it closes over, as it is now.

    `freeze` makes plain values and the structures of pytrees hashable; `outer` are
    functions that this one is found in.
    """
    if f in outer:  # it calls itself
        return Same(f)
    # Each `equinox.error_if` makes a list of the frames that lead to it, which do not
    # matter, and one of its messages; each `jax.debug.callback` a dict of its arguments
    # that are no arrays. These wrappers do not change what they made.
    module, outer = f.__module__ or "", (*outer, f)
    wrapper = module.startswith(("jax.", "equinox."))
    contents = [
        _content(cell, freeze, outer, wrapper)
        for name, cell in zip(f.__code__.co_freevars, f.__closure__ or (), strict=True)
        if (module, name) != ("equinox._errors", "stack")
    ]
    given = (f.__defaults__ or (), tuple((f.__kwdefaults__ or {}).items()))
    return (
        types.FunctionType,
        f.__code__,
        # Equal code in two modules reads two sets of globals.
        id(f.__globals__),
        tuple(contents),
        captured_key(given, freeze, outer),
    )


def _content(
    cell: types.CellType,
    freeze: Freeze,
    outer: tuple[types.FunctionType, ...],
    unchanging: bool,
) -> Hashable:
    try:
        content = cell.cell_contents
    except ValueError:  # not assigned yet
        return Same(cell)
    return captured_key(content, freeze, outer, unchanging)


def captured_key(
    x: object,
    freeze: Freeze,
    outer: tuple[types.FunctionType, ...] = (),
    unchanging: bool = False,
) -> Hashable:
    """What a function closes over; `unchanging` if nobody writes to a list or dict."""
    if isinstance(x, _FROZEN):
        return freeze(x)
    if isinstance(x, types.FunctionType):
        return function_key(x, freeze, outer)
    if type(x) is tuple or unchanging and type(x) is list:
        return (type(x), tuple(captured_key(item, freeze, outer) for item in x))
    if unchanging and type(x) is dict:
        items = ((k, captured_key(v, freeze, outer)) for k, v in x.items())
        return (dict, tuple(items))
    # Lists, dicts, arrays, objects: a callback may look at them, or change them, when
    # it runs, so that another object is another program.
    return Same(x)
