"""The definition of a sweep, as it stands: the plain loop under `jax.disable_jit()`.

So a debugger stops inside the function, at one point, where values can be looked at.
"""

import dataclasses
import functools as ft
import math
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._progress import Progress
from .._spaces import point_key
from .._tree import as_data, as_keys
from .._types import PyTree
from .compute.failure import (
    Errors,
    Failures,
    Verdict,
    error_text,
    nothing_like,
    some_output,
)
from .compute.sizes import Rows
from .reduced.kernel import block_batches
from .request import Request
from .results.cells import CellPoints, CellValues
from .tracing.call import call


class LoopPoints:
    """The points of a sweep, one after the other."""

    def __init__(self, request: Request):
        self.request = request
        self.errors: dict[int, str] = {}
        """What was raised at points, if that is isolated."""

    def span(self, first: int, last: int) -> tuple[int, int]:
        """The points of some rows, which are the points themselves."""
        return first, last

    def output(self, i: int) -> PyTree:
        """The output at a point."""
        request = self.request
        key = request.space.point_key(i, key=request.key)
        try:
            return call(request.function, request.fn, request.space.point(i), key)
        except Exception as error:
            at = request.space.geometry.index_as_written(i)
            error.add_note(f"At point {at} of the space.")
            raise

    def attempt(self, i: int) -> PyTree | None:
        """The same; `None` where it raises, if that is to be isolated."""
        try:
            return self.output(i)
        except Exception as error:
            if not self.request.isolated:
                raise
            self.errors[i] = error_text(error)
            return None

    def compute(
        self, first: int, last: int, costs: object, bar: Progress
    ) -> tuple[Rows, Verdict]:
        """The outputs at some points, and what became of these."""
        outputs: list[PyTree | None] = []
        for i in range(first, last):
            if bar.stopping():
                break
            outputs.append(self.attempt(i))
            bar.done(1)
        count = len(outputs)
        outputs += [None] * (last - first - count)
        ok = np.array([output is not None for output in outputs], bool)
        missing = np.arange(last - first) >= count
        if ok.any():
            self._example = outputs[int(np.argmax(ok))]
        nothing = jtu.tree_map(nothing_like, self._example)
        rows = [nothing if output is None else output for output in outputs]
        # One more, so that there is one if there are no points.
        columns = zip(*map(jtu.tree_leaves, [*rows, nothing]), strict=True)
        leaves = [_stacked(column)[:-1] for column in columns]
        errors = self.raised(first, last)
        return leaves, Verdict(ok, errors, missing if missing.any() else None)

    def raised(self, first: int, last: int) -> Errors:
        """What was raised at some points."""
        failures = Failures(self.request.function, True, last - first, first)
        for i, error in self.errors.items():
            if first <= i < last:
                failures.mark(np.array([i]), error)
        return failures.verdict.errors

    def unflatten(self, leaves: Sequence[np.ndarray]) -> PyTree:
        """The output as the function gives it, with keys from their raw data."""
        like, structure = jtu.tree_flatten(self._example)
        pairs = zip(leaves, like, strict=True)
        return jtu.tree_unflatten(structure, [as_keys(*pair) for pair in pairs])

    @ft.cached_property
    def _example(self) -> PyTree:
        request = self.request
        geometry, space_key = request.space.geometry, request.space.key
        digits = [jnp.int32(0)] * len(geometry.lengths)
        plain = [0] * len(geometry.lengths)

        def output() -> PyTree:
            point = geometry.point(geometry.leaves, space_key, digits, plain)
            key = point_key(request.key, geometry.key_digits(digits))
            return call(request.function, request.fn, point, key)

        return some_output(output)


