"""The law that a function depends only on its arguments, and changes nothing.

`held` finds the values that a function could write to: fields, attributes, closures,
globals. It searches containers, modules (`equinox.Module`) and functions, but no
objects and functions of other libraries, since these may have caches:
`functools.cache`, `functools.cached_property` and `jax.jit` are not hidden state. A
library is any package other than that of the stage. JAX arrays, and values that are not
searched, are compared by identity.
"""

import collections
import functools as ft
import hashlib
import operator
import sys
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np

from ..._captured import code_names, contents
from ..._stage import Lift
from ..._tree import Same
from .law import FIRST_ONLY, Broken, Undecided, agree, law, must_hold, must_work

if TYPE_CHECKING:
    from .trial import Trial

_LIBRARIES = {"jax", "jaxlib", "equinox", "numpy", "jaxtyping", "beartype", "eqx_pipe"}
_LIBRARIES |= sys.stdlib_module_names
_PLAIN = bool | int | float | complex | str | bytes | type(None)
_CLOSED = np.ndarray | jax.Array | set | frozenset | types.ModuleType
_DEEPEST = 8
_LONG = 1000  # in containers with more entries, only identities are compared


@law("pure", "the same arguments give the same bits, and a call changes nothing.")
def pure_law(trial: "Trial") -> None:
    for name, tree in {**trial.call.args, "fn": trial.call.fn}.items():
        leaves, structure = jtu.tree_flatten(tree)
        again = jtu.tree_leaves(jtu.tree_unflatten(structure, leaves))
        if all(map(operator.is_, again, leaves)):
            continue
        how = f"flattening and unflattening a `{type(tree).__name__}` changes it"
        with must_hold(how, name):
            agree(again, leaves, ("afterwards", "before"))
    # The function was traced before: a tracer that it left in a cache fails now.
    with must_work("a call after a trace"):
        first = trial.plain
    with must_work("reading the arguments after a call"):  # fails if one was donated
        _changed_nothing(trial)
    if trial.is_compiled:
        raise Undecided(FIRST_ONLY)
    again, _ = trial.again
    agree(again, first, ("the second time", "the first time"))
    _changed_nothing(trial)


def _changed_nothing(trial: "Trial") -> None:
    """Raise `Broken` if the calls changed an argument or the function."""
    with must_hold("a call changed its arguments"):
        agree(trial.passed, trial.call.args, ("after the call", "before"))
    for name in trial.changed():
        raise Broken(
            f"a call changed `fn{name}`; return what later calls need, or keep it in "
            "an `equinox.nn.State` (a cache: `functools.cache`)"
        )


def held(stage: Any) -> dict[str, Any]:
    """Return a comparable token, by name, for each value that a stage holds."""
    found: dict[str, Any] = {}
    seen: dict[int, Any] = {}
    stage = stage.fn if isinstance(stage, Lift) else stage
    queue = collections.deque([("", stage, _package(stage), 0)])
    while queue:
        name, value, package, depth = queue.popleft()
        if id(value) in seen and not isinstance(value, _PLAIN):
            continue
        seen[id(value)] = value
        found[name] = _token(value)
        if depth < _DEEPEST:
            for part, inner in _parts(value, package):
                # A stage inside a pipeline has its own package.
                own = package or _package(inner)
                queue.append((f"{name}{part}", inner, own, depth + 1))
    # Each program depends on the configuration.
    config = {k: _token(v) for k, v in jax.config.values.items()}  # type: ignore
    return {**found, **{f" > jax.config.{name}": v for name, v in config.items()}}


def _package(value: Any) -> str | None:
    """Return the package of a value, or `None` for a library."""
    module = getattr(value, "__module__", None) or type(value).__module__
    root = _root(str(module))
    return None if root in _LIBRARIES else root


def _root(module: str) -> str:
    return module.partition(".")[0]


def _token(value: Any) -> Any:
    if isinstance(value, _PLAIN):
        return type(value), repr(value)
    if isinstance(value, np.ndarray) and value.dtype != object:
        data = hashlib.blake2b(value.tobytes()).digest()
        return value.shape, str(value.dtype), data
    if isinstance(value, set | frozenset):
        return frozenset(value)
    if isinstance(value, dict):
        return list(value)
    if isinstance(value, list | tuple | collections.deque):
        return Same(*value) if len(value) > _LONG else len(value)
    return Same(value)


def _parts(value: Any, package: str | None) -> Iterator[tuple[str, Any]]:
    """Yield the values that a value holds, each with its access path."""
    if isinstance(value, _PLAIN | _CLOSED):
        return
    own = package is not None and _package(value) == package
    if isinstance(value, dict | list | tuple | collections.deque):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        if len(value) <= _LONG:
            yield from ((f"[{key!r}]", item) for key, item in items)
    elif isinstance(value, types.FunctionType | types.MethodType | ft.partial):
        if own or not isinstance(value, types.FunctionType):
            yield from _captured(value, package)
    elif hasattr(value, "__wrapped__"):  # made by `jax.jit`, `functools.cache`, ...
        yield ".__wrapped__", value.__wrapped__
    elif isinstance(value, type):
        if own:
            yield from _class_parts(value, package)
    elif isinstance(value, eqx.Module) or own:
        yield from _attributes(value)
        yield ".__class__", type(value)
    elif not jtu.all_leaves([value]):
        yield from ((f"[{i}]", v) for i, v in enumerate(jtu.tree_leaves(value)))


def _captured(fn: Any, package: str | None) -> Iterator[tuple[str, Any]]:
    """Yield the values that a function, method or partial holds, and its globals."""
    for how, name, value in contents(fn, plain=True):
        yield f" > {name}" if how else f".{name}", value
        if isinstance(value, types.ModuleType) and _root(value.__name__) == package:
            inner, names = vars(value), code_names(fn.__code__)
            yield from ((f" > {name}.{n}", inner[n]) for n in names if n in inner)
    yield from ((f".{name}", value) for name, value in vars(fn).items())


def _class_parts(cls: type, package: str | None) -> Iterator[tuple[str, Any]]:
    """Yield attributes that all instances share, and methods."""
    for base in cls.__mro__:
        if _package(base) == package:
            for name, value in vars(base).items():
                if not name.startswith(("__", "_abc_")) or name == "__call__":
                    # The stored function: each access makes a new bound method.
                    value = getattr(value, "__func__", value)
                    yield f".{name}", getattr(value, "fget", value)


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    for name, inner in getattr(value, "__dict__", {}).items():
        # A cached property is filled by the first call, and is not hidden state.
        if not isinstance(getattr(type(value), name, None), ft.cached_property):
            yield f".{name}", inner
