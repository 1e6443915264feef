"""Python values in programs: as text, and as keys of functions and objects.

The text is the same in every process. Functions are distinguished by their code and
their closures, and objects that text cannot express by identity.
"""

import abc
import dataclasses
import functools as ft
import hashlib
import inspect
import types
from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeAlias

import equinox as eqx
import jax.tree_util as jtu
import numpy as np
from jax.core import ShapedArray, Tracer

from .._captured import cells, defaults
from .._tree import Opaque, Same, as_data
from .jaxpr import is_jaxpr

Functions: TypeAlias = list[tuple[types.FunctionType, Hashable]]
"""Python functions, each with its key when it was traced."""

# A tuple, made once: a union of types is made at each evaluation.
_NUMBERS_AND_TEXT = (bool, int, float, complex, str, bytes)
_FROZEN = (*_NUMBERS_AND_TEXT, type, type(None), jtu.PyTreeDef)


def digest(text: str | bytes) -> str:
    """Return a short hash of a text."""
    # Names may contain unpaired surrogates.
    data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    return hashlib.sha256(data).hexdigest()[:32]


def array_text(x: Any) -> str:
    """Return an array as its dtype, shape and the hash of its values."""
    raw = np.asarray(as_data(x))
    weak = "~" if getattr(x, "weak_type", False) else ""
    shape = ",".join(map(str, raw.shape))
    return f"{x.dtype}{weak}[{shape}]#{digest(np.ascontiguousarray(raw).tobytes())}"


