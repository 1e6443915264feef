"""Traces kept from one call to the next, while nothing that they read has changed.

A trace reads the function and everything it reaches: code, closures, defaults, globals,
attributes of modules and classes, fields of Modules. A guard lists all of them, numbers
and texts by value, arrays and functions by identity. If it reaches anything else that
may change in place, such as a NumPy array, nothing is kept. No guard can see what the
code finds by other means: files, `os.environ`, `np.random`, `globals()["x"]`.
"""

import collections
import dataclasses
import enum
import functools as ft
import inspect
import operator
import sys
import types
import weakref
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer

from ..._cache import LRUCache
from ..._captured import cells, code_names, defaults, global_names, is_library
from ..._spaces import Space
from ..._tree import Opaque, as_hashable, can_be_traced, nbytes
from ..._types import Key
from .cases import Case
from .trace import Traced

_KEPT = LRUCache(32)

# An entry holds the arrays that its function closes over. Tracing takes little of the
# time of a function that closes over more.
_MOST_BYTES = 2**22

_BY_VALUE = (bool, int, float, complex, str, bytes, range, type(None), np.dtype)
_BY_IDENTITY = (
    enum.Enum,
    inspect.Signature,
    jnp.ufunc,
    np.ufunc,
    type(vars(collections.namedtuple("_", "x"))["x"]),
    types.BuiltinFunctionType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.MethodWrapperType,
    types.WrapperDescriptorType,
    type(...),
    type(NotImplemented),
)
# Written by Python, or without effect on a trace.
_ASIDE = {
    "__abstractmethods__", "__annotate_func__", "__annotations__",
    "__annotations_cache__", "__conditional_annotations__", "__dataclass_fields__",
    "__dataclass_params__", "__dict__", "__doc__", "__firstlineno__",
    "__match_args__", "__module__", "__orig_bases__", "__parameters__", "__repr__",
    "__slots__", "__static_attributes__", "__str__", "__weakref__", "_abc_impl",
}  # fmt: skip

_config = operator.attrgetter(*(k for k in jax.config.values if hasattr(jax.config, k)))


Found: TypeAlias = tuple[list[Case], list[Traced], tuple[tuple[Case, str], ...]]
"""Cases with their traces, and cases that raised with their errors."""


class _Entry(NamedTuple):
    owner: weakref.ref[Any]
    guard: list[Any]
    found: Found


def kept(
    fn: Callable[..., Any],
    space: Space,
    key: Key | None,
    options: Hashable,
    make: Callable[[], Found],
) -> Found:
    """Return the traces of an earlier call if `make` would return the same again.

    An entry is removed with its function, to which it does not refer.
    """
    # Each access to a method makes a new object.
    owner = fn.__self__ if isinstance(fn, types.MethodType) else fn
    try:
        guard = _guard(fn, space)
        place = id(owner), options, schema(space, key)
        ref = weakref.ref(owner, lambda _: _KEPT.discard(place))
        entry = _KEPT.get(place)
    except (_MayChange, TypeError):  # no hash, or no weak reference
        return make()
    if entry is not None and entry.owner() is owner and entry.guard == guard:
        return entry.found
    found = make()
    arrays = [x for each in found[1] for x in each.program.constants]
    # Tracing may itself have changed what it read.
    if sum(map(nbytes, arrays)) <= _MOST_BYTES and _is_still(guard, fn, space):
        _KEPT.put(place, _Entry(ref, guard, found))
    return found


def schema(space: Space, key: Key | None) -> Hashable:
    """Return everything that a trace depends on, without the values of arrays."""
    leaves, structure = jtu.tree_flatten((space, key))
    schemas = tuple(map(_leaf_schema, leaves))
    # The selected points determine which of them share a program.
    rows = None if space.rows is None else np.asarray(space.rows).tobytes()
    return structure, schemas, rows, configuration()


def configuration() -> Hashable:
    """Return the configuration of JAX."""
    return _config(jax.config)


def _leaf_schema(leaf: Any) -> Hashable:
    if can_be_traced(leaf):
        return leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False)
    if isinstance(leaf, np.generic):
        return type(leaf), leaf.tobytes()
    return as_hashable(leaf)


class _MayChange(Exception):
    """Raised for a value that may change in place, unseen."""


def _guard(fn: Callable[..., Any], space: Space) -> list[Any]:
    """Return what tracing `fn` on `space` reads; raise a `_MayChange` if unknown."""
    first, second = _Walk(), _Walk(jtu.tree_leaves(space))
    first.add(fn)
    second.add(space)
    return [*first.found, *second.found]


def _is_still(guard: list[Any], fn: Callable[..., Any], space: Space) -> bool:
    try:
        return _guard(fn, space) == guard
    except _MayChange:
        return False


