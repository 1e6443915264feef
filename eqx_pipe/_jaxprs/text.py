"""Programs and values as text that is the same in every process.

Two texts are compared days apart, perhaps on two machines. So functions count by
module and qualified name, arrays by their hash, and nothing by its address. The order
of a set, a hash seed or a name that JAX gave to a variable does not show.
"""

import dataclasses
import functools as ft
import hashlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import equinox as eqx
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer

from .._tree import Opaque, as_data
from .jaxpr import is_jaxpr, is_literal, open_jaxpr

# What does not change values: names, places, and rules of differentiation. (Across
# machines; within a process `Entry.aside` leaves out less, and so compiles rightly.)
_ASIDE = {
    "name", "debug_info", "ctx_mesh", "jvp_jaxpr_fun", "fwd_jaxpr_thunk", "bwd",
    "out_trees", "jvp", "transpose", "in_layouts", "out_layouts", "mesh", "sharding",
    "in_shardings", "out_shardings", "callback_hash",
}  # fmt: skip


def digest(text: str | bytes) -> str:
    """A short hash of a text."""
    # Names may have halves of surrogate pairs.
    data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    return hashlib.sha256(data).hexdigest()[:32]


class Writer:
    """Writes values as text; collects the arrays that a jaxpr closes over.

    `constants` are their hashes, `operations` counts the primitives by name.
    """

    def __init__(self) -> None:
        self.constants: list[str] = []
        self.operations: dict[str, int] = {}

    def program(self, closed: Any) -> str:
        """A jaxpr: a line for each equation, variables by number."""
        jaxpr, consts = open_jaxpr(closed)
        self.constants += [array_text(const) for const in consts]
        numbers: dict[Any, int] = {}
        lines = [self._binders((*jaxpr.constvars, *jaxpr.invars), numbers)]
        for eqn in jaxpr.eqns:
            name = eqn.primitive.name
            self.operations[name] = self.operations.get(name, 0) + 1
            params = [
                f"{key}={self.value(value)}"
                for key, value in sorted(eqn.params.items())
                if key not in _ASIDE
            ]
            taken = _joined(self._atoms(eqn.invars, numbers))
            made = self._binders(eqn.outvars, numbers)
            lines.append(f"{made} = {name}[{_joined(params)}] {taken}")
        lines.append(f"-> {_joined(self._atoms(jaxpr.outvars, numbers))}")
        return "{" + "\n".join(lines) + "}"

    def _atoms(self, atoms: Sequence[Any], numbers: dict[Any, int]) -> list[str]:
        return [
            f"{self.value(v.val)}:{_aval(v.aval)}"
            if is_literal(v)
            else f"%{numbers.setdefault(v, len(numbers))}"
            for v in atoms
        ]

    def _binders(self, variables: Sequence[Any], numbers: dict[Any, int]) -> str:
        named = zip(self._atoms(variables, numbers), variables, strict=True)
        return _joined(f"{name}:{_aval(v.aval)}" for name, v in named)

    def value(self, x: Any) -> str:
        """Any value; what is not understood counts by its type."""
        if x is None or isinstance(x, bool | int | float | complex | str | bytes):
            return repr(x)
        if is_jaxpr(x):
            return self.program(x)
        if isinstance(x, type):
            return f"{x.__module__}.{x.__qualname__}"
        if eqx.is_array(x):
            return array_text(x)
        if isinstance(x, Opaque):
            return self.value(x.values)
        if isinstance(x, jtu.PyTreeDef):
            return self.structure(x)
        if isinstance(x, dict):
            items = [f"{self.value(k)}: {self.value(v)}" for k, v in x.items()]
            return "{" + _joined(items) + "}"
        if isinstance(x, tuple | list):
            return f"{type(x).__name__}({_joined(map(self.value, x))})"
        if isinstance(x, set | frozenset):
            return "{" + _joined(sorted(map(self.value, x))) + "}"
        if isinstance(x, ft.partial):
            return f"partial({self.value((x.func, x.args, x.keywords))})"
        if inspect.ismethod(x):
            return f"{self.value(x.__self__)}.{x.__name__}"
        if dataclasses.is_dataclass(x):
            compared = [f.name for f in dataclasses.fields(x) if f.compare]
            fields = [name for name in compared if hasattr(x, name)]
            shown = [f"{name}={self.value(getattr(x, name))}" for name in fields]
            return f"{self.value(type(x))}({_joined(shown)})"
        if callable(x):
            return function_name(x)
        text = repr(x)
        if " at 0x" in text or "object at" in text:
            return self.value(type(x))
        return f"{type(x).__name__}:{text}"

    def structure(self, tree: Any) -> str:
        """The nodes of a pytree, with their static fields."""
        kind, data = tree.node_data() or (None, None)
        inside = _joined(map(self.structure, tree.children()))
        return f"{self.value(kind)} {self.value(data)} ({inside})"


def function_name(f: Callable[..., Any]) -> str:
    """A callable by its module and qualified name."""
    inner = inspect.unwrap(f)
    named = inner if hasattr(inner, "__qualname__") else type(inner)
    return f"{getattr(named, '__module__', '')}.{named.__qualname__}"


def array_text(x: Any) -> str:
    """An array by its dtype, shape and the hash of its values."""
    if isinstance(x, Tracer):  # left over in a jaxpr; see `program`
        return _aval(x.aval)
    raw = np.asarray(as_data(x))
    if raw.dtype == object:
        return f"{type(x).__name__}:{raw.shape}#{digest(repr(raw.tolist()))}"
    shape = ",".join(map(str, raw.shape))
    return f"{x.dtype}[{shape}]#{digest(np.ascontiguousarray(raw).tobytes())}"


def _aval(aval: Any) -> str:
    weak = "~" if getattr(aval, "weak_type", False) else ""
    shape = ",".join(map(str, getattr(aval, "shape", ())))
    return f"{getattr(aval, 'dtype', aval)}{weak}[{shape}]"


def _joined(texts: Iterable[str]) -> str:
    return ", ".join(texts)
