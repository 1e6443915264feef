"""Fingerprints of programs: equal only for equivalent programs.

One walk over a jaxpr writes a text that is the same in every process, which stores and
workers compare, and collects the identity of functions and objects, which text cannot
express. Both together are the key of a compiled program within a process.

The fingerprint omits everything that may change from one sweep to the next without
another compilation: the values of arrays that a function closes over (they are passed
as arguments), names, and differentiation rules, since a sweep does not differentiate.
Unknown objects are compared by identity: at worst a program is compiled again, but two
different programs never share an entry.
"""

import dataclasses
import functools as ft
import weakref
from collections.abc import Hashable, Sequence
from typing import Any

from .._tree import Same
from .jaxpr import Equation, is_literal, open_jaxpr
from .table import bodies, entry
from .values import Functions, ValueWriter, digest, joined

# Parameters that do not change values, on this machine or another: names, places and
# differentiation rules. Within a process they count, except those of `Entry.aside`.
_HERE_ONLY = {
    "name", "debug_info", "ctx_mesh", "jvp_jaxpr_fun", "fwd_jaxpr_thunk", "bwd",
    "out_trees", "jvp", "transpose", "in_layouts", "out_layouts", "mesh", "sharding",
    "in_shardings", "out_shardings", "callback_hash",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Fingerprint:
    """The fingerprint of a jaxpr, with the objects of this trace.

    `outline` is the text without the values of literals, which are in `literals`.
    `held` are functions by their code and closure, and objects by identity. `constants`
    are the arrays to pass in, in the order of `evaluate`; `functions` are the Python
    functions that it calls, each with its key at this moment.
    """

    outline: str
    literals: tuple[str, ...]
    held: tuple[Hashable, ...]
    constants: list[Any]
    functions: Functions

    @property
    def text(self) -> str:
        """The text that is the same in every process."""
        return f"{self.outline}\n{joined(self.literals)}"

    def key(self) -> Hashable:
        """Return the key of the program within this process."""
        return self._digest, self.held

    @ft.cached_property
    def _digest(self) -> str:
        return digest(self.text)

    def still_valid(self) -> bool:
        """Return whether the closures of all functions have not changed since."""
        return all(_Writer().function_key(f) == was for f, was in self.functions)

    def without_constants(self) -> "Fingerprint":
        """Return the fingerprint without the arrays, which may be large."""
        return dataclasses.replace(self, constants=[])


def fingerprint_of(jaxpr: Any) -> Fingerprint:
    """Return the fingerprint of a closed jaxpr."""
    writer = _Writer()
    text = writer.program(jaxpr)
    literals, held = tuple(writer.literals), tuple(writer.held)
    return Fingerprint(text, literals, held, writer.constants, writer.functions)


def text_of(x: Any) -> str:
    """Return a value as text that is the same in every process."""
    return _Writer().text_of(x)


def key_of(x: Any) -> Hashable:
    """Return a key for a value, equal only for equivalent values."""
    return _Writer().key_of(x)


# Jaxprs hash by identity, and an entry is removed with the function that it was traced
# from.
_jitted: weakref.WeakKeyDictionary[Any, Fingerprint] = weakref.WeakKeyDictionary()


class _Writer(ValueWriter):
    """A walk over a jaxpr."""

    def program(self, closed: Any, apart: bool = True) -> str:
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
        inner, known = bodies(eqn), entry(eqn)
        params = [self._body(eqn, body, apart) for body in inner]
        # Skip bodies that `_body` writes, with their constants apart.
        skipped = known.aside.union(known.bodies if inner else ()) if known else ()
        for name, value in sorted(eqn.params.items()):
            if name in skipped:
                continue
            if name == "rule" and eqn.primitive.name == "custom_vmap_call":
                # A rule runs when a program is compiled, and may then read anything:
                # never share the program with another trace.
                params.append(self.beside("rule", Same(object())))
            elif name in _HERE_ONLY:
                params.append(self.beside(name, self.key_here(value)))
            else:
                params.append(f"{name}={self.value(value)}")
        effects = ""
        if eqn.effects:
            effects = self.beside(" ", frozenset(map(str, eqn.effects)))
        name = self.beside(eqn.primitive.name, eqn.primitive)
        return f"{name}[{joined(params)}]{effects}"

    def _body(self, eqn: Equation, closed: Any, apart: bool) -> str:
        """Write a jaxpr in an equation; that of a jitted function is written once.

        JAX traces a jitted function once and then returns the same jaxpr. If it has
        functions, it is written again, since their closures may change.
        """
        if eqn.primitive.name != "jit" or not apart:
            return self.program(closed, apart)
        known = _jitted.get(closed)
        if known is None:
            known = fingerprint_of(closed)
            if not known.functions:
                _jitted[closed] = known
        self.literals += known.literals
        self.held += known.held
        self.constants += known.constants
        self.functions += known.functions
        return known.outline

    def _atoms(self, atoms: Sequence[Any], numbers: dict[Any, int]) -> str:
        found = []
        for v in atoms:
            if is_literal(v):
                self.literals.append(self.value(v.val))
                found.append(f"#:{self.aval(v.aval)}")
            else:
                found.append(f"%{numbers.setdefault(v, len(numbers))}")
        return joined(found)

    def _binders(self, variables: Sequence[Any], numbers: dict[Any, int]) -> str:
        return joined(
            f"%{numbers.setdefault(v, len(numbers))}:{self.aval(v.aval)}"
            for v in variables
        )


def _context(ctx: Any) -> str:
    # Omit the mesh, since a sweep runs on its own mesh; see `evaluate.py`.
    return f"{ctx.compute_type} {ctx.threefry_partitionable} {ctx.xla_metadata}"
