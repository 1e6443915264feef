"""Layers of a `repeat` that begin equal by mistake."""

import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer

from .._jaxprs.flow import Flow
from .._jaxprs.jaxpr import Equation, trace, within
from .._jaxprs.table import kind
from .._tree import leaves_with_names
from .._types import Key

# What draws, whatever the kind of the key; `fold_in` and `split` alone draw nothing.
_RANDOM = frozenset(
    "random_bits random_gamma rng_bit_generator rng_uniform threefry2x32".split()
)


def same_draws(make: Callable[[Key], Any], stage: Any, key: Any) -> list[str]:
    """Names of parameters that are drawn at random, but not from the key.

    `stage` is `make(key)` for a key that `vmap` maps. What begins as a constant (zeros,
    a table) is equal in all stages by right, so `make` is traced again to see whether
    an array was drawn; only where arrays do not depend on the key, and are no constant.
    """
    named = [(n, x) for n, x in leaves_with_names(stage) if eqx.is_inexact_array(x)]
    suspects = [_is_apart(x, key) and not _is_uniform(x) for _, x in named]
    if not any(suspects):
        return []

    def arrays(key: Key) -> list[Any]:
        return [x for x in jtu.tree_leaves(make(key)) if eqx.is_inexact_array(x)]

    try:
        with warnings.catch_warnings():  # of which the user has been told already
            warnings.simplefilter("ignore")
            jaxpr = trace(arrays, key)
    except Exception:  # it looks at values, which this trace does not have
        return []
    drawn = _Drawn().run(jaxpr, [False])
    return [
        name
        for (name, _), suspect, random in zip(named, suspects, drawn, strict=True)
        if suspect and random
    ]


def _is_apart(x: Any, key: Any) -> bool:
    """Whether an array does not depend on the mapped key.

    Which trace an array belongs to is not told by public means; without the attribute
    nothing is suspected.
    """
    trace = getattr(key, "_trace", None)
    return trace is not None and getattr(x, "_trace", None) is not trace


def _is_uniform(x: Any) -> bool:
    """Whether all numbers in an array are known to be the same."""
    if isinstance(x, Tracer):
        return False
    values = np.asarray(x).ravel()
    return bool(np.all(values == values[:1]))


class _Drawn(Flow):
    """Marks what random bits went into."""

    def equation(self, eqn: Equation, marks: list[bool]) -> list[bool]:
        # Into a call it looks for which outputs are drawn; all of another equation are.
        if kind(eqn) == "call":
            return self.through(eqn, marks)
        draws = any(inner.primitive.name in _RANDOM for inner in within(eqn))
        return [any(marks) or draws] * len(eqn.outvars)
