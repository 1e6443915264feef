"""Fingerprints of programs: equal only for equivalent programs.

One walk over a jaxpr writes a text that is the same in every process, which stores and
workers compare, and collects the identity of functions and objects, which text cannot
express: functions by their code and closure, objects by identity. Both together are the
key of a compiled program within a process.

The fingerprint omits everything that may change from one sweep to the next without
another compilation: the values of arrays that a function closes over (they are passed
as arguments), names, and differentiation rules, since a sweep does not differentiate.
Unknown objects are compared by identity: at worst a program is compiled again, but two
different programs never share an entry.
"""

import dataclasses
import functools as ft
import os
import types
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeAlias

import equinox as eqx
import jax.tree_util as jtu
import numpy as np
from jax.core import ShapedArray, Tracer

from .._same import array_text, digest, live_key, record_of
from .._tree import Opaque, Same
from .._types import AnyJaxpr
from .jaxpr import Equation, is_jaxpr, is_literal, open_jaxpr
from .table import bodies, entry

_NUMBERS_AND_TEXT = (bool, int, float, complex, str, bytes)


Functions: TypeAlias = list[tuple[Callable[..., Any], Hashable]]
"""Python functions, each with its key when it was traced."""


# Parameters that do not change values, on this machine or another: names, places and
# differentiation rules. Within a process they count, except those of `Entry.aside`.
_HERE_ONLY = {
    "name", "debug_info", "ctx_mesh", "jvp_jaxpr_fun", "fwd_jaxpr_thunk", "bwd",
    "out_trees", "jvp", "transpose", "in_layouts", "out_layouts", "mesh", "sharding",
    "in_shardings", "out_shardings", "callback_hash",
}  # fmt: skip


# What prints does not change values. `io_callback` may write into what it holds, which
# `pure_callback` promises not to do.
_COUNTED = {"debug_callback": None, "debug_print": None, "io_callback": False}


@dataclasses.dataclass(frozen=True)
class Fingerprint:
    """The fingerprint of a jaxpr, with the objects of this trace.

    `text` is the same in every process. `held` are functions by their code and closure,
    and objects by identity. `constants` are the arrays to pass in, in the order of
    `evaluate`; `functions` are the Python functions that it calls, each with its key at
    this moment; `called` are those that may run within the program, and whether the
    contents of their lists and dicts count.
    """

    text: str
    held: tuple[Hashable, ...]
    constants: list[Any]
    functions: Functions
    called: tuple[tuple[Any, bool], ...] = ()

    def texts(self) -> list[str]:
        """Return what identifies the program in every process: with what it holds."""
        constants = map(array_text, self.constants)
        return [self.text, *constants, *(_called_text(*each) for each in self.called)]

    @ft.cached_property
    def key(self) -> Hashable:
        """The key of the program within this process."""
        return _Key(digest(self.text), self.held)

    def still_valid(self) -> bool:
        """Return whether the closures of all functions have not changed since."""
        return all(live_key(f) == was for f, was in self.functions)

    def without_constants(self) -> "Fingerprint":
        """Return the fingerprint without the arrays, which may be large."""
        return dataclasses.replace(self, constants=[])


class _Key:
    """A key of many parts, whose hash is computed once.

    Parts that are equal have equal hashes, whenever these were computed: all that may
    change in place counts by identity.
    """

    def __init__(self, *parts: Hashable):
        self._parts, self._hash = parts, hash(parts)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self._parts == other._parts


def _called_text(fn: object, contents: bool) -> str:
    record = record_of(fn, contents)
    if record.unsure:  # it is equal to nothing
        return f"{UNSURE}{record.unsure} {os.urandom(8).hex()}"
    return record.digest


UNSURE = "unsure: "
"""The begin of the text of a function that no reading understands."""


def fingerprint_of(jaxpr: AnyJaxpr) -> Fingerprint:
    """Return the fingerprint of a closed jaxpr."""
    writer = _Writer()
    text = writer.program(jaxpr)
    called = tuple(writer.called)
    held, constants = tuple(writer.held), writer.constants
    return Fingerprint(text, held, constants, writer.functions, called)


def text_of(x: object) -> str:
    """Return a value as text that is the same in every process."""
    return _Writer().value(x)


def key_of(x: object) -> Hashable:
    """Return a key for a value, equal only for equivalent values."""
    writer = _Writer()
    return writer.value(x), tuple(writer.held)


# Jaxprs hash by identity, and an entry is removed with the function that it was traced
# from.
_jitted: weakref.WeakKeyDictionary[Any, Fingerprint] = weakref.WeakKeyDictionary()


