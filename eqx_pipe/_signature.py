"""What a stage can be called with."""

import inspect
from collections.abc import Mapping
from typing import Any


def parameters(fn: Any) -> Mapping[str, inspect.Parameter]:
    """The parameters of a callable by name; none if it does not tell.

    A function under `vmap` shows those of what it maps, but cannot take keywords for
    it: `jax.vmap` maps them over their first axis, `eqx.filter_vmap` refuses them. What
    was made for a batch draws by a key per example, or not at all.
    """
    if _is_mapped(fn):
        return {}
    try:
        return inspect.signature(fn).parameters
    except (TypeError, ValueError):  # some builtins have no signature
        return {}


def _is_mapped(fn: Any) -> bool:
    """Whether there is a `vmap` in what a callable wraps."""
    seen: list[Any] = []
    while fn is not None and all(fn is not other for other in seen):
        seen.append(fn)
        if type(fn).__name__ == "_VmapWrapper":  # of `eqx.filter_vmap`
            return True
        # JAX gives its function the `__wrapped__` of the user's, and keeps its own.
        if any(_name(inside) == "vmap_f" for inside in _closed_over(fn)):
            return True
        fn = getattr(fn, "__wrapped__", None)
    return False


def _closed_over(fn: Any) -> list[Any]:
    found = []
    for cell in getattr(fn, "__closure__", None) or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            continue
    return found


def _name(fn: Any) -> str:
    return getattr(getattr(fn, "__code__", None), "co_name", "")
