"""A sweep under `jax.disable_jit()`: a plain loop over points.

A debugger stops inside the function, at one point, where values can be inspected. The
loop returns the same `Outcome` as the compiled sweep.
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
from .gather import Outcome, result_of
from .request import Request
from .results.cells import CellPoints, CellValues
from .results.label import names_of
from .results.result import SweepResult
from .store import gaps_of


def plain_sweep(request: Request, started: float) -> SweepResult:
    """Return the result of a request, computed by the plain loop."""
    with Progress(is_shown(request.progress), request.whole.size) as bar:
        looped = _looped(request, bar)
    # Reducers are compiled, since users debug `fn` and not reducers here.
    with jax.disable_jit(False):
        outcome = _outcome(request, looped)
    if request.output_coords:
        names_of(outcome.values, request.space, request.output_coords)
    return result_of(
        request,
        outcome,
        batch_size=1,
        num_devices=len(request.devices),
        attrs={},
        started=started,
    )


@dataclasses.dataclass(frozen=True)
class _Looped:
    """The values at all points, which of these are `ok`, and the errors of the others.

    Points without a value have NaN, or 0 if the dtype has no NaN.
    """

    values: PyTree
    ok: Bool[np.ndarray, " points"]
    errors: dict[int, str]


def _looped(request: Request, bar: Progress) -> _Looped:
    outputs: list[PyTree | None] = []
    errors: dict[int, str] = {}
    for i in range(request.whole.size):
        try:
            outputs.append(_output(request, i))
        except Exception as error:
            at = request.whole.geometry.index_as_written(i)
            error.add_note(f"At point {at} of the space.")
            if not request.isolated:
                raise
            outputs.append(None)
            errors[i] = error_text(error)
        bar.done(1)
    known = [output for output in outputs if output is not None]
    values = _stacked(outputs, known[0] if known else _example(request))
    ok = np.array([output is not None for output in outputs], bool)
    return _Looped(values, ok, errors)


def _output(request: Request, i: int) -> PyTree:
    space = request.whole
    key = space.point_key(i, key=request.key)
    return call(request.function, request.fn, space.point(i), key)


def _example(request: Request) -> PyTree:
    """Return a placeholder output, for a function that never returned one."""
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
    # Add a row and drop it again, so that `stack` works without points.
    leaves = [
        np.stack([np.asarray(as_data(leaf)) for leaf in column])[:-1]
        for column in zip(*rows, none, strict=True)
    ]
    return jtu.tree_unflatten(structure, list(map(as_keys, leaves, like)))


def _outcome(request: Request, looped: _Looped) -> Outcome:
    """Return the values, their reduction, or the reduction of each cell."""
    reducers, ok = request.reducers, looped.ok
    if reducers is None:
        return Outcome(looped.values, gaps_of(ok), errors=_by_text(looped.errors))
    if reducers.over is not None:
        return _by_cell(reducers, looped, request.space.size)
    state, ended = _absorbed(reducers, looped, 0, len(ok))
    errors = {i: text for i, text in looped.errors.items() if i < ended}
    gaps = gaps_of(ok[:ended])
    return Outcome(reducers.finish(state), gaps, ended, ended, _by_text(errors))


def _by_cell(reducers: ReducerTree, looped: _Looped, cells: int) -> Outcome:
    """Return the reductions of cells, each of which has consecutive points."""
    each = len(looped.ok) // max(1, cells)
    points, failed = np.zeros((2, cells), np.int64)
    found = []
    for cell in range(max(1, cells)):  # one cell at least, for the structure of values
        first = cell * each
        state, count = _absorbed(reducers, looped, first, first + each)
        points[cell : cell + 1] = count
        failed[cell : cell + 1] = np.sum(~looped.ok[first : first + count])
        found.append(reducers.finish_each(jtu.tree_map(_alone, state), 1))
    values = jtu.tree_map(lambda *leaves: np.concatenate(leaves)[:cells], *found)
    errors = {i // each: text for i, text in reversed(looped.errors.items())}
    rows = CellValues(values, CellPoints(points, failed))
    return Outcome(rows, gaps_of(points > failed), errors=_by_text(errors))


def _absorbed(
    reducers: ReducerTree, looped: _Looped, first: int, last: int
) -> tuple[list[PyTree], int]:
    """Return the state after some points or at a stop, and the number of points."""
    state = reducers.begin(jtu.tree_map(_struct, looped.values))
    step = 1 if reducers.stops else max(1, last - first)
    for at in range(first, last, step):
        part = slice(at, at + step)
        batch = jtu.tree_map(lambda leaf, part=part: leaf[part], looped.values)
        state = reducers.absorb(state, batch, jnp.asarray(looped.ok[part]))
        if reducers.stops and reducers.stop(state):
            return state, at + step - first
    return state, last - first


def _by_text(errors: dict[int, str]) -> Errors:
    """Return the rows of each error text."""
    found: dict[str, list[int]] = {}
    for i, text in sorted(errors.items()):
        found.setdefault(text, []).append(i)
    return {text: np.array(rows, np.int64) for text, rows in found.items()}


def _struct(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)


def _alone(leaf: Any) -> jax.Array:
    return jnp.asarray(leaf)[None]
