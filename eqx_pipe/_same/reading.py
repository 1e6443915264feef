"""The reading of a value: what must be the same, in memory and on disk.

A reading of a value lists everything that it holds, and that its functions can reach by
name: code, closures, defaults, globals, attributes of modules and classes, items and
attributes of objects. It knows a short list of kinds. For anything else it raises
`Unsure`: what is not understood counts as changed.

In memory (`seen_by`), arrays and functions count by identity, and what may change in
place by its contents. On disk (`record_of`), a reading is the same in every process:
arrays count by their bits, functions by their code, and a short text of each part says
later what has changed. For a program that calls Python when it runs (`live_key`), what
may change in place counts by identity alone, since the program holds it. For a law
(`named_parts`), each part has a name, and what is not understood counts by identity.

Installed packages count as fixed, apart from names in their modules. No reading sees
what code finds by text or outside of Python: `getattr(x, name)`, files, time.
"""

import abc
import collections
import functools as ft
import itertools as it
import logging
import pathlib
import re
import sys
import types
import typing
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Set
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.extend
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer

from .._cache import WeakCache
from .._captured import JITTED, cells, defaults
from .._tree import Opaque, Same, as_data, can_be_traced
from .._types import ClosedJaxpr
from .code import (
    Names,
    array_text,
    code_text,
    digest,
    is_fixed_file,
    names_of,
)

