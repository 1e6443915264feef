"""A sweep under `jax.disable_jit()`: the plain loop, one point after the other.

A debugger stops inside the function, at one point, where values can be looked at. It
meets the compiled sweep at its `Outcome`.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Bool

from .._progress import Progress, is_shown
from .._reduce import ReducerTree
from .._spaces import point_key
from .._tree import as_data, as_keys
from .._types import PyTree
from .call import call
from .compute.failure import Errors, error_text, nothing
from .gather import CTRL_C, Interrupt, Outcome, carry, result_of
from .request import Request
from .results.cells import CellPoints, CellValues
from .results.label import names_of
from .results.result import SweepResult
from .store import FAILED, MISSING, gaps_of, merged, runs_of


def plain_sweep(request: Request, started: float) -> SweepResult:
    """Return the result of a request, computed by the plain loop.

    Ctrl-C ends the loop after the point in flight; the `KeyboardInterrupt` then carries
    the result of the points before it.
    """
    with Interrupt(CTRL_C) as interrupt:
        with Progress(is_shown(request.progress), request.whole.size) as bar:
            looped = _looped(request, interrupt, bar)
    # The reducers are ours, or were tested alone: nobody debugs them here.
    with jax.disable_jit(False):
        outcome = _outcome(request, looped)
    if request.output_coords:
        names_of(outcome.values, request.space, request.output_coords)
    result = result_of(
        request,
        outcome,
        batch_size=1,
        num_devices=len(request.devices),
        attrs={},
        started=started,
    )
    if interrupt.asked:
        stopped = KeyboardInterrupt()
        carry(stopped, result, request)
        raise stopped
    return result


@dataclasses.dataclass(frozen=True)
class _Looped:
    """The values at all points, which of these are `ok`, or not computed, and errors.

    There is NaN, or 0, where there is no value.
    """

    values: PyTree
    ok: Bool[np.ndarray, " points"]
    missing: Bool[np.ndarray, " points"]
    errors: dict[int, str]

    def part(self, first: int, last: int) -> PyTree:
        """Return the values at some points."""
        return jtu.tree_map(lambda leaf: leaf[first:last], self.values)


def _looped(request: Request, interrupt: Interrupt, bar: Progress) -> _Looped:
    """Compute all points, or those until Ctrl-C."""
    total = request.whole.size
    outputs: list[PyTree | None] = [None] * total
    errors: dict[int, str] = {}
    done = 0
    while done < total and not interrupt.asked:
        try:
            outputs[done] = _output(request, done)
        except Exception as error:
            at = request.whole.geometry.index_as_written(done)
            error.add_note(f"At point {at} of the space.")
            if not request.isolated:
                raise
            errors[done] = error_text(error)
        done += 1
        bar.done(1)
    known = [output for output in outputs if output is not None]
    values = _stacked(outputs, known[0] if known else _example(request))
    ok = np.array([output is not None for output in outputs], bool)
    return _Looped(values, ok, np.arange(total) >= done, errors)


def _output(request: Request, i: int) -> PyTree:
    space = request.whole
    key = space.point_key(i, key=request.key)
    return call(request.function, request.fn, space.point(i), key)


def _example(request: Request) -> PyTree:
    """Return an output, of no meaning, of a function that gave none."""
    space = request.whole
    geometry = space.geometry
    digits = [jnp.int32(0)] * len(geometry.lengths)

    def output() -> PyTree:
        point = geometry.point(geometry.leaves, space.key, digits, [0] * len(digits))
        key = point_key(request.key, geometry.key_digits(digits))
        return call(request.function, request.fn, point, key)

    return jtu.tree_map(lambda s: jnp.empty(s.shape, s.dtype), jax.eval_shape(output))


def _stacked(outputs: list[PyTree | None], example: PyTree) -> PyTree:
    like, structure = jtu.tree_flatten(example)
    raw = [np.asarray(as_data(leaf)) for leaf in like]
    none = [np.full_like(leaf, nothing(leaf.dtype)) for leaf in raw]
    rows = [none if out is None else jtu.tree_leaves(out) for out in outputs]
    # One more, so that there is one if there are no points.
    leaves = [
        np.stack([np.asarray(as_data(leaf)) for leaf in column])[:-1]
        for column in zip(*rows, none, strict=True)
    ]
    return jtu.tree_unflatten(structure, list(map(as_keys, leaves, like)))


def _outcome(request: Request, looped: _Looped) -> Outcome:
    """Return the values, their reduction, or that of each cell."""
    reducers, ok, missing = request.reducers, looped.ok, looped.missing
    if reducers is None:
        errors = _by_text(looped.errors)
        return Outcome(looped.values, gaps_of(ok, missing), errors=errors)
    if reducers.over is not None:
        return _by_cell(reducers, looped, request.space.size)
    done = int(np.sum(~missing))
    state, ended = _absorbed(reducers, looped, 0, done)
    errors = {i: text for i, text in looped.errors.items() if i < ended}
    ended = len(ok) if ended == done else ended  # no reducer stopped before Ctrl-C
    failed = ~(ok | missing)
    gaps = {MISSING: runs_of(missing[:ended]), FAILED: runs_of(failed[:ended])}
    points = int(np.sum(~missing[:ended]))
    value = reducers.finish(state)
    return Outcome(value, merged(gaps), points, ended, _by_text(errors))


def _by_cell(reducers: ReducerTree, looped: _Looped, cells: int) -> Outcome:
    """Return the reductions of cells, whose points follow one another."""
    each = len(looped.ok) // max(1, cells)
    points, failed = np.zeros((2, cells), np.int64)
    found = []
    for cell in range(cells):
        first = cell * each
        state, points[cell] = _absorbed(reducers, looped, first, first + each)
        failed[cell] = np.sum(~looped.ok[first : first + points[cell]])
        found.append(reducers.finish_each(jtu.tree_map(_alone, state), 1))
    if not found:  # for the form of the values
        none = jtu.tree_map(_alone, _absorbed(reducers, looped, 0, 0)[0])
        found = [reducers.finish_each(none, 1)]
    values = jtu.tree_map(lambda *leaves: np.concatenate(leaves)[:cells], *found)
    absent = looped.missing.reshape(cells, each).any(axis=1)
    gaps = gaps_of((points > failed) & ~absent, absent)
    errors = {i // each: text for i, text in reversed(looped.errors.items())}
    rows = CellValues(values, CellPoints(points, failed))
    return Outcome(rows, gaps, errors=_by_text(errors))


def _absorbed(
    reducers: ReducerTree, looped: _Looped, first: int, last: int
) -> tuple[list[PyTree], int]:
    """Return the state after some points, or a stop, and how many these were."""
    state = reducers.begin(jtu.tree_map(_struct, looped.values))
    step = 1 if reducers.stops else max(1, last - first)
    for at in range(first, last, step):
        batch, ok = looped.part(at, at + step), looped.ok[at : at + step]
        state = reducers.absorb(state, batch, jnp.asarray(ok))
        if reducers.stops and reducers.stop(state):
            return state, at + step - first
    return state, last - first


def _by_text(errors: dict[int, str]) -> Errors:
    """Return the rows for each text."""
    found: dict[str, list[int]] = {}
    for i, text in sorted(errors.items()):
        found.setdefault(text, []).append(i)
    return {text: np.array(rows, np.int64) for text, rows in found.items()}


def _struct(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)


def _alone(leaf: Any) -> jax.Array:
    return jnp.asarray(leaf)[None]
