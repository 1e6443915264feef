"""Values that a callable holds outside any pytree: closure cells, globals, partials."""

import dis
import functools as ft
import sysconfig
import types
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu

JITTED = type(jax.jit(lambda: None))


def has_function(node: object) -> bool:
    """Return whether a pytree holds a function in its structure, not as a leaf."""
    return _wraps(type(node))


@ft.lru_cache(1024)
def _wraps(cls: type) -> bool:
    module = issubclass(cls, eqx.Module)
    return cls is jtu.Partial or module and hasattr(cls, "__wrapped__")  # `filter_jit`


def named(fn: object) -> Any:
    """Return what has the name and text of a callable: a function or a class."""
    while isinstance(fn, ft.partial):
        fn = fn.func
    return fn if hasattr(fn, "__name__") else type(fn)


def contents(fn: object) -> Iterator[tuple[str, str, Any]]:
    """Yield the kind, name and value of everything that a callable holds directly."""
    if isinstance(fn, ft.partial):
        for i, value in enumerate(fn.args):
            yield "partial argument", str(i), value
        for name, value in fn.keywords.items():
            yield "partial argument", name, value
        yield "", "func", fn.func
    elif isinstance(fn, types.MethodType):
        yield "", "__self__", fn.__self__
        yield from contents(fn.__func__)
    elif isinstance(fn, types.FunctionType):
        yield from _of_function(fn)
    else:  # `jax.jit(f)`
        yield "", "__wrapped__", getattr(fn, "__wrapped__", None)


def _of_function(fn: types.FunctionType) -> Iterator[tuple[str, str, Any]]:
    wrapped = fn.__dict__.get("__wrapped__")
    if wrapped is not None:
        yield "", "__wrapped__", wrapped
    for name, value in cells(fn).items():
        yield "closure cell", name, value
    for name, value in defaults(fn).items():
        yield "default", name, value
    if not is_library(fn.__code__.co_filename):
        yield from _globals(fn)


def cells(fn: object) -> dict[str, Any]:
    """Return the closed-over values of a Python function by name; `{}` for others."""
    contents_by_name = {}
    names = getattr(getattr(fn, "__code__", None), "co_freevars", ())
    # Not strict: an object with `__code__` need not be a function with cells.
    for name, cell in zip(names, getattr(fn, "__closure__", None) or (), strict=False):
        try:
            contents_by_name[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return contents_by_name


def defaults(fn: types.FunctionType) -> dict[str, Any]:
    """Return the defaults of a function's parameters, by name."""
    values = fn.__defaults__ or ()
    code = fn.__code__
    named = code.co_varnames[code.co_argcount - len(values) : code.co_argcount]
    return {**dict(zip(named, values, strict=True)), **(fn.__kwdefaults__ or {})}


def _globals(fn: types.FunctionType) -> Iterator[tuple[str, str, Any]]:
    for name in code_names(fn.__code__):
        value = fn.__globals__.get(name)
        # An attribute of a module may take an import.
        if isinstance(value, types.ModuleType | types.NoneType):
            continue
        if name in global_names(fn.__code__):
            yield "global", name, value


@ft.lru_cache(1024)
def code_names(code: types.CodeType) -> tuple[str, ...]:
    """Return the names that code, including nested code, looks up."""
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return tuple(dict.fromkeys(code.co_names + sum(map(code_names, inner), ())))


@ft.lru_cache(1024)
def global_names(code: types.CodeType) -> frozenset[str]:
    """Return the names read as globals; for `a.b` this is `a`, not `b`."""
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    loads = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
    read = [i.argval for i in dis.get_instructions(code) if i.opname in loads]
    return frozenset(read).union(*map(global_names, inner))


_PLACES = (
    *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")),
    # This package, which may be an editable install, outside site-packages.
    __file__.rpartition("_captured")[0],
    # Standard library modules that are built into the interpreter.
    "<frozen ",
)


@ft.lru_cache(4096)
def is_library(filename: str) -> bool:
    """Return whether a file belongs to Python, an installed package or this one."""
    installed = "site-packages" in filename or "dist-packages" in filename
    return installed or filename.startswith(_PLACES)
