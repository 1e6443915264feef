"""Layers of a `repeat` that begin equal by mistake."""

import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jax.extend.core import Jaxpr, Literal

from .._choose.dependence import equations
from .._tree import leaves_with_names
from .._types import Key

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
            jaxpr = jax.make_jaxpr(arrays)(key).jaxpr
    except Exception:  # it looks at values, which this trace does not have
        return []
    drawn = _drawn(jaxpr, [False] * len(jaxpr.invars))
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


def _drawn(jaxpr: Jaxpr, given: list[bool]) -> list[bool]:
    """For each output of a jaxpr, whether random bits went into it."""
    drawn = {v for v, is_drawn in zip(jaxpr.invars, given, strict=True) if is_drawn}

    def is_drawn(atom: Any) -> bool:
        return not isinstance(atom, Literal) and atom in drawn

    for eqn in jaxpr.eqns:
        inputs = [is_drawn(v) for v in eqn.invars]
        inner = getattr(eqn.params.get("jaxpr"), "jaxpr", eqn.params.get("jaxpr"))
        if eqn.primitive.name in ("jit", "pjit") and isinstance(inner, Jaxpr):
            outputs = _drawn(inner, inputs)
        else:
            outputs = [any(inputs) or _draws(eqn)] * len(eqn.outvars)
        drawn.update(v for v, is_ in zip(eqn.outvars, outputs, strict=True) if is_)
    return [is_drawn(v) for v in jaxpr.outvars]


def _draws(eqn: Any) -> bool:
    """Whether an equation, or one inside of it, makes random bits."""
    inner = [j for value in eqn.params.values() for j in _jaxprs(value)]
    names = {
        eqn.primitive.name,
        *(e.primitive.name for j in inner for e in equations(j)),
    }
    return not names.isdisjoint(_RANDOM)


def _jaxprs(value: Any) -> list[Jaxpr]:
    values = value if isinstance(value, tuple | list) else (value,)
    opened = (getattr(v, "jaxpr", v) for v in values)
    return [v for v in opened if isinstance(v, Jaxpr)]