_PLAIN = {bool, int, float, complex, str, bytes, range, type(None), type(...)}
_MODULE = types.ModuleType
_JAXPRS = ClosedJaxpr, jax.extend.core.Jaxpr
_DESCRIPTORS = "GetSet Member Method ClassMethod Wrapper"
_FIXED = (
    np.dtype, jax.Device, jax.sharding.Sharding, jax.sharding.Mesh,
    typing.TypeVar, typing.ParamSpec, types.UnionType,
    type(NotImplemented), type(vars(collections.namedtuple("_", "x"))["x"]),
    *(getattr(types, f"{name}DescriptorType") for name in _DESCRIPTORS.split()),
)  # fmt: skip
"""Kinds of objects that never change."""
_PARTS: dict[type, Callable[[Any], Any]] = {
    staticmethod: lambda x: [x.__func__],
    classmethod: lambda x: [x.__func__],
    property: lambda x: [x.fget, x.fset, x.fdel],
    ft.cached_property: lambda x: [x.func],
    types.MappingProxyType: lambda x: [dict(x)],
    types.SimpleNamespace: lambda x: [vars(x)],
    types.GenericAlias: lambda x: [x.__origin__, x.__args__],
    types.CellType: lambda x: [x.cell_contents],
    jtu.PyTreeDef: lambda x: [x.node_data(), *x.children()],
    weakref.ref: lambda x: [x()],
    slice: lambda x: [x.start, x.stop, x.step],
    collections.deque: lambda x: [x.maxlen, [*x]],
    bytearray: lambda x: [bytes(x)],
    logging.Logger: lambda x: [x.name],  # its handlers change no value
    pathlib.PurePosixPath: lambda x: [str(x)],
    pathlib.PureWindowsPath: lambda x: [str(x)],
    type(pathlib.Path()): lambda x: [str(x)],
    Opaque: lambda x: [x.values],  # hidden from JAX
}
"""The parts of objects of built-in classes."""
_EXACT: dict[type, str] = {
    # Its code, and all that the code can reach by name.
    types.FunctionType: "_function",
    # Python code and the object that it is bound to.
    types.MethodType: "_method",
    # The function that it compiles.
    JITTED: "_jitted",
    # Nothing but its parts. A subclass may have more.
    **dict.fromkeys(_PARTS, "_parts"),
}
"""The method of `_Reading` that reads objects of exactly this class."""
_KINDS: dict[type, str] = {
    # By identity in memory, since JAX's never change; by its values on disk.
    jax.Array: "array",
    Tracer: "array",
    np.ndarray: "array",
    # Its value changes in place.
    jax.Ref: "unknown",
    # Its attributes, and those of its bases.
    type: "of_class",
    # What the names in all code mean in it.
    _MODULE: "_module",
    # A function or method in C: what it is bound to.
    types.BuiltinFunctionType: "_bound",
    types.MethodWrapperType: "_bound",
    # Its slots hide the function and the arguments.
    ft.partial: "_object",
    # A program, and the arrays that it closes over.
    **dict.fromkeys(_JAXPRS, "_jaxpr"),
    # A compiled loop, unless it hides a function of Python.
    np.ufunc: "_ufunc",
    # Itself.
    **dict.fromkeys(_FIXED, "fixed"),
    # Everything else by its class, its attributes, and its items.
    object: "_object",
}
"""The method that reads objects of this class or a subclass; the first base counts."""
_WITH_ITEMS = {tuple, list, dict, set, frozenset, collections.OrderedDict}
_CONTENTS = _PLAIN | _WITH_ITEMS
# How the value of a number or text of a subclass is read, whatever the subclass says.
_VALUES: dict[type, Callable[[Any], Any]] = {
    int: int.__int__,
    float: float.__float__,
    complex: complex.__complex__,
    str: str.__str__,
    bytes: bytes.__bytes__,
}
# Code that uses such a name, or the object of this name, may read anything.
_ANYTHING = frozenset(
    "Decimal __annotations__ __builtins__ __closure__ __code__ __dataclass_fields__"
    " __dict__ __doc__ __getattribute__ __globals__ __import__ __subclasses__ _getframe"
    " cell_contents currentframe decimal environ eval exec f_back f_globals f_locals"
    " format_map get_objects get_referrers getclosurevars getenv getmembers"
    " get_type_hints globals import_module inspect locals metadata modules open reload"
    " vars".split()
)
# These read attributes by text: all those of objects are known, and none of modules.
_BY_TEXT = frozenset(
    "getattr hasattr dir attrgetter methodcaller getattr_static format".split()
)
# Written by Python, or without effect on values.
_ASIDE = frozenset(
    "__abstractclassvars__ __abstractmethods__ __abstractvars__ __annotate_func__"
    " __annotations__ __annotations_cache__"
    " __conditional_annotations__ __dataclass_fields__ __dataclass_params__ __dict__"
    " __doc__ __firstlineno__ __module__ __orig_bases__ __parameters__"
    " __static_attributes__ __type_params__ __weakref__ _abc_impl".split()
)
# A pytree whose class has such an attribute is flattened by it, or by its fields.
_FLATTENED = "tree_flatten", "tree_flatten_with_keys", "__dataclass_fields__"
_OF_JIT = frozenset(vars(jax.jit(lambda: None)))
_NUMBERS = "<numbers>"


class Unsure(Exception):
    """A value that is not understood, with the names that lead to it."""

    def __init__(self, value: Any, at: "_At"):
        path, kind = _path(at), type(value)
        self.path, self.kind = path, f"{kind.__module__}.{kind.__qualname__}"
        super().__init__(f"`{path}`, a `{self.kind}`" if path else f"a `{self.kind}`")


class Record(NamedTuple):
    """A reading for disk: a digest, a text of each part that is short, and what failed.

    `unsure` is the first part that is not understood, and then the digest is useless.
    """

    digest: str
    parts: dict[str, str]
    unsure: str


_At = Any  # None, or a pair of the place above and a name


def seen_by(fn: Any, x: Any = None, args: Iterable[Any] = ()) -> list[Any]:
    """Return a reading that equals a later one only if nothing has changed.

    `args` are the arrays of `x`, which do not count: they are arguments. Without `fn`
    the names that code will read from modules in `x` are unknown.
    """
    reading = _Memory()
    if fn is not None:
        reading.read(fn, None)
    reading.args = {id(each) for each in args if can_be_traced(each)}
    reading.read(x, None, is_code_known=fn is not None)
    return reading.found