class _Writer:
    """One walk over a jaxpr or value, which returns text and collects the rest.

    A `!` in the text is a placeholder for an entry of `held`.
    """

    def __init__(self) -> None:
        self.held: list[Hashable] = []
        self.constants: list[Any] = []
        self.functions: Functions = []
        self.called: list[tuple[Any, bool]] = []
        self._counts: bool | None = True  # whether containers count, or no function

    def program(self, closed: AnyJaxpr, apart: bool = True) -> str:
        """Write a jaxpr: a line for each equation, variables by number.

        The arrays that it closes over are collected if they are passed in `apart`.
        """
        jaxpr, consts = open_jaxpr(closed)
        numbers: dict[Any, int] = {}
        # The number of closed-over arrays, which are passed in separately.
        heads = [str(len(jaxpr.constvars)), self._binders(jaxpr.constvars, numbers)]
        lines = [*heads, self._binders(jaxpr.invars, numbers)]
        if apart:
            self.constants += consts
        else:
            lines.append(self.each(consts))
        context = None
        for eqn in jaxpr.eqns:
            here = _context(eqn.ctx)
            if here != context:
                lines.append(f"@{here}")
                context = here
            taken = self._atoms(eqn.invars, numbers)
            made = self._binders(eqn.outvars, numbers)
            lines.append(f"{made} = {self._operation(eqn, apart)} {taken}")
        lines.append(f"-> {self._atoms(jaxpr.outvars, numbers)}")
        return "{" + "\n".join(lines) + "}"

    def _operation(self, eqn: Equation, apart: bool) -> str:
        inner, primitive = bodies(eqn), entry(eqn)
        params = [self._body(eqn, body, apart) for body in inner]
        # Skip bodies that `_body` writes, with their constants apart.
        skipped = primitive.aside.union(primitive.bodies if inner else ())
        self._counts = _COUNTED.get(eqn.primitive.name, True)
        for name, value in sorted(eqn.params.items()):
            if name in skipped:
                continue
            if name == "rule" and eqn.primitive.name == "custom_vmap_call":
                # A rule runs when a program is compiled, and may then read anything:
                # never share the program with another trace.
                params.append(self.beside("rule", Same(object())))
                self.called.append((value, True))
            elif name in _HERE_ONLY:
                params.append(self.beside(name, self.key_here(value)))
            else:
                params.append(f"{name}={self.value(value)}")
        self._counts = True
        effects = ""
        if eqn.effects:
            effects = self.beside(" ", frozenset(map(str, eqn.effects)))
        name = self.beside(eqn.primitive.name, eqn.primitive)
        return f"{name}[{joined(params)}]{effects}"

    def _body(self, eqn: Equation, closed: AnyJaxpr, apart: bool) -> str:
        """Write a jaxpr in an equation; that of a jitted function is written once.

        JAX traces a jitted function once and then returns the same jaxpr. If it has
        functions, it is written again, since their closures may change.
        """
        if eqn.primitive.name != "jit" or not apart:
            return self.program(closed, apart)
        program = _jitted.get(closed)
        if program is None:
            program = fingerprint_of(closed)
            if not (program.functions or program.called):
                _jitted[closed] = program
        self.held += program.held
        self.constants += program.constants
        self.functions += program.functions
        self.called += program.called
        return program.text

    def _atoms(self, atoms: Sequence[Any], numbers: dict[Any, int]) -> str:
        operands = []
        for v in atoms:
            if is_literal(v):
                operands.append(f"{self.value(v.val)}:{self.aval(v.aval)}")
            else:
                operands.append(f"%{numbers.setdefault(v, len(numbers))}")
        return joined(operands)

    def _binders(self, variables: Sequence[Any], numbers: dict[Any, int]) -> str:
        return joined(
            f"%{numbers.setdefault(v, len(numbers))}:{self.aval(v.aval)}"
            for v in variables
        )

    def aval(self, aval: Any) -> str:
        """Write the type of a variable."""
        text, says_all = _aval_text(aval)
        return text if says_all else self.beside(text, aval)

    def beside(self, text: str, thing: Hashable) -> str:
        """Write a text with an object that it cannot express."""
        self.held.append(thing)
        return f"{text}!"

    def key_here(self, x: object) -> Hashable:
        """Return the key of a value that the text does not contain."""
        writer = _Writer()
        text = writer.value(x)
        self.functions += writer.functions
        return text, tuple(writer.held)

    def value(self, x: Any) -> str:
        """Write any value; unknown objects count by type and identity."""
        if x is None or type(x) in _NUMBERS_AND_TEXT:
            return repr(x)
        if isinstance(x, _NUMBERS_AND_TEXT):
            return self.beside(repr(x), type(x))
        if is_jaxpr(x):
            return self.program(x, apart=False)
        if isinstance(x, type):
            return self.beside(f"{x.__module__}.{x.__qualname__}", x)
        if isinstance(x, Tracer):
            # Equinox keeps the jaxpr of a converted function (such as an operator of
            # lineax) among the static parameters of its primitives, and the values that
            # the function closes over among the inputs. From JAX 0.12 on the jaxpr has
            # constants, which are tracers of the trace that made it. That trace has
            # ended, so programs cannot read them, and only their types matter.
            return f"Tracer:{self.aval(x.aval)}"
        if eqx.is_array(x) or isinstance(x, np.ndarray | np.generic):
            return self._array(x)
        if isinstance(x, Opaque):
            return f"Opaque({self.value(x.values)})"
        if isinstance(x, jtu.PyTreeDef):
            # Treedefs that are equal for JAX may contain different jaxprs.
            kind_and_data, children = x.node_data(), x.children()
            return f"{self.value(kind_and_data)}({self.each(children)})"
        if isinstance(x, tuple | list):
            return f"{self._kind(x, tuple, list)}({self.each(x)})"
        if isinstance(x, dict):
            items = [f"{self.value(k)}: {self.value(v)}" for k, v in x.items()]
            return f"{self._kind(x, dict)}({joined(items)})"
        if isinstance(x, set | frozenset):
            items = sorted(x, key=text_of)
            keys = tuple(map(self.key_here, items))
            return self.beside(f"{{{joined(map(text_of, items))}}}", keys)
        if isinstance(x, types.FunctionType | types.MethodType | ft.partial):
            key = live_key(x)
            self.functions.append((x, key))
            return self._function(x, key)
        return self._object(x)

    def _function(self, x: object, key: Hashable) -> str:
        """Write a function, which counts by all that it reaches."""
        if self._counts is not None:
            self.called.append((x, self._counts))
        return self.beside(type(x).__name__, key)

    def _object(self, x: Any) -> str:
        held = getattr(x, "__dict__", {})
        if any(map(is_jaxpr, held.values())):
            # Optimistix's wrappers of jaxprs all compare equal.
            return f"{self.value(type(x))}({self.value(dict(held))})"
        if _is_flatten(x):
            return f"Flatten({self.each(x.get())})"
        is_module = isinstance(x, eqx.Module)
        ours = callable(x) and not type(x).__module__.startswith("jax.")
        if dataclasses.is_dataclass(x) and (is_module or not ours):
            return f"{self.value(type(x))}({self._fields(x)})"
        by_identity = ours or _is_by_identity(x)
        key = Same(x) if by_identity else (type(x), x)
        if callable(x):
            return self._function(x, key)
        text = repr(x)
        if " at 0x" in text or "object at" in text:
            text = ""
        text = f"{type(x).__module__}.{type(x).__qualname__}:{text}"
        return self.beside(text, key)

    def _fields(self, x: Any) -> str:
        """Write a dataclass's fields; `compare=False` fields count here only."""
        texts = []
        for field in dataclasses.fields(x):
            if not hasattr(x, field.name):
                continue
            value = getattr(x, field.name)
            if field.compare:
                texts.append(f"{field.name}={self.value(value)}")
            else:
                texts.append(self.beside(field.name, self.key_here(value)))
        return joined(texts)

    def _kind(self, x: object, *usual: type) -> str:
        kind = type(x)
        return kind.__name__ if kind in usual else self.beside(kind.__name__, kind)

    def each(self, items: Iterable[Any]) -> str:
        """Write several values."""
        return joined(map(self.value, items))

    def _array(self, x: Any) -> str:
        if getattr(x, "is_fully_addressable", True) and x.dtype != object:
            return array_text(x)
        return self.beside(f"{type(x).__name__}:{x.dtype}{x.shape}", Same(x))


