"""The law that finite inputs give finite outputs and derivatives."""

import contextlib
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from .law import Broken, Undecided, as_numpy, law
from .trial import Trial, direction


@law("finite", "finite numbers give no NaN, no overflow, and finite derivatives.")
def finite_law(trial: Trial) -> str | None:
    programs, leaves = trial.programs, trial.leaves
    inputs = [v for v in leaves if jnp.issubdtype(v.dtype, jnp.inexact)]
    if not all(np.isfinite(as_numpy(v)).all() for v in inputs):
        raise Undecided("the arguments are not finite")
    values = programs.value(leaves)
    outputs = {i: as_numpy(values[i]) for i in programs.inexact}
    for i, array in outputs.items():
        _none(np.isnan(array), array, programs.out_names[i], "the output", "are NaN")
    infinite = {i: np.isinf(array) for i, array in outputs.items()}
    if any(mask.any() for mask in infinite.values()):
        _no_overflow(trial, outputs)
        for i, array in outputs.items():
            _not_everywhere(trial, i, array)
    if not programs.moving or not programs.smooth:
        return None
    masks = [infinite[i] for i in programs.smooth]
    if all(mask.all() for mask in masks):
        raise Undecided("the output is infinite, so its derivatives may be, too")
    _derivatives(trial, masks)
    count, size = sum(int(m.sum()) for m in masks), sum(m.size for m in masks)
    return f"{count} of {size} outputs are infinite, and left out" if count else None


def _none(wrong: Any, array: Any, name: str, of: str, what: str) -> None:
    """Raise `Broken` if elements of an array are wrong."""
    if wrong.any():
        count = f"{wrong.sum()} of {wrong.size} elements of {of} {what}"
        raise Broken(count.format(array[wrong][0]), name)


def _derivatives(trial: Trial, infinite: list[np.ndarray]) -> None:
    """Raise `Broken` for a derivative of the finite outputs that is not finite."""
    programs, leaves, what = trial.programs, trial.leaves, "are not finite ({})"
    pairs = zip(programs.cotangents(), infinite, strict=True)
    cotangents = [np.where(mask, np.zeros_like(c), c) for c, mask in pairs]
    grads = _tried(lambda: programs.backward(leaves, cotangents)[1])
    if grads is not None:
        for k, (name, grad) in enumerate(
            zip(programs.moving_names, grads, strict=True)
        ):
            wrong = ~np.isfinite(grad)
            if any(mask.any() for mask in infinite):
                wrong &= ~_drives(trial, k, wrong, infinite)
            _none(wrong, grad, name, "its gradient", what)
        return
    tangents = [direction(i, leaves[i]) for i in programs.moving]
    outs = _tried(lambda: programs.forward(leaves, tangents)[1]) or []
    for name, array, mask in zip(programs.smooth_names, outs, infinite, strict=False):
        wrong = ~np.isfinite(array) & ~mask
        _none(wrong, array, name, "its derivative in forward mode", what)


def _tried(run: Callable[[], list[Any]]) -> list[np.ndarray] | None:
    """Return a derivative, or `None` if it raises, as the law `derivative` reports."""
    with contextlib.suppress(Exception):
        return list(map(as_numpy, run()))
    return None


def _drives(
    trial: Trial, k: int, wrong: np.ndarray, infinite: list[np.ndarray]
) -> np.ndarray:
    """Return the elements of an input that make an output infinite.

    Their gradients may be NaN, even for a cotangent of 0. An element that moves no
    infinite output, such as a masked one, has to have a finite gradient.
    """
    programs, leaves, drives = trial.programs, trial.leaves, np.ones_like(wrong)
    for index in map(tuple, np.argwhere(wrong)[:_MOST_TRIED]):
        tangents = [np.zeros_like(leaves[i]) for i in programs.moving]
        tangents[k][index] = 1
        outs = _tried(lambda t=tangents: programs.forward(leaves, t)[1])
        if outs is not None:
            pairs = zip(outs, infinite, strict=True)
            drives[index] = any((~np.isfinite(t) & m).any() for t, m in pairs)
    return drives


_MOST_TRIED = 16


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
