"""A sweep under `jax.disable_jit()`: the plain loop, one point after the other.

A debugger stops inside the function, at one point, where values can be looked at. It
meets the compiled sweep at its `Outcome`.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Bool, Int64

from .._progress import Progress, is_shown
from .._spaces import point_key
from .._tree import as_data, as_keys
from .._types import PyTree
from .call import call
from .compute.failure import error_text, nothing
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
    total = request.whole.size
    with Interrupt(CTRL_C) as interrupt:
        with Progress(is_shown(request.progress), total) as bar:
            outputs, errors = _outputs(request, interrupt, bar)
    result = result_of(
        request,
        _outcome(request, outputs, errors),
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


def _outputs(
    request: Request, interrupt: Interrupt, bar: Progress
) -> tuple[list[PyTree | None], dict[int, str]]:
    """Return the outputs up to Ctrl-C, `None` where there is an error to mark."""
    outputs: list[PyTree | None] = []
    errors: dict[int, str] = {}
    for i in range(request.whole.size):
        if interrupt.asked:
            break
        try:
            outputs.append(_output(request, i))
        except Exception as error:
            at = request.whole.geometry.index_as_written(i)
            error.add_note(f"At point {at} of the space.")
            if not request.isolated:
                raise
            errors[i] = error_text(error)
            outputs.append(None)
        bar.done(1)
    return outputs, errors


def _output(request: Request, i: int) -> PyTree:
    space = request.whole
    key = space.point_key(i, key=request.key)
    return call(request.function, request.fn, space.point(i), key)


def _outcome(
    request: Request, outputs: list[PyTree | None], errors: dict[int, str]
) -> Outcome:
    """Return the values or the reduction of outputs, the first ones of a space."""
    done, total = len(outputs), request.whole.size
    known = (output for output in outputs if output is not None)
    example = next(known, None)
    if example is None:
        structs = jax.eval_shape(lambda: _abstract(request))
        example = jtu.tree_map(lambda s: jnp.empty(s.shape, s.dtype), structs)
    outputs = outputs + [None] * (total - done)
    values = _stacked(outputs, example)
    ok = np.array([output is not None for output in outputs], bool)
    missing = np.arange(total) >= done
    if request.reducers is None:
        outcome = Outcome(values, gaps_of(ok, missing), errors=_by_text(errors))
    else:
        # The reducers are ours or were tested alone: nobody debugs them here.
        with jax.disable_jit(False):
            reduce = _reduced if request.inner is None else _by_cell
            outcome = reduce(request, values, ok, missing, errors)
    if request.output_coords:
        names_of(outcome.values, request.space, request.output_coords)
    return outcome


def _reduced(
    request: Request,
    values: PyTree,
    ok: Bool[np.ndarray, " points"],
    missing: Bool[np.ndarray, " points"],
    errors: dict[int, str],
) -> Outcome:
    """Return the reduction of the points up to where a reducer stops."""
    reducers, done = request.reducers, int(np.sum(~missing))
    assert reducers is not None
    state, ended = _absorbed(reducers, values, ok, done)
    failed = {i: text for i, text in errors.items() if i < ended}
    if ended == done:  # no reducer stopped before the loop did
        ended = len(ok)
    gaps = {
        MISSING: runs_of(missing[:ended]),
        FAILED: runs_of(~(ok | missing)[:ended]),
    }
    points = int(np.sum(~missing[:ended]))
    return Outcome(
        reducers.finish(state), merged(gaps), points, ended, _by_text(failed)
    )


def _by_cell(
    request: Request,
    values: PyTree,
    ok: Bool[np.ndarray, " points"],
    missing: Bool[np.ndarray, " points"],
    errors: dict[int, str],
) -> Outcome:
    """Return the reduction of each cell, whose points follow one another."""
    reducers, cells = request.reducers, request.space.size
    assert reducers is not None
    each = len(ok) // max(1, cells)
    found, points, failed = [], np.zeros(cells, np.int64), np.zeros(cells, np.int64)
    absent = missing.reshape(cells, each).any(axis=1)
    for cell in range(max(1, cells)):
        part = slice(cell * each, (cell + 1) * each)
        own = jtu.tree_map(lambda leaf, part=part: leaf[part], values)
        state, ended = _absorbed(reducers, own, ok[part], each)
        found.append(reducers.finish_each(jtu.tree_map(_alone, state), 1))
        if cell < cells:
            points[cell], failed[cell] = ended, np.sum(~ok[part][:ended])
    result = jtu.tree_map(lambda *leaves: np.concatenate(leaves)[:cells], *found)
    gaps = gaps_of((points > failed) & ~absent, absent)
    rows = CellValues(result, CellPoints(points, failed))
    first = {i // each: text for i, text in reversed(errors.items())}
    return Outcome(rows, gaps, errors=_by_text(first))


def _absorbed(
    reducers: Any, values: PyTree, ok: Bool[np.ndarray, " points"], count: int
) -> tuple[list[PyTree], int]:
    """Return the state after `count` points or a stop, and how many these were."""
    struct = jtu.tree_map(_struct, values)
    state = reducers.init(struct)
    step = 1 if reducers.stops else max(1, count)
    for first in range(0, count, step):
        last = min(count, first + step)
        batch = jtu.tree_map(lambda leaf, a=first, b=last: leaf[a:b], values)
        state = reducers.absorb(state, batch, jnp.asarray(ok[first:last]))
        if reducers.stops and reducers.stop(state):
            return state, last
    return state, count


def _stacked(outputs: Sequence[PyTree | None], example: PyTree) -> PyTree:
    """Return outputs side by side, with NaN or 0 where there is none."""
    like, structure = jtu.tree_flatten(example)
    raw = [np.asarray(as_data(leaf)) for leaf in like]
    none = [np.full_like(leaf, nothing(leaf.dtype)) for leaf in raw]
    rows = [none if out is None else jtu.tree_leaves(out) for out in outputs]
    # One more, so that there is one if there are no points.
    leaves = [
        np.stack([np.asarray(as_data(leaf)) for leaf in column])[:-1]
        for column in zip(*rows, none, strict=True)
    ]
    found = list(map(as_keys, leaves, like))
    return jtu.tree_unflatten(structure, found)


def _abstract(request: Request) -> PyTree:
    """Return the output at a traced point, for its structure alone."""
    space = request.whole
    geometry = space.geometry
    digits = [jnp.int32(0)] * len(geometry.lengths)
    point = geometry.point(geometry.leaves, space.key, digits, [0] * len(digits))
    key = point_key(request.key, geometry.key_digits(digits))
    return call(request.function, request.fn, point, key)


def _by_text(errors: dict[int, str]) -> dict[str, Int64[np.ndarray, " _failed"]]:
    """Return the rows for each text."""
    found: dict[str, list[int]] = {}
    for i, text in errors.items():
        found.setdefault(text, []).append(i)
    return {text: np.unique(np.array(rows, np.int64)) for text, rows in found.items()}


def _struct(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)


def _alone(leaf: Any) -> jax.Array:
    return jnp.asarray(leaf)[None]
