"""Whether a value is the same as before, for memory and for disk.

A reading of a value lists everything that it holds, and that its functions can reach by
name: code, closures, defaults, globals, attributes of modules and classes, items and
attributes of objects. It knows a short list of kinds. For anything else it raises
`Unsure`: what is not understood counts as changed.

In memory (`seen_by`), arrays and functions count by identity, and what may change in
place by its contents. On disk (`record_of`), a reading is the same in every process:
arrays count by their bits, functions by their code, and a short text of each part says
later what has changed.

Installed packages count as fixed, apart from names in their modules. No reading sees
what code finds by text or outside of Python: `getattr(x, name)`, files, time.
"""

import builtins
import collections
import functools as ft
import itertools as it
import re
import sys
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer

from .._captured import JITTED, cells, code_names, defaults, global_names
from .._captured import is_library as is_installed
from .._tree import Opaque, as_data, can_be_traced
from .._jaxprs import array_text, digest

_PLAIN = {bool, int, float, complex, str, bytes, range, type(None), type(...)}
_FIXED = (
    np.dtype,
    np.ufunc,
    type(NotImplemented),
    type(vars(collections.namedtuple("_", "x"))["x"]),
    types.CodeType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.WrapperDescriptorType,
    types.UnionType,
)
"""Kinds of objects that never change."""
_BOUND = types.BuiltinFunctionType, types.MethodWrapperType
_ITEMS = {tuple, list, dict, set, frozenset, collections.OrderedDict}
_VALUES = {int, float, complex, str, bytes}
# Code with such names may read anything, so that nothing is sure about it.
_ANYTHING = frozenset(
    "__annotations__ __builtins__ __closure__ __doc__ __subclasses__ get_type_hints"
    " __closure__ __dict__ __getattribute__ __globals__ __import__ _getframe"
    " attrgetter cell_contents currentframe environ eval exec f_globals f_locals"
    " get_objects getattr getenv getattr_static globals import_module itemgetter locals"
    " methodcaller modules open vars".split()
)
# Written by Python, or without effect on values.
_ASIDE = {
    "__abstractmethods__", "__annotate_func__", "__annotations__",
    "__annotations_cache__", "__conditional_annotations__", "__dataclass_fields__",
    "__dataclass_params__", "__dict__", "__doc__", "__firstlineno__",
    "__match_args__", "__module__", "__orig_bases__", "__parameters__", "__slots__",
    "__static_attributes__", "__weakref__", "_abc_impl",
}  # fmt: skip


class Unsure(Exception):
    """A value that is not understood, with the names that lead to it."""

    def __init__(self, value: Any, at: "_At"):
        path, kind = _path(at), type(value)
        self.path, self.kind = path, f"{kind.__module__}.{kind.__qualname__}"
        super().__init__(f"{path}: {self.kind}")


class Record(NamedTuple):
    """A reading for disk: a digest, and a text of each part that is short."""

    digest: str
    parts: dict[str, str]


_At = Any  # None, or a pair of the place above and a name


def seen_by(fn: Any, x: Any = None, args: Iterable[Any] = ()) -> list[Any]:
    """Return a reading that equals a later one only if nothing has changed.

    `args` are the arrays of `x`, which do not count: they are arguments. Without `fn`
    the names that code will read from modules in `x` are unknown.
    """
    reading = _Memory()
    try:
        reading.add(fn, None)
        reading.args = {id(each) for each in args if can_be_traced(each)}
        reading.add(x, None)
        reading.settle(fn is not None)
    except RecursionError as error:
        raise Unsure(fn, None) from error
    return reading.found


def record_of(x: Any, most: int = 64) -> Record:
    """Return a reading for disk, with at most so many parts as texts."""
    reading = _Disk()
    reading.add(x, None)
    reading.settle()
    texts = [f"{_path(at)} {text}" for at, text in reading.found]
    short = (
        (_path(at), re.sub(r"#(\w{8})\w{24}$", r"#\1", text))
        for at, text in reading.found
        if at and at[-1] not in ("key", "class") and len(text) < 90
    )
    return Record(digest("\n".join(texts)), dict(it.islice(short, most)))


def differences(was: dict[str, str], now: dict[str, str]) -> list[str]:
    """Return how the parts of two records differ."""
    return [
        f"`{name}` {was.get(name, 'absent')} in the store, now "
        f"{now.get(name, 'absent')}"
        for name in {**was, **now}
        if was.get(name) != now.get(name)
    ]