class LoopBlocks:
    """The blocks of a sweep that is reduced: points taken in one after the other."""

    def __init__(self, request: Request):
        assert request.reducers is not None
        self.each, self.reducers = LoopPoints(request), request.reducers
        self.size = request.space.size
        self.points = block_batches(self.size, 1)
        self._known: dict[int, PyTree | None] = {}

    def __len__(self) -> int:
        return -(-self.size // self.points)

    def span(self, first: int, last: int) -> tuple[int, int]:
        """The points of some blocks."""
        return first * self.points, min(last * self.points, self.size)

    def compute(
        self, first: int, last: int, costs: object, bar: Progress
    ) -> tuple[Rows, Verdict]:
        """The rows of some blocks, and in which of them no point failed."""
        rows = [self._block(number, bar) for number in range(first, last)]
        columns = [np.stack(column) for column in zip(*rows, strict=True)]
        ok = np.asarray(~columns[-1].any(axis=1))
        return columns, Verdict(ok, self.each.raised(*self.span(first, last)))

    def begin(self) -> list[jax.Array]:
        """The state of no points."""
        return jtu.tree_leaves(self.empty)

    def merge(
        self,
        state: list[jax.Array],
        values: Rows,
        spans: Sequence[tuple[int, int]],
        most: int,
    ) -> Iterator[list[jax.Array]]:
        """The state after each of some stretches of rows, which follow one another."""
        now = self._tree(state)
        for first, last in spans:
            for i in range(first, last):
                leaves = [np.asarray(leaf[i]) for leaf in values[:-1]]
                pairs = zip(leaves, self.begin(), strict=True)
                later = self._tree([jnp.asarray(as_keys(*pair)) for pair in pairs])
                now = self.reducers.merge(now, later)
            yield jtu.tree_leaves(now)

    def stop(self, state: list[jax.Array]) -> bool:
        """Whether a reducer asks to stop."""
        return self.reducers.stop(self._tree(state))

    def finish(self, state: list[jax.Array]) -> PyTree:
        """The reduction."""
        return self.reducers.finish(self._tree(state))

    def _block(self, number: int, bar: Progress) -> Rows:
        state = self.empty
        first, last = self.span(number, number + 1)
        bits = np.zeros(8 * -(-self.points // 8), bool)
        for i in range(first, last):
            state, ok = self.absorbed(state, i)
            bits[i - first] = not ok
            bar.done(1)
        leaves = jtu.tree_leaves(state)
        return [*(np.asarray(as_data(leaf)) for leaf in leaves), np.packbits(bits)]

    def absorbed(self, state: list[PyTree], i: int) -> tuple[list[PyTree], bool]:
        """The state after one more point, and whether it has not failed."""
        example, output = self._example, self._output(i)
        ok = output is not None
        batch = jtu.tree_map(_alone, output if ok else example)
        return self.reducers.absorb(state, batch, jnp.array([ok])), ok

    def _output(self, i: int) -> PyTree | None:
        # Those that were needed for the form of an output are not computed twice.
        return self._known.pop(i) if i in self._known else self.each.attempt(i)

    @ft.cached_property
    def _example(self) -> PyTree:
        for i in range(self.size):
            self._known[i] = output = self.each.attempt(i)
            if output is not None:
                return output
        return self.each._example

    @ft.cached_property
    def empty(self) -> list[PyTree]:
        """The states of no points."""
        return self.reducers.begin(jtu.tree_map(_struct, self._example))

    def _tree(self, leaves: list[jax.Array]) -> list[PyTree]:
        return jtu.tree_unflatten(jtu.tree_structure(self.empty), leaves)


class LoopCells:
    """The cells of a sweep of which some dims are reduced, one after the other."""

    def __init__(self, request: Request):
        assert request.reducers is not None and request.reducers.over is not None
        inner = dataclasses.replace(request, space=request.whole)
        self.blocks, self.reducers = LoopBlocks(inner), request.reducers
        dims = inner.space.dims
        self.each = math.prod(dims[name] for name in request.reducers.over)

    def span(self, first: int, last: int) -> tuple[int, int]:
        """The points of some cells."""
        return first * self.each, last * self.each

    def compute(
        self, first: int, last: int, costs: object, bar: Progress
    ) -> tuple[Rows, Verdict]:
        """The rows of some cells, and which of them have a point with a value."""
        found = [self._cell(cell, bar) for cell in range(first, last)]
        self._example = found[0][0]
        counts = [np.array(column) for column in list(zip(*found, strict=True))[1:]]
        columns = zip(*(jtu.tree_leaves(value) for value, *_ in found), strict=True)
        rows = [np.concatenate(column) for column in columns]
        raised = self.blocks.each.raised(*self.span(first, last))
        errors = {text: np.unique(at // self.each) for text, at in raised.items()}
        return [*rows, *counts], Verdict(counts[0] > counts[1], errors)

    def unflatten(self, leaves: Sequence[np.ndarray]) -> CellValues:
        """What comes of cells, from the leaves of their rows."""
        structure = jtu.tree_structure(self._example)
        values = jtu.tree_unflatten(structure, leaves[:-2])
        return CellValues(values, CellPoints(*leaves[-2:]))

    def _cell(self, cell: int, bar: Progress) -> tuple[PyTree, int, int]:
        """The result of a cell, side by side with none, and its counts."""
        state, points, failed = self.blocks.empty, 0, 0
        for i in range(*self.span(cell, cell + 1)):
            state, ok = self.blocks.absorbed(state, i)
            points, failed = points + 1, failed + (not ok)
            if self.reducers.stops and self.reducers.stop(state):
                break
        bar.done(self.each)
        alone = jtu.tree_map(_alone, state)
        return self.reducers.finish_each(alone, 1), points, failed


def _stacked(column: Sequence[jax.Array]) -> np.ndarray:
    return np.stack([np.asarray(as_data(leaf)) for leaf in column])


def _alone(leaf: jax.Array) -> jax.Array:
    return jnp.asarray(leaf)[None]


def _struct(leaf: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