def _attributes(x: Any) -> Mapping[str, Any]:
    """Return the `__dict__` of an object, a view for a class; `{}` if it has none."""
    try:
        return object.__getattribute__(x, "__dict__")
    except AttributeError:
        return {}


def live_key(fn: Any) -> Hashable:
    """Return a key of a function that a program calls when it runs.

    The program holds the function, so lists and objects count by identity.
    """
    reading = _Live()
    reading.add(fn, None)
    return tuple(reading.found)


def record_of(x: Any, contents: bool = True) -> Record:
    """Return a reading for disk; without `contents`, lists and dicts count as empty."""
    reading = _Disk()
    reading.contents = contents
    reading.add(x, None)
    try:
        reading.settle()
    except Unsure as error:
        reading.unsure = reading.unsure or str(error)
    short = (
        (_path(at), re.sub(r"#(\w{8})\w{24}$", r"#\1", text))
        for at, text in reading.found
        if len(text) < 90 and not (at and at[-1] in ("key", "class"))
    )
    texts = "\n".join(text for _, text in reading.found)
    return Record(digest(texts), dict(it.islice(short, 64)), reading.unsure)


def named_parts(x: Any) -> dict[str, list[Any]]:
    """Return the parts of a value by the names that lead to them."""
    reading = _Named()
    reading.add(x, None)
    reading.settle(of_users=True)
    parts: dict[str, list[Any]] = {}
    for at, token in reading.found:
        name = _path(at[0] if at and at[1] == "key" else at)
        parts.setdefault(name, []).append(token)
    return parts