class _Reading:
    """A walk over values; subclasses say what is found, and how objects count."""

    def __init__(self) -> None:
        self.found: list[Any] = []
        self._seen: dict[int, tuple[int, Any]] = {}
        self._modules: dict[int, types.ModuleType] = {}
        self._names: dict[str, None] = {}

    def plain(self, x: Any, at: _At) -> None:
        raise NotImplementedError

    def fixed(self, x: Any, at: _At) -> None:
        """Note an object that does not change, or only in ways noted beside."""
        raise NotImplementedError

    def array(self, x: Any, at: _At) -> None:
        raise NotImplementedError

    def code(self, x: types.CodeType, at: _At) -> None:
        raise NotImplementedError

    def is_argument(self, x: Any) -> bool:
        return False

    def in_order(self, items: list[Any]) -> list[Any]:
        return items

    def add(self, x: Any, at: _At) -> None:
        """Add a value, and all that it holds."""
        kind = type(x)
        if kind in _PLAIN:
            self.plain(x, at)
        elif issubclass(kind, np.generic) and kind is not np.void and kind is not np.object_:
            self.plain(x, at)
        elif not self.is_argument(x):
            known = self._seen.get(id(x))
            if known is None:
                self._seen[id(x)] = len(self._seen), x
                self._new(x, kind, at)
            else:
                self.plain(("seen", known[0]), at)

    def _new(self, x: Any, kind: type, at: _At) -> None:
        if kind is types.FunctionType:
            self._function(x, at)
        elif isinstance(x, (jax.Array, np.ndarray)):
            if isinstance(x, Tracer):
                raise Unsure(x, at)
            self.array(x, at)
        elif issubclass(kind, type):
            self._class(x, at)
        elif issubclass(kind, types.ModuleType):
            self.module(x, at)
        elif kind is types.MethodType:
            self.add(x.__func__, at)
            self.add(x.__self__, (at, "self"))
        elif issubclass(kind, _BOUND):
            owner = x.__self__
            self.plain(x.__name__, at)
            if owner is None or isinstance(owner, (types.ModuleType, type)):
                self.fixed(x, at)
            else:
                self.add(owner, (at, "self"))
        elif kind in (staticmethod, classmethod):
            self.add(x.__func__, at)
        elif kind is property:
            self.add(x.fget, at)
        elif issubclass(kind, ft.partial):
            self.plain("partial", at)
            self.add(x.func, at)
            self._items(x.args, at)
            self._pairs(x.keywords, at)
            self._state(x, ft.partial, at)
        elif kind is JITTED:
            if not hasattr(x, "__wrapped__"):  # it was unpickled
                raise Unsure(x, at)
            self.fixed(x, at)
            self.add(x.__wrapped__, at)
        elif kind is types.MappingProxyType:
            self._pairs(dict(x), at)
        elif kind is jtu.PyTreeDef:
            self.add((x.node_data(), *x.children()), at)
        elif kind is weakref.ref:
            self.add(x(), at)
        elif issubclass(kind, Opaque):
            self.add(x.values, at)
        elif kind is types.GenericAlias:
            self.add((x.__origin__, x.__args__), at)
        elif kind is slice:
            self.add((x.start, x.stop, x.step), at)
        elif kind is types.SimpleNamespace:
            self.plain("namespace", at)
            self._pairs(vars(x), at)
        elif issubclass(kind, _FIXED):
            self.fixed(x, at)
        else:
            self._object(x, kind, at)

    def _object(self, x: Any, kind: type, at: _At) -> None:
        """Add an object by its class, its attributes, and its items."""
        base = _built_in(kind)
        if base in _VALUES:
            self.plain(base(x) if base is not str else str.__str__(x), at)
        elif base in (dict, collections.OrderedDict):
            self._pairs(x, at, base)
        elif base in (tuple, list):
            self._items(x, at, base)
        elif base in (set, frozenset):
            items = [*base.__iter__(x)]
            if not all(type(item) in _PLAIN for item in items):
                raise Unsure(x, at)
            self._items(self.in_order(items), at, list)
        elif base is not object:
            raise Unsure(x, at)
        if kind is not base:
            self._state(x, base, at)
        self.add(kind, (at, "class"))

    def _state(self, x: Any, base: type, at: _At) -> None:
        """Add the attributes of an object, except for those of its class."""
        try:
            held = object.__getattribute__(x, "__dict__")
        except AttributeError:
            held = {}
        if type(held) is not dict:
            raise Unsure(x, at)
        derived = _derived(type(x))
        self._pairs({k: v for k, v in held.items() if k not in derived}, at)
        for cls in type(x).__mro__[: type(x).__mro__.index(base)]:
            for name, slot in _slots(cls):
                try:
                    self.add(slot.__get__(x), (at, name))
                except AttributeError:
                    self.plain(name, (at, "without"))

    def _items(self, x: Any, at: _At, base: type = tuple) -> None:
        self.plain(len(x), at)
        for i, value in enumerate(base.__iter__(x)):
            self.add(value, (at, i))

    def _pairs(self, x: dict[Any, Any], at: _At, base: type = dict) -> None:
        self.plain(base.__len__(x), at)
        for name, value in base.items(x):
            self.add(name, (at, "key"))
            self.add(value, (at, name if type(name) is str else "item"))

    def _class(self, x: type, at: _At) -> None:
        self.fixed(x, at)
        for base in _of_users(x):
            if base not in x.__mro__:
                self.add(base, (at, "metaclass"))
                continue
            self.fixed(base, at)
            self.plain(f"{base.__qualname__} {base.__name__}", at)
            for name, value in [*vars(base).items()]:
                if name not in _ASIDE:
                    self.add(value, (at, name))

    def _function(self, x: types.FunctionType, at: _At) -> None:
        code = x.__code__
        self.function(x, at)
        for name, value in {**cells(x), **defaults(x)}.items():
            self.add(value, (at, name))
        if is_library(code.co_filename):
            if "__wrapped__" in x.__dict__:
                self.add(x.__wrapped__, at)
            return
        self._pairs(x.__dict__, at)
        scope = x.__globals__
        for name in sorted(global_names(code)):
            if name in scope:
                self.add(scope[name], (at, name))
            elif name in vars(builtins):
                self.add(vars(builtins)[name], (at, name))
        self._names |= dict.fromkeys(code_names(code))
        for name in imported(code, str(scope.get("__package__") or "")):
            if name in sys.modules:
                self.module(sys.modules[name], (at, name))

    def function(self, x: types.FunctionType, at: _At) -> None:
        raise NotImplementedError

    def module(self, x: types.ModuleType, at: _At) -> None:
        self.fixed(x, at)
        if not is_library_of(x) and ("__getattr__" in vars(x) or type(x) is not _MODULE):
            raise Unsure(x, at)
        self._modules[id(x)] = x

    def settle(self, known: bool = True) -> None:
        """Add what the names in all code mean in all modules that were found."""
        for module in [] if known else self._modules.values():
            if not is_library_of(module):
                raise Unsure(module, None)
        done = set[tuple[int, str]]()
        size = None
        while size != (size := (len(self._modules), len(self._names))):
            for module in [*self._modules.values()]:
                library = is_library_of(module)
                for name in sorted(self._names.keys() & vars(module).keys()):
                    if (id(module), name) in done:
                        continue
                    done.add((id(module), name))
                    value, at = vars(module)[name], (module.__name__, name)
                    if isinstance(value, types.ModuleType):
                        self.module(value, at)
                    elif library and type(value) not in _PLAIN:
                        self.fixed(value, at)
                    else:
                        self.add(value, at)


