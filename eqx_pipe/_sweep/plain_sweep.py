"""A sweep under `jax.disable_jit()`: a plain loop over points.

A debugger stops inside the function, at one point, where values can be inspected.
"""

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._progress import Progress
from .._tree import as_data, as_keys
from .._types import PyTree
from .call import call
from .compute.failure import error_text, nothing
from .compute.prepare import prepare
from .gather import Outcome, result_of
from .request import Request, check_together
from .results.label import names_of
from .results.result import SweepResult
from .store import gaps_of


def plain_sweep(request: Request, started: float) -> SweepResult:
    """Return the result of a request, computed by the plain loop."""
    check_together(request)  # a sweeper may have been made before JIT was disabled
    with Progress(request.progress, request.space.size) as bar:
        outcome = _looped(request, bar)
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


def _looped(request: Request, bar: Progress) -> Outcome:
    """Return the values at all points; failed points have NaN, or 0."""
    outputs: list[PyTree | None] = []
    errors: dict[str, list[int]] = {}
    for i in range(request.space.size):
        try:
            outputs.append(_output(request, i))
        except Exception as error:
            at = request.space.geometry.index_as_written(i)
            error.add_note(f"At point {at} of the space.")
            if not request.isolated:
                raise
            outputs.append(None)
            errors.setdefault(error_text(error), []).append(i)
        bar.done(1)
    known = [output for output in outputs if output is not None]
    values = _stacked(outputs, known[0] if known else _example(request))
    ok = np.array([output is not None for output in outputs], bool)
    failed = {text: np.array(points, np.int64) for text, points in errors.items()}
    return Outcome(values, gaps_of(ok), errors=failed)


def _output(request: Request, i: int) -> PyTree:
    space = request.space
    key = space.point_key(i, key=request.key)
    return call(request.function, request.fn, space.point(i), key)


def _example(request: Request) -> PyTree:
    """Return a placeholder output, for a function that never returned one."""
    with jax.disable_jit(False):
        traced = prepare(
            request.fn,
            request.space,
            request.key,
            1,
            request.devices,
            function=request.function,
        )
    return jtu.tree_map(lambda s: jnp.empty(s.shape, s.dtype), traced.outputs)


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