def differences(was: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Return how the parts of two records differ, in words; the first few of them."""
    lines = []
    for name in {**was, **now}:
        old, new = was.get(name, "absent"), now.get(name, "absent")
        kinds = [text.partition("#")[0] for text in (old, new)]
        owner, _, last = name.rpartition(".")
        # Other code has other names.
        if old == new or was.get("") != now.get("") and "absent" in (old, new):
            continue
        if last == _NUMBERS:
            of = f"the code of `{owner}`" if owner else "its code"
            lines.append(f"{of} has the numbers {old} in the store, now {new}")
        elif all(text.startswith("code ") for text in kinds):
            lines.append(f"`{name}` has other code" if name else "it has other code")
        elif "#" in old and kinds[0] == kinds[1]:
            lines.append(f"`{name}` ({kinds[0].strip()}) has other values")
        else:
            lines.append(f"`{name}` is {old} in the store, now {new}")
    return "; ".join(lines[:4])


class _Class(NamedTuple):
    """A class with its bases, as they are at the moment."""

    cls: type
    kind: type
    mro: tuple[type, ...]
    reader: str
    is_tree: bool  # a trace takes arrays in it as arguments
    base: type | None  # the built-in class that it extends; None if it hides state
    slots: tuple[tuple[str, Any], ...]
    derived: frozenset[str]  # attributes that are computed from the others, once
    derived_by_users: frozenset[str]
    of_users: tuple[type, ...]


class _Reading(abc.ABC):
    """A walk over values; subclasses say what is found, and how objects count."""

    derives_by_users = False
    args: Set[int] = frozenset()

    def __init__(self) -> None:
        self.found: list[Any] = []
        self.visited: dict[int, tuple[int, Any]] = {}
        self._modules: dict[int, types.ModuleType] = {}
        self._names, self._named_in_code = set[str](), set[str]()
        self._by_text: tuple[Any, _At] | None = None
        self._inside = False  # True within an object that JAX does not flatten

    def read(self, x: Any, at: _At, is_code_known: bool = True) -> None:
        """Add a value, and what its code reads from modules."""
        try:
            self.plain(abc.get_cache_token(), at)  # `isinstance` depends on it
            self.add(x, at)
            self.settle(is_code_known)
        except Unsure:
            raise
        except Exception as error:  # too deep, or of a class that cannot be read
            raise Unsure(x, at) from error

    @abc.abstractmethod
    def plain(self, x: Any, at: _At) -> None: ...

    @abc.abstractmethod
    def scalar(self, x: np.generic, at: _At) -> None: ...

    @abc.abstractmethod
    def fixed(self, x: Any, at: _At) -> None:
        """Note an object that does not change, or only in ways noted beside."""

    @abc.abstractmethod
    def array(self, x: Any, at: _At) -> None: ...

    def check_reader(self, x: Any, at: _At) -> None:
        """Raise if a function of Python may read anything; by default it may."""
        return None

    def is_wrapper(self, x: Any) -> bool:
        """Return whether `x` counts by its identity, and by those of its rules."""
        return False

    def in_order(self, items: list[Any], at: _At) -> list[Any]:
        return items

    def add(self, x: Any, at: _At) -> None:
        """Add a value, and all that it holds."""
        kind = type(x)
        if kind in _PLAIN:
            self.plain(x, at)
        elif issubclass(kind, np.generic) and not x.dtype.hasobject:
            self.scalar(x, at)
        elif (place := id(x)) in self.visited:
            self.plain(("seen", self.visited[place][0]), at)
        elif self._inside or place not in self.args:
            self.visited[place] = len(self.visited), x
            about, inside = _class_of(kind), self._inside
            self._inside = inside or not about.is_tree
            getattr(self, about.reader)(x, at)
            self._inside = inside

    def unknown(self, x: Any, at: _At) -> None:
        raise Unsure(x, at)

    def _method(self, x: types.MethodType, at: _At) -> None:
        self.add(x.__func__, at)
        self.add(x.__self__, (at, "self"))

    def _jitted(self, x: Any, at: _At) -> None:
        if self.is_wrapper(x):
            self._wrapper(x, at)
            return
        self.fixed(x, at)
        self.add(x.__wrapped__, at)  # it has none if it was unpickled: an error
        self._pairs({k: v for k, v in vars(x).items() if k not in _OF_JIT}, at)

    def _wrapper(self, x: Any, at: _At) -> None:
        """Add a wrapped function of a package, whose rules users may set."""
        self.fixed(x, at)
        self.check_reader(x, at)
        for name, value in _attributes(x).items():
            if isinstance(value, types.FunctionType):
                is_fixed = is_fixed_file(value.__code__.co_filename)
                (self.fixed if is_fixed else self.add)(value, (at, name))
            elif value is not x and "__wrapped__" in _attributes(value):
                self._wrapper(value, (at, name))

    def _parts(self, x: Any, at: _At) -> None:
        self.plain(type(x).__name__, (at, "key"))
        for each in _PARTS[type(x)](x):
            self.add(each, at)

    def _jaxpr(self, x: Any, at: _At) -> None:
        self.fixed(x, at)
        self._items(getattr(x, "consts", ()), at, list)

    def _ufunc(self, x: np.ufunc, at: _At) -> None:
        if set("".join(x.types)) <= set("O->"):  # one of `numpy.frompyfunc`
            raise Unsure(x, at)
        self.fixed(x, at)

    def _bound(self, x: Any, at: _At) -> None:
        """Add a function or method that is not written in Python."""
        owner = x.__self__
        self.plain(x.__name__, at)
        self.check_reader(x, at)
        if owner is None or isinstance(owner, _MODULE):
            if owner is not None and not is_library_module(owner):
                raise Unsure(x, at)  # an extension of users may hold anything
            self.fixed(x, at)
        else:
            self.add(owner, (at, "self"))

    def _object(self, x: Any, at: _At) -> None:
        """Add an object by its class, its attributes, and its items."""
        kind = type(x)
        about = _class_of(kind)
        base = about.base
        if base is None:
            raise Unsure(x, at)
        if base is object and not about.of_users and self.is_wrapper(x):
            self._wrapper(x, at)
            return
        # JAX may hold functions that flatten it, which are no attributes of its class.
        if about.of_users and base is object and not jtu.all_leaves([x]):
            if not any(hasattr(kind, name) for name in _FLATTENED):
                raise Unsure(x, at)
        if base in _VALUES:
            self.plain(_VALUES[base](x), at)
        elif base in (dict, collections.OrderedDict):
            self._pairs(x, at, base)
        elif base in (tuple, list):
            self._items(x, at, base)
        elif base in (set, frozenset):
            self._items(self.in_order([*base.__iter__(x)], at), at, list)
        if kind is not base or base is not object and hasattr(x, "__dict__"):
            self._state(x, about, at)
        if about.of_users:
            self.add(kind, (at, "class"))
        else:  # it is known by its name, and does not change
            self.fixed(kind, (at, "class"))
            self.check_reader(kind, at)

    def _state(self, x: Any, about: _Class, at: _At) -> None:
        """Add the attributes of an object, except for those of its class."""
        held, derived = _attributes(x), about.derived
        if self.derives_by_users:
            derived |= about.derived_by_users
        if derived:
            held = {k: v for k, v in held.items() if k not in derived}
        self._pairs(held, at)
        for name, slot in about.slots:
            try:
                self.add(slot.__get__(x), (at, name))
            except AttributeError:
                self.plain(name, (at, "without"))

    def _items(self, x: Any, at: _At, base: type = tuple) -> None:
        self.plain(len(x), at)
        for i, value in enumerate(base.__iter__(x)):
            self.add(value, (at, i))

    def _pairs(self, x: dict[Any, Any], at: _At, base: type = dict) -> None:
        pairs = base.items(x)
        if set(map(type, base.keys(x))) <= {str}:
            self._named(dict(pairs), at)
            return
        self.plain(base.__len__(x), at)
        for name, value in pairs:
            self.add(name, (at, "key"))
            self.add(value, (at, name if type(name) is str else "item"))

    def _named(self, pairs: dict[str, Any], at: _At) -> None:
        """Add values by name."""
        self.plain((*pairs,), (at, "key"))
        for name, value in pairs.items():
            self.add(value, (at, name))

    def of_class(self, x: type, at: _At) -> None:
        """Add a class with its attributes, and those of its bases."""
        self.fixed(x, at)
        self.check_reader(x, at)
        for base in _class_of(x).of_users:
            self.fixed(base, at)
            self.plain(base.__name__, (at, "class"))
            own = vars(base)
            self._named({k: v for k, v in own.items() if k not in _ASIDE}, at)
            for field in own.get("__dataclass_fields__", {}).values():
                if field.metadata:  # it may hold a converter
                    self.add(field.metadata, (at, field.name))

    def _function(self, x: types.FunctionType, at: _At) -> None:
        """Add a function: its code, and all that the code can reach by name."""
        code, scope = x.__code__, x.__globals__
        names = None
        if not is_fixed_file(code.co_filename):
            names = names_of(code, str(scope.get("__package__") or ""))
        self.of_code(x, names, at)
        if code.co_filename.startswith("<@beartype("):
            self.add(x.__dict__.get("__wrapped__"), at)
            return
        self._named(held_by(x), at)
        self._pairs(x.__dict__, at)
        if names is None:
            return
        if not _BY_TEXT.isdisjoint(names.every):
            self._by_text = x, at
        # A name that means nothing yet is missing from the names that are noted.
        places = {n: p for n in names.read for p in (x.__builtins__, scope) if n in p}
        self._named({n: place[n] for n, place in places.items()}, at)
        self._names |= names.every
        self._named_in_code |= names.looked_up
        for name in names.imported:
            if name in sys.modules:
                self.add(sys.modules[name], (at, name))

    @abc.abstractmethod
    def of_code(self, x: types.FunctionType, names: Names | None, at: _At) -> None:
        """Note the code of a function; without `names` it is fixed."""

    def _module(self, x: types.ModuleType, at: _At) -> None:
        is_plain = "__getattr__" not in vars(x) and type(x) is _MODULE
        if not is_plain and not is_library_module(x):
            raise Unsure(x, at)
        self._modules[id(x)] = x

    def settle(self, is_code_known: bool = True, of_users: bool = False) -> None:
        """Add what the names in all code mean in the modules that were found."""
        done = set[tuple[int, str]]()
        size = 0, 0
        while size != (size := (len(self._modules), len(self._names))):
            for module in [*self._modules.values()]:
                library = is_library_module(module)
                if of_users and library:
                    continue
                if not (library or is_code_known):
                    raise Unsure(module, None)
                if not library and self._by_text is not None and not of_users:
                    raise Unsure(*self._by_text)
                names = self._named_in_code if library else self._names
                for name in sorted(names & vars(module).keys()):
                    if (id(module), name) in done:
                        continue
                    done.add((id(module), name))
                    value, at = vars(module)[name], (module.__name__, name)
                    self.plain(name, (at, "key"))
                    known = isinstance(value, _MODULE) or type(value) in _CONTENTS
                    if library and not known:
                        self.fixed(value, at)
                    else:
                        self.add(value, at)


class _Memory(_Reading):
    """A reading that is compared within this process."""

    def check_reader(self, x: Any, at: _At) -> None:
        if x.__name__ in _ANYTHING:
            raise Unsure(x, at)
        if x.__name__ in _BY_TEXT:
            self._by_text = x, at

    def is_wrapper(self, x: Any) -> bool:
        return is_library_wrapper(x)

    def plain(self, x: Any, at: _At) -> None:
        kind = type(x)
        # 0.0 and -0.0 differ, NaNs are equal; equal ranges may have other ends.
        self.found += kind, repr(x) if kind in (float, complex, range) else x

    def scalar(self, x: np.generic, at: _At) -> None:
        self.found += type(x), x.dtype, x.tobytes()

    def fixed(self, x: Any, at: _At) -> None:
        # An address alone may be used again.
        try:
            self.found += id(x), weakref.ref(x)
        except TypeError:
            self.found += id(x), Same(x)

    def array(self, x: Any, at: _At) -> None:
        if not isinstance(x, jax.Array):
            # It may change in place, and JAX converts it once for all traces that live.
            raise Unsure(x, at)
        self.fixed(x, at)

    def of_code(self, x: types.FunctionType, names: Names | None, at: _At) -> None:
        if names is None:
            # `inspect.stack` has the name of `jax.numpy.stack`.
            if x.__module__ == "inspect":
                raise Unsure(x, at)
            self.check_reader(x, at)
        elif not _ANYTHING.isdisjoint(names.every):
            raise Unsure(x, at)
        self.fixed(x.__code__, at)
        self.found += x.__name__, x.__qualname__


class _Live(_Memory):
    """A reading of functions that a program holds, and of what they close over."""

    def fixed(self, x: Any, at: _At) -> None:
        self.found.append(Same(x))

    array = of_class = unknown = fixed
    _jitted = _module = _bound = _jaxpr = _ufunc = fixed

    def _function(self, x: types.FunctionType, at: _At) -> None:
        # Equal code in two modules reads different globals.
        self.found += Same(x.__code__), Same(x.__globals__)
        is_fixed = is_fixed_file(x.__code__.co_filename)
        for value in held_by(x).values():
            # A wrapper of JAX or Equinox does not change its containers.
            if is_fixed and type(value) in _WITH_ITEMS:
                super()._object(value, at)
            else:
                self.add(value, at)

    def _parts(self, x: Any, at: _At) -> None:
        if type(x) is not jtu.PyTreeDef:
            self.fixed(x, at)
            return
        names = x.node_data()
        if names is not None and type(names[1]) is list:  # the keys of a dict
            names = names[0], tuple(names[1])
        self.add((names, *x.children()), at)

    def _object(self, x: Any, at: _At) -> None:
        if isinstance(x, ft.partial):
            self.add((x.func, x.args, *x.keywords.items()), at)
        elif type(x).__module__.startswith("jax._src.ad_checkpoint"):
            # A policy of rematerialisation on JAX 0.10, which compares by its names.
            self.found.append(x)
        elif type(x) is tuple:
            super()._object(x, at)
        else:
            self.fixed(x, at)


class _Disk(_Reading):
    """A reading as texts, each with the place where it was found."""

    contents = True
    unsure = ""

    def add(self, x: Any, at: _At) -> None:
        try:
            super().add(x, at)
        except Exception as error:  # as in `read`
            unsure = error if isinstance(error, Unsure) else Unsure(x, at)
            self.unsure = self.unsure or str(unsure)
            self.found.append((at, self.unknown(x, at)))

    def unknown(self, x: Any, at: _At) -> Any:
        """Return the text of what is not understood, for messages."""
        return type(x).__qualname__

    def in_order(self, items: list[Any], at: _At) -> list[Any]:
        # The order of a set differs from process to process, also that of texts.
        if not all(type(item) in _PLAIN for item in items):
            raise Unsure(set(items), at)
        return sorted(items, key=lambda v: (type(v).__name__, repr(v)))

    def plain(self, x: Any, at: _At) -> None:
        self.found.append((at, repr(x)))

    def scalar(self, x: np.generic, at: _At) -> None:
        self.found.append((at, f"{x!r} {x.dtype}"))

    def fixed(self, x: Any, at: _At) -> None:
        if isinstance(x, type) and not is_library_class(x):
            text = "class"  # its attributes follow
        elif isinstance(x, _JAXPRS):
            text = str(x)
            if " at 0x" in text or "callback" in text:  # it calls Python
                raise Unsure(x, at)
        else:
            known = x if hasattr(x, "__qualname__") else type(x)
            by_text = isinstance(x, (np.dtype, np.ufunc))
            text = repr(x) if by_text else known.__qualname__
            text = f"{getattr(x, '__module__', None)}.{text}"
        self.found.append((at, text))

    def array(self, x: Any, at: _At) -> None:
        is_whole = getattr(x, "is_fully_addressable", True)
        is_known = isinstance(x, jax.Array) or type(x) is np.ndarray
        if not (is_whole and is_known) or getattr(x.dtype, "hasobject", False):
            raise Unsure(x, at)
        data = np.asarray(as_data(x))
        shown = f"{data.tolist()} " if data.size <= 4 else ""
        kind = "numpy " * isinstance(x, np.ndarray)
        self.found.append((at, f"{shown}{kind}{array_text(x)}"))

    def of_code(self, x: types.FunctionType, names: Names | None, at: _At) -> None:
        code = x.__code__
        if names is None:
            self.found.append((at, f"{x.__module__}.{x.__qualname__}"))
        else:
            self.found.append((at, f"code {digest(code_text(code))[:8]}"))
            numbers = [c for c in code.co_consts if type(c) in (int, float, complex)]
            if numbers:  # for messages: they have no name
                self.found.append(((at, _NUMBERS), str(numbers)))

    def _object(self, x: Any, at: _At) -> None:
        if self.contents or type(x) not in _WITH_ITEMS - {tuple}:
            super()._object(x, at)


def held_by(fn: types.FunctionType) -> dict[str, Any]:
    """Return the values that a function closes over, and its defaults, by name."""
    held = {**cells(fn), **defaults(fn)}
    if fn.__module__ == "equinox._errors":
        held.pop("stack", None)  # frames, where `error_if` was called
    return held


class _Named(_Disk):
    """A reading for this process: what is not understood counts by identity."""

    derives_by_users = True

    def array(self, x: Any, at: _At) -> None:
        is_known = type(x) is np.ndarray and not x.dtype.hasobject
        self.found.append((at, array_text(x) if is_known else Same(x)))

    def unknown(self, x: Any, at: _At) -> Any:
        return Same(x)


_classes: dict[int, _Class] = {}


def _class_of(cls: type) -> _Class:
    """Return what is known about a class, which may get other bases."""
    about = _classes.get(id(cls))
    if about is not None and about.cls is cls and about.mro is cls.__mro__:
        if about.kind is type(cls):
            return about
    if len(_classes) > 1024:  # it holds them
        _classes.clear()
    base: type = object
    size, is_known = 0, True
    derived, derived_by_users = set[str](), set[str]()
    slots = list[tuple[str, Any]]()
    for each in cls.__mro__:
        if not each.__flags__ & 1 << 9:  # it is written in C, and not for users
            base = each
            break
        own = vars(each)
        members = [pair for pair in own.items() if type(pair[1]) is _MEMBER]
        # A class in C may have addresses besides.
        slots += [pair for pair in members if pair[0] not in _OFFSETS]
        size += 8 * len(members)
        is_known &= type(own.get("__dict__")) in (type(None), _GETSET)
        names = derived if is_library_class(each) else derived_by_users
        names |= {k for k, v in own.items() if isinstance(v, ft.cached_property)}
    is_known &= base in _WITH_ITEMS or base in _VALUES or base is object
    size += 8 * (cls.__weakrefoffset__ > 0 and not base.__weakrefoffset__)
    size += 8 * (cls.__dictoffset__ > 0 or cls.__dictoffset__ == -8)
    # Any more bytes are state that Python code cannot see.
    is_known &= cls.__basicsize__ <= base.__basicsize__ + size
    if ft.partial in cls.__mro__:
        base, is_known = ft.partial, True
    readers = (_KINDS[each] for each in cls.__mro__ if each in _KINDS)
    about = _Class(
        cls=cls,
        kind=type(cls),
        mro=cls.__mro__,
        reader=_EXACT.get(cls) or next(readers),
        is_tree=cls in _WITH_ITEMS or issubclass(cls, eqx.Module | tuple),
        base=base if is_known else None,
        slots=(*slots,),
        derived=frozenset(derived),
        derived_by_users=frozenset(derived_by_users),
        of_users=tuple(c for c in (type(cls), *cls.__mro__) if not is_library_class(c)),
    )
    _classes[id(cls)] = about
    return about


_OFFSETS = "__dictoffset__", "__vectorcalloffset__", "__weaklistoffset__"
_MEMBER, _GETSET = types.MemberDescriptorType, types.GetSetDescriptorType
_known_library: WeakCache[bool] = WeakCache()


def is_library_class(cls: type) -> bool:
    """Return whether a class belongs to Python or an installed package."""
    known = _known_library.get(cls)
    if known is None:
        module = sys.modules.get(cls.__module__)
        known = not cls.__flags__ & 1 << 9
        if not known and module is not None and is_library_module(module):
            # A class that a library makes for users is not found in its module.
            known = _found_in(module, cls.__qualname__) is cls
        _known_library.put(cls, known)
    return known


def is_library_wrapper(x: Any) -> bool:
    """Return whether `x` wraps a function of a package, as `jax.nn.relu` does."""
    inner, depth = x, 0
    while "__wrapped__" in (own := _attributes(inner)) and depth < 9:
        inner, depth = own["__wrapped__"], depth + 1
    module = sys.modules.get(getattr(inner, "__module__", "")) if depth else None
    if module is None or not is_library_module(module):
        return False
    # One that users make of the same function is not found in the module.
    return _found_in(module, getattr(inner, "__qualname__", "")) is x


def _found_in(module: types.ModuleType, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    return found


def is_library_module(x: types.ModuleType) -> bool:
    """Return whether a module belongs to Python or an installed package."""
    name = x.__name__
    if name in sys.builtin_module_names:
        return sys.modules.get(name) is x
    file = vars(x).get("__file__")  # `None` in a notebook
    return file is not None and is_fixed_file(file) and sys.modules.get(name) is x


def _path(at: _At) -> str:
    names = []
    while isinstance(at, tuple):
        at, name = at
        names.append(str(name))
    return ".".join([*([at] if at else []), *reversed(names)])