class _Walk:
    """A walk over values, which lists them as `found`.

    Arrays among the `args` of the trace are left out.
    """

    def __init__(self, args: list[Any] | None = None):
        self.found: list[Any] = []
        self._args = {id(x) for x in args or [] if can_be_traced(x)}
        self._seen: dict[Hashable, tuple[int, Any]] = {}

    def add(self, x: Any) -> None:
        """Add a value, and all that it holds."""
        kind = type(x)
        if kind in _BY_VALUE:
            # 0.0 and -0.0 differ, NaNs are equal
            self.found += kind, repr(x) if kind in (float, complex) else x
        elif isinstance(x, np.generic) and kind is not np.void:
            self.found += kind, x.tobytes()
        elif id(x) in self._args:
            pass
        elif self._is_new(id(x), x):
            self._add_new(x)

    def _is_new(self, name: Hashable, x: Any) -> bool:
        seen = self._seen.get(name)
        if seen is None:
            self._seen[name] = len(self._seen), x
        else:
            self.found += "seen", seen[0]
        return seen is None

    def _same(self, x: Any) -> None:
        """Add a value by identity. An address alone may be used again."""
        try:
            self.found += id(x), weakref.ref(x)
        except TypeError:  # objects of libraries, which live as long as they do
            self.found += id(x), x

    def _add_new(self, x: Any) -> None:
        if isinstance(x, jax.Array) and not isinstance(x, Tracer):
            self._same(x)
        elif isinstance(x, tuple) or type(x) is list:
            self.found.append(len(x))
            for value in (type(x), *x):
                self.add(value)
        elif type(x) is dict:
            self._items(x)
        elif isinstance(x, Opaque):
            self.add(x.values)
        elif isinstance(x, eqx.Module) or _is_plain_dataclass(x):
            self.add(type(x))
            self._items(vars(x))
        elif isinstance(x, types.ModuleType):
            self._same(x)
        elif isinstance(x, type):
            self._class(x)
        elif isinstance(x, types.FunctionType):
            self._function(x)
        elif isinstance(x, types.MethodType):
            self.add(x.__func__)
            self.add(x.__self__)
        elif isinstance(x, ft.partial):
            self._same(x)
            self.add((x.func, x.args, x.keywords))
        elif isinstance(x, property):
            self.add((x.fget,))
        elif isinstance(x, jtu.PyTreeDef):
            self.add((x.node_data(), *x.children()))
        elif isinstance(x, weakref.ref):
            self.add((x(),))
        elif isinstance(x, (set, frozenset)) and all(type(v) is str for v in x):
            self.add((type(x), *sorted(x)))
        elif isinstance(x, (staticmethod, classmethod)):
            self.add(x.__func__)
        elif isinstance(x, _BY_IDENTITY):
            self._same(x)
        elif hasattr(x, "__wrapped__") and _is_of_library(type(x)):
            self._same(x)  # made by `jax.jit`, `jax.custom_jvp`, ...
            wrapped: Any = x
            rules = getattr(x, "__dict__", {}).values()
            self.add((wrapped.__wrapped__, *(f for f in rules if callable(f))))
        else:
            raise _MayChange

    def _items(self, x: dict[Any, Any]) -> None:
        self.found += len(x), dict
        for name, value in x.items():
            self.add(name)
            self.add(value)

    def _class(self, x: type) -> None:
        self._same(x)
        args, self._args = self._args, set()
        for base in x.__mro__:
            if _is_of_library(base):
                continue
            for name in [k for k in vars(base) if k not in _ASIDE]:
                self.found.append(name)
                # Equinox wraps methods in a descriptor.
                static = inspect.getattr_static(base, name)
                is_usual = isinstance(static, (property, staticmethod, classmethod))
                self.add(static if is_usual else getattr(base, name))
        self._args = args

    def _function(self, x: types.FunctionType) -> None:
        self._same(x)
        self._same(x.__code__)
        args, self._args = self._args, set()
        named = {**cells(x), **defaults(x)}
        if not is_library(x.__code__.co_filename):
            named |= vars(x)
            self._globals(x)
        elif "__wrapped__" in vars(x):
            named["__wrapped__"] = vars(x)["__wrapped__"]
        self._items(named)
        self._args = args

    def _globals(self, x: types.FunctionType) -> None:
        names, package = code_names(x.__code__), x.__globals__.get("__package__")
        for name in global_names(x.__code__):
            if name in x.__globals__:
                self.found.append(name)
                self._global(x.__globals__[name], names)
        for name in names:  # modules that the function itself imports
            for module in (name, f"{package}.{name}"):
                if module in sys.modules:
                    self._global(sys.modules[module], names)

    def _global(self, x: Any, names: tuple[str, ...]) -> None:
        """Add a global, and those attributes of a module that the code may read."""
        self.add(x)
        if not isinstance(x, types.ModuleType) or not self._is_new((id(x), names), x):
            return
        library = _is_of_library(x)
        for name in names:
            if name not in vars(x):
                continue
            value = vars(x)[name]
            self.found.append(name)
            if library and not isinstance(value, types.ModuleType):
                # A module of a library may be patched, but nothing in its objects.
                self._same(value)
            else:
                self._global(value, names)


def _is_plain_dataclass(x: Any) -> bool:
    is_one = dataclasses.is_dataclass(x) and not isinstance(x, type)
    return is_one and hasattr(x, "__dict__") and not hasattr(type(x), "__slots__")


def _is_of_library(x: type | types.ModuleType) -> bool:
    """Return whether a class or module belongs to Python or an installed package."""
    name = x.__module__ if isinstance(x, type) else x.__name__
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)  # `None` in a notebook, or if built in
    is_built_in = name in sys.builtin_module_names
    return is_built_in or file is not None and is_library(file)
