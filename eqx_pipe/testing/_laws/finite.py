"""The law that finite numbers give finite outputs and derivatives."""

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
    if not all(_is_finite(leaves[i]) for i in programs.moving):
        raise Undecided("the arguments are not finite")
    values = programs.value(leaves)
    outputs = [(programs.out_names[i], as_numpy(values[i])) for i in programs.smooth]
    for name, array in outputs:
        _no_nan(name, array, "of the output")
    infinite = [i for i, (_, v) in enumerate(outputs) if np.isinf(v).any()]
    if infinite:
        _no_overflow(trial, values)
        for i in infinite:
            _not_everywhere(trial, programs.smooth[i], *outputs[i])
        raise Undecided("the output is infinite, so derivatives may be")
    if programs.moving and outputs:
        _derivatives(trial)


def _derivatives(trial: Trial) -> None:
    """Raise `Broken` for a derivative that is not finite."""
    programs = trial.programs
    leaves = programs.leaves(trial.call)
    tangents = [direction(i, leaves[i]) for i in programs.moving]
    avals = [programs.jaxpr.out_avals[i] for i in programs.smooth]
    cotangents = [direction(i, v) for i, v in enumerate(avals)]
    grads: list[Any] = []
    found: list[Any] = []
    # The law `derivative` reports that a mode does not exist.
    with contextlib.suppress(Exception):
        grads = programs.backward(leaves, cotangents)[1]
    with contextlib.suppress(Exception):
        found = programs.forward(leaves, tangents)[1]
    # Reverse mode first: it names the input that is to blame.
    for i, grad in zip(programs.moving, grads, strict=False):
        _derivative(programs.names[i], grad, "its gradient")
    for i, tangent in zip(programs.smooth, found, strict=False):
        _derivative(programs.out_names[i], tangent, "its derivative in forward mode")


def _derivative(name: str, array: Any, which: str) -> None:
    found = as_numpy(array)
    wrong = ~np.isfinite(found)
    if wrong.any():
        count = f"{wrong.sum()} of {wrong.size} elements of {which}"
        raise Broken(f"{count} are not finite ({found[wrong][0]})", name)


def _no_nan(name: str, array: np.ndarray, of: str) -> None:
    wrong = np.isnan(array)
    if wrong.any():
        raise Broken(f"{wrong.sum()} of {wrong.size} elements {of} are NaN", name)


def _is_finite(array: Any) -> bool:
    return bool(np.isfinite(as_numpy(array)).all())


def _no_overflow(trial: Trial, values: list[Any]) -> None:
    """Raise `Broken` if an infinite number would fit, as double precision shows."""
    if trial.wide is None:
        return
    programs, wide = trial.programs, trial.wide.programs
    in_double = wide.value(wide.leaves(trial.wide.call))
    for i in programs.smooth:
        array, exact = as_numpy(values[i]), as_numpy(in_double[i])
        fits = np.abs(exact) <= float(jnp.finfo(values[i].dtype).max)
        wrong = np.isinf(array) & fits
        if wrong.any():
            raise Broken(
                f"{wrong.sum()} of {wrong.size} elements of the output are infinite, "
                f"and {exact[wrong][0]:.6g} in double precision: an intermediate "
                "value overflows",
                programs.out_names[i],
            )


def _not_everywhere(trial: Trial, i: int, name: str, array: np.ndarray) -> None:
    """Raise `Broken` if an output is infinite whatever the arguments are."""
    if not np.isinf(array).all():
        return
    programs = trial.programs
    leaves = programs.leaves(trial.call)
    for sign in (1, -1):
        others = list(leaves)
        for k in programs.moving:
            if programs.names[k].startswith("args"):
                drawn = sign * np.abs(direction(k, leaves[k]))
                others[k] = drawn.astype(leaves[k].dtype)
        with contextlib.suppress(Exception):  # outside of what the function takes
            if not np.isinf(as_numpy(programs.value(others)[i])).all():
                return
    raise Broken("it is infinite for all arguments that were tried", name)