_MODULE = types.ModuleType


class _Memory(_Reading):
    def __init__(self):
        super().__init__()
        self.args = set[int]()
        self._inside = False

    def is_argument(self, x: Any) -> bool:
        return not self._inside and id(x) in self.args

    def plain(self, x: Any, at: _At) -> None:
        kind = type(x)
        if kind in (float, complex):  # 0.0 and -0.0 differ, NaNs are equal
            self.found += kind, repr(x)
        else:
            self.found += kind, x.tobytes() if isinstance(x, np.generic) else x

    def fixed(self, x: Any, at: _At) -> None:
        # An address alone may be used again.
        try:
            self.found += id(x), weakref.ref(x)
        except TypeError:
            self.found += id(x), _Held(x)

    def array(self, x: Any, at: _At) -> None:
        if not isinstance(x, jax.Array):
            raise Unsure(x, at)  # it may change in place
        self.fixed(x, at)

    def code(self, x: types.CodeType, at: _At) -> None:
        self.fixed(x, at)

    def function(self, x: types.FunctionType, at: _At) -> None:
        library = is_library(x.__code__.co_filename)
        if not library and not _ANYTHING.isdisjoint(code_names(x.__code__)):
            raise Unsure(x, at)
        self.fixed(x, at)
        self.fixed(x.__code__, at)
        self.found += x.__name__, x.__qualname__

    def _function(self, x: types.FunctionType, at: _At) -> None:
        before, self._inside = self._inside, True
        super()._function(x, at)
        self._inside = before

    def _class(self, x: type, at: _At) -> None:
        before, self._inside = self._inside, True
        super()._class(x, at)
        self._inside = before


class _Held:
    """An object compared by identity, and kept alive."""

    def __init__(self, x: Any):
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held) and other.x is self.x

    __hash__ = None