class ValueWriter(abc.ABC):
    """One walk: it returns text, and collects objects and literals.

    A `!` in the text is a placeholder for an entry of `held`, a `#` for one of
    `literals`.
    """

    def __init__(self) -> None:
        self.literals: list[str] = []
        self.held: list[Hashable] = []
        self.constants: list[Any] = []
        self.functions: Functions = []

    @abc.abstractmethod
    def program(self, closed: Any, apart: bool = True) -> str:
        """Write a jaxpr."""

    def text_of(self, x: Any) -> str:
        """Return a value as text that is the same in every process."""
        writer = type(self)()
        return joined([writer.value(x), *writer.literals])

    def key_of(self, x: Any) -> Hashable:
        """Return a key for a value, equal only for equivalent values."""
        writer = type(self)()
        return writer.value(x), tuple(writer.literals), tuple(writer.held)

    def function_key(
        self, f: types.FunctionType, outer: tuple[types.FunctionType, ...] = ()
    ) -> Hashable:
        """Return a key of a function: its code and the current values of its closure.

        `outer` are the functions that contain this one.
        """
        if f in outer:  # it calls itself
            return Same(f)
        # Each `equinox.error_if` makes a list of stack frames, which do not matter, and
        # one of its messages; each `jax.debug.callback` makes a dict of its arguments
        # that are not arrays. These wrappers do not change them later.
        module, outer = f.__module__ or "", (*outer, f)
        wrapper = module.startswith(("jax.", "equinox."))
        closure = [
            (name, self._captured_key(content, outer, wrapper))
            for name, content in cells(f).items()
            if (module, name) != ("equinox._errors", "stack")
        ]
        given = self._captured_key(tuple(defaults(f).items()), outer)
        # Equal code in two modules reads different globals.
        return types.FunctionType, f.__code__, id(f.__globals__), *closure, given

    def _captured_key(
        self,
        x: object,
        outer: tuple[types.FunctionType, ...] = (),
        unchanging: bool = False,
    ) -> Hashable:
        """Return the key of a value that a function closes over.

        With `unchanging`, lists and dicts are never modified.
        """
        if isinstance(x, _FROZEN):
            return self.key_of(x)
        if isinstance(x, types.FunctionType):
            return self.function_key(x, outer)
        if type(x) is tuple or unchanging and type(x) is list:
            return (type(x), *(self._captured_key(item, outer) for item in x))
        if unchanging and type(x) is dict:
            return (dict, *((k, self._captured_key(v, outer)) for k, v in x.items()))
        # A callback may read or change lists, dicts, arrays and objects when it runs,
        # so another object requires another program.
        return Same(x)

    def aval(self, aval: Any) -> str:
        """Write the type of a variable."""
        text, says_all = _aval_text(aval)
        return text if says_all else self.beside(text, aval)

    def beside(self, text: str, thing: Hashable) -> str:
        """Write a text with an object that it cannot express."""
        self.held.append(thing)
        return f"{text}!"

    def key_here(self, x: Any) -> Hashable:
        """Return the key of a value that the text does not contain."""
        writer = type(self)()
        text = writer.value(x)
        self.functions += writer.functions
        return text, tuple(writer.literals), tuple(writer.held)

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
            items = sorted(x, key=self.text_of)
            keys = tuple(map(self.key_here, items))
            return self.beside(f"{{{joined(map(self.text_of, items))}}}", keys)
        if isinstance(x, types.FunctionType):
            found = self.function_key(x)
            self.functions.append((x, found))
            return self.beside(_function_name(x), found)
        if isinstance(x, types.MethodType):
            owner = self.beside(self.text_of(x.__self__), Same(x.__self__))
            return f"{owner}.{self.value(x.__func__)}"
        if isinstance(x, ft.partial):
            given = self.beside(
                f"{self.text_of(x.args)}, {self.text_of(x.keywords)}",
                self._captured_key((x.args, tuple(x.keywords.items()))),
            )
            return f"partial({self.value(x.func)}, {given})"
        return self._object(x)

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
        text = type(self)()._fields(x) if dataclasses.is_dataclass(x) else ""
        if callable(x):
            text = f"{_function_name(x)}({text})"
        else:
            text = repr(x)
            if " at 0x" in text or "object at" in text:
                text = ""
            text = f"{type(x).__module__}.{type(x).__qualname__}:{text}"
        by_identity = ours or _is_by_identity(x)
        return self.beside(text, Same(x) if by_identity else (type(x), x))

    def _fields(self, x: Any) -> str:
        """Write a dataclass's fields; `compare=False` fields count here only."""
        found = []
        for field in dataclasses.fields(x):
            if not hasattr(x, field.name):
                continue
            value = getattr(x, field.name)
            if field.compare:
                found.append(f"{field.name}={self.value(value)}")
            else:
                found.append(self.beside(field.name, self.key_here(value)))
        return joined(found)

    def _kind(self, x: Any, *usual: type) -> str:
        kind = type(x)
        return kind.__name__ if kind in usual else self.beside(kind.__name__, kind)

    def each(self, items: Iterable[Any]) -> str:
        """Write several values."""
        return joined(map(self.value, items))

    def _array(self, x: Any) -> str:
        if getattr(x, "is_fully_addressable", True) and x.dtype != object:
            return array_text(x)
        return self.beside(f"{type(x).__name__}:{x.dtype}{x.shape}", Same(x))


@ft.lru_cache(4096)
def _aval_text(aval: Any) -> tuple[str, bool]:
    """Return the dtype and shape of a value, and whether its type has nothing else.

    A type may also have the placement of a value: a mesh or a memory kind.
    """
    shape = ",".join(map(str, getattr(aval, "shape", ())))
    text = f"{getattr(aval, 'dtype', type(aval).__name__)}[{shape}]"
    says_all = type(aval) is ShapedArray and aval.str_short() == text
    return text + "~" * bool(getattr(aval, "weak_type", False)), says_all


def _function_name(f: Callable[..., Any]) -> str:
    """Return the module and qualified name of a callable."""
    inner = inspect.unwrap(f)
    named = inner if hasattr(inner, "__qualname__") else type(inner)
    return f"{getattr(named, '__module__', '')}.{named.__qualname__}"


def _is_flatten(x: Any) -> bool:
    """Return whether `x` records the structure of outputs of Equinox's primitives.

    Each trace makes a new one. It is callable, but it depends only on the structure.
    """
    known = type(x).__name__ == "Flatten" and type(x).__module__.startswith("equinox.")
    return known and x.called()


def _is_by_identity(x: Any) -> bool:
    try:
        hash(x)
    except TypeError:
        return True
    return type(x).__eq__ is object.__eq__


def joined(texts: Iterable[str]) -> str:
    """Return several texts as one."""
    return ", ".join(texts)
