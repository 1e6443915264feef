"""The law that finite inputs give finite outputs and derivatives."""

import contextlib
from typing import Any

import jax.numpy as jnp
import numpy as np

from .compare import as_numpy
from .law import Broken, Undecided, law
from .slopes import direction
from .trial import Trial


@law("finite", "finite numbers give no NaN, no overflow, and finite derivatives.")
def finite_law(trial: Trial) -> None:
    programs = trial.programs
    leaves = programs.leaves(trial.call)
    given = [v for v in leaves if jnp.issubdtype(v.dtype, jnp.inexact)]
    if not all(np.isfinite(as_numpy(v)).all() for v in given):
        raise Undecided("the arguments are not finite")
    values = programs.value(leaves)
    outputs = {i: as_numpy(values[i]) for i in programs.inexact}
    for i, array in outputs.items():
        _none(np.isnan(array), array, programs.out_names[i], "the output", "are NaN")
    infinite = [i for i, array in outputs.items() if np.isinf(array).any()]
    if infinite:
        _no_overflow(trial, outputs)
        for i in infinite:
            _not_everywhere(trial, i, outputs[i])
        raise Undecided("the output is infinite, so its derivatives may be, too")
    if programs.moving and programs.smooth:
        _derivatives(trial)


def _none(wrong: Any, array: Any, name: str, of: str, what: str) -> None:
    """Raise `Broken` if elements of an array are wrong."""
    if wrong.any():
        count = f"{wrong.sum()} of {wrong.size} elements of {of} {what}"
        raise Broken(count.format(array[wrong][0]), name)


def _derivatives(trial: Trial) -> None:
    """Raise `Broken` for a derivative that is not finite."""
    programs = trial.programs
    leaves = programs.leaves(trial.call)
    tangents = [direction(i, leaves[i]) for i in programs.moving]
    found: list[tuple[str, Any, str]] = []
    # Reverse mode first: it identifies the input that causes the error. The law
    # `derivative` reports a mode that does not exist.
    with contextlib.suppress(Exception):
        grads = programs.backward(leaves, programs.cotangents())[1]
        pairs = zip(programs.moving_names, grads, strict=True)
        found += [(*pair, "its gradient") for pair in pairs]
    with contextlib.suppress(Exception):
        outs = programs.forward(leaves, tangents)[1]
        pairs = zip(programs.smooth_names, outs, strict=True)
        found += [(*pair, "its derivative in forward mode") for pair in pairs]
    for name, array, of in found:
        array = as_numpy(array)
        _none(~np.isfinite(array), array, name, of, "are not finite ({})")


def _no_overflow(trial: Trial, outputs: dict[int, np.ndarray]) -> None:
    """Raise `Broken` if an infinite output is finite, and fits, in double precision."""
    if trial.wide is None:
        return
    wide = trial.wide.programs
    in_double = wide.value(wide.leaves(trial.wide.call))
    for i, array in outputs.items():
        exact, dtype = as_numpy(in_double[i]), trial.programs.jaxpr.out_avals[i].dtype
        wrong = np.isinf(array) & (np.abs(exact) <= float(jnp.finfo(dtype).max))
        why = "are infinite, and {:.6g} in double precision: an intermediate value "
        name = trial.programs.out_names[i]
        _none(wrong, exact, name, "the output", f"{why}overflows")


def _not_everywhere(trial: Trial, i: int, array: np.ndarray) -> None:
    """Raise `Broken` if an output is infinite for all arguments."""
    if not np.isinf(array).all():
        return
    programs = trial.programs
    leaves = programs.leaves(trial.call)
    args = [k for k in programs.moving if programs.names[k].startswith("args")]
    for sign in (1, -1):
        others = list(leaves)
        for k in args:
            others[k] = (sign * np.abs(direction(k, leaves[k]))).astype(leaves[k].dtype)
        with contextlib.suppress(Exception):  # these arguments are invalid
            if not np.isinf(as_numpy(programs.value(others)[i])).all():
                return
    what = "it is infinite for all arguments that were tried"
    raise Broken(what, programs.out_names[i])