def _context(ctx: Any) -> str:
    # Omit the mesh, since a sweep runs on its own mesh; see `evaluate.py`.
    return f"{ctx.compute_type} {ctx.threefry_partitionable} {ctx.xla_metadata}"


@ft.lru_cache(4096)
def _aval_text(aval: Any) -> tuple[str, bool]:
    """Return the dtype and shape of a value, and whether its type has nothing else.

    A type may also have the placement of a value: a mesh or a memory kind.
    """
    shape = ",".join(map(str, getattr(aval, "shape", ())))
    text = f"{getattr(aval, 'dtype', type(aval).__name__)}[{shape}]"
    says_all = type(aval) is ShapedArray and aval.str_short() == text
    return text + "~" * bool(getattr(aval, "weak_type", False)), says_all


def _is_flatten(x: Any) -> bool:
    """Return whether `x` records the structure of outputs of Equinox's primitives.

    Each trace makes a new one. It is callable, but it depends only on the structure.
    """
    kind = type(x)
    return (
        kind.__name__ == "Flatten"
        and kind.__module__.startswith("equinox.")
        and x.called()
    )


def _is_by_identity(x: object) -> bool:
    try:
        hash(x)
    except TypeError:
        return True
    return type(x).__eq__ is object.__eq__


def joined(texts: Iterable[str]) -> str:
    """Return several texts as one."""
    return ", ".join(texts)