class _Disk(_Reading):
    def in_order(self, items: list[Any]) -> list[Any]:
        # The order of a set of texts differs from process to process.
        return sorted(items, key=lambda v: (type(v).__name__, repr(v)))

    def plain(self, x: Any, at: _At) -> None:
        self.found.append((at, repr(x)))

    def fixed(self, x: Any, at: _At) -> None:
        if isinstance(x, types.CodeType):
            self.code(x, at)
            return
        known = x if hasattr(x, "__qualname__") else type(x)
        name = getattr(x, "__name__", "") if isinstance(x, _MODULE) else known.__qualname__
        text = repr(x) if isinstance(x, (np.dtype, np.ufunc)) else name
        self.found.append((at, f"{getattr(x, '__module__', None)}.{text}"))

    def array(self, x: Any, at: _At) -> None:
        if not getattr(x, "is_fully_addressable", True) or x.dtype == object:
            raise Unsure(x, at)
        data = np.asarray(as_data(x))
        shown = f"{data.tolist()} " if data.size <= 4 else ""
        kind = "numpy " * isinstance(x, np.ndarray)
        self.found.append((at, f"{shown}{kind}{array_text(x)}"))

    def code(self, x: types.CodeType, at: _At) -> None:
        self.found.append((at, code_text(x)))

    def function(self, x: types.FunctionType, at: _At) -> None:
        code = x.__code__
        if is_library(code.co_filename):
            self.found.append((at, f"{x.__module__}.{x.__qualname__}"))
        else:
            self.found.append((at, f"code {digest(code_text(code))[:8]}"))
            for name, value in _constants(code):
                self.found.append(((at, name), value))


def _constants(code: types.CodeType) -> list[tuple[str, str]]:
    """Return the numbers in code, for messages: they have no name."""
    numbers = [c for c in code.co_consts if type(c) in (int, float, complex, bool)]
    return [("numbers", str(numbers))] if numbers else []


@ft.lru_cache(1024)
def code_text(code: types.CodeType) -> str:
    """Return code as a text that is the same in every process."""
    consts = map(_constant, code.co_consts)
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount
    flags = code.co_flags, code.co_exceptiontable.hex()
    return f"{code.co_code.hex()} {names} {counts} {flags} {[*consts]}"


def _constant(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return code_text(value)
    if isinstance(value, frozenset):
        return f"frozenset{sorted(map(_constant, value))}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant, value))})"
    return repr(value)


@ft.lru_cache(1024)
def imported(code: types.CodeType, package: str) -> tuple[str, ...]:
    """Return the names that modules which code itself imports may have."""
    names = code_names(code)
    parts = package.split(".")
    above = [".".join(parts[:n]) for n in range(1, len(parts) + 1) if parts[0]]
    return (*names, *(f"{p}.{name}" for p in above for name in names))


@ft.lru_cache(4096)
def _built_in(cls: type) -> type | None:
    """Return the built-in class that a Python class extends; `None` if it hides state."""
    base: type = object
    size = 0
    for each in cls.__mro__:
        if not each.__flags__ & 1 << 9:
            base = each
            break
        size += 8 * sum(
            type(slot) is types.MemberDescriptorType for slot in vars(each).values()
        )
    known = base in _ITEMS or base in _VALUES or base is object
    visible = cls.__basicsize__ <= base.__basicsize__ + size
    return base if known and visible else None


@ft.lru_cache(4096)
def _slots(cls: type) -> tuple[tuple[str, Any], ...]:
    member = types.MemberDescriptorType
    return tuple(each for each in vars(cls).items() if type(each[1]) is member)


@ft.lru_cache(4096)
def _derived(cls: type) -> frozenset[str]:
    """Return the attributes that a library computes from the others, once."""
    return frozenset(
        name
        for base in cls.__mro__
        if is_library_of(base)
        for name, value in vars(base).items()
        if isinstance(value, ft.cached_property)
    )


_KNOWN = frozenset(
    "absl beartype chex diffrax equinox jax jaxlib jaxtyping lineax ml_dtypes numpy"
    " optax optimistix scipy typeguard typing_extensions wadler_lindig".split()
)
"""The packages whose functions read nothing that users change. Others count as code."""


@ft.lru_cache(4096)
def is_library(filename: str) -> bool:
    """Return whether a file belongs to Python, or to a package that counts as fixed."""
    if not is_installed(filename):
        return False
    _, found, rest = filename.replace("\\", "/").rpartition("-packages/")
    return not found or rest.split("/")[0].removesuffix(".py") in _KNOWN


@ft.lru_cache(4096)
def _of_users(cls: type) -> tuple[type, ...]:
    """Return the class, its bases and its metaclass, but not those of libraries."""
    return tuple(each for each in (type(cls), *cls.__mro__) if not is_library_of(each))


def is_library_of(x: type | types.ModuleType) -> bool:
    """Return whether a class or module belongs to Python or an installed package."""
    name = x.__module__ if isinstance(x, type) else x.__name__
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)  # `None` in a notebook, or if built in
    return name in sys.builtin_module_names or file is not None and is_library(file)


def _path(at: _At) -> str:
    names = []
    while isinstance(at, tuple):
        at, name = at
        names.append(str(name))
    return ".".join([*([at] if at else []), *reversed(names)])
