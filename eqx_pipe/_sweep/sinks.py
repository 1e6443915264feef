"""Sinks, which keep chunks: in arrays, as a reduction, or in a store.

The states of blocks are merged in the order of the index, even if they arrive in
another order, or are read from a store. A store has the values at all points, as xarray
shows them, or the states of blocks.
"""

import contextlib
import dataclasses
import datetime
import functools as ft
import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax.tree_util as jtu
import numpy as np
from jaxtyping import Int64

from .._errors import SweepError, message, sweep_error
from .._jaxprs import digest
from .._results import (
    check_names,
    coords_texts,
    inner_dims,
    layout_of,
    storable,
    versions,
)
from .._run import fn_name
from .._store import (
    FAILED,
    MISSING,
    Account,
    Chunks,
    Filling,
    Gaps,
    Growth,
    Store,
    StoredArray,
    StoreLayout,
    Variable,
    check_current,
    count_in,
    create_store,
    disk_errors,
    exists,
    gaps_of,
    grow_store,
    joined_gaps,
    merged,
    open_store,
    points_in,
    restore,
    statuses_of,
    well_formed,
)
from .._tree import key_kind, leaves_with_names
from .._types import PyTree
from .flight_files import Flights, in_flight
from .identity import as_texts, identity_of, reducing_identity
from .plan import Outcome, Plan, Todo
from .stored_plan import GrownPlan, growth_in, key_digits_text, plan_in
from .target import open_to_workers
from .work.blocks import Blocks
from .work.buffer import Chunk, Errors, Rows, clear, joined


class OrderedMerge:
    """The reduction of chunks, merged in order up to the first missing one."""

    def __init__(self, blocks: Blocks, chunks: Chunks):
        self.blocks, self.chunks = blocks, chunks
        self.state = blocks.begin()
        self.next = 0
        """The number of the next chunk to merge."""
        self._taken = 0
        self._waiting: dict[int, Rows] = {}
        self._errors: list[Errors] = []

    @property
    def errors(self) -> Errors:
        """The errors of points that failed."""
        texts = joined(self._errors).items()
        return {text: index[index < self.points] for text, index in texts}

    @property
    def points(self) -> int:
        """The number of points that are merged."""
        return self.blocks.span(0, self._taken)[1]

    @property
    def failed(self) -> Int64[np.ndarray, " failed"]:
        """The points that failed."""
        none = np.zeros(0, np.int64)
        return np.sort(np.concatenate([none, *self.errors.values()]))

    def put(self, number: int, values: Rows, errors: Errors) -> None:
        """Add a chunk, and merge all chunks whose predecessors are merged."""
        self._waiting[number] = values
        self._errors.append(errors)
        while self.next in self._waiting:
            rows = self._waiting.pop(self.next)
            self.state = self.blocks.merge(self.state, rows)
            self._taken += len(rows[-1])
            self.next += 1

    def finish(self) -> PyTree:
        """Return the reduction."""
        return self.blocks.finish(self.state)


class _MemorySink:
    """A sink that keeps nothing between two calls."""

    def __init__(self, plan: Plan):
        self.plan = plan

    @contextlib.contextmanager
    def filling(self) -> Iterator[Todo]:
        """Return all chunks: nothing is there yet."""
        numbers = range(len(self.plan.chunks))
        yield Todo(numbers, numbers)


class ArraySink(_MemorySink):
    """The values at all points."""

    def __init__(self, plan: Plan):
        super().__init__(plan)
        self.size = math.prod(plan.chunks.lengths)
        self._values: Rows | None = None
        self._gaps: dict[int, Gaps] = {}
        self._errors: list[Errors] = []

    def keep(self, chunk: Chunk) -> None:
        """Store the values of a chunk at their points."""
        number, _, values, verdict, _ = chunk
        self._gaps[number] = gaps_of(verdict.ok, verdict.missing)
        self._errors.append(verdict.errors)
        if len(verdict.ok) == self.size:  # the chunk has all points: do not copy
            self._values = values
            return
        if self._values is None:
            self._values = self.plan.work.empty(self.size)
        rows = slice(*self.plan.chunks.span(number))
        for into, leaf in zip(self._values, values, strict=True):
            into[rows] = leaf

    def outcome(self) -> Outcome:
        """Return the values in the structure of the function's output."""
        plan, values, parts = self.plan, self._values, []
        if values is None:  # no points, or none computed
            values = plan.work.empty(self.size)
        for number in range(len(plan.chunks)):
            first, last = plan.chunks.span(number)
            if number not in self._gaps:
                clear(values, slice(first, last))
                self._gaps[number] = np.array([[0, last - first, MISSING]])
            parts.append((self._gaps[number], last - first))
        values, errors = plan.work.unflatten(values), joined(self._errors)
        return Outcome(values, joined_gaps(parts), errors=errors)


class ReductionSink(_MemorySink):
    """The reduction of all points, which does not depend on the order of arrival."""

    def __init__(self, plan: Plan):
        assert plan.blocks is not None
        super().__init__(plan)
        self.fold = OrderedMerge(plan.blocks, plan.chunks)

    def keep(self, chunk: Chunk) -> None:
        """Merge a chunk after its predecessors, unless blocks of it are missing."""
        if chunk.verdict.missing is None:
            self.fold.put(chunk.number, chunk.values, chunk.verdict.errors)

    def outcome(self) -> Outcome:
        """Return the reduction of the points that are merged; others are missing."""
        ends = self.fold.points, self.plan.request.space.size
        return reduced_outcome(self.fold, np.array([ends], np.int64))


def reduced_outcome(
    fold: OrderedMerge, missing: Int64[np.ndarray, "ranges 2"]
) -> Outcome:
    """Return a reduction, its points, and those that failed or are `missing`."""
    failed = fold.failed[:, None] + np.array([0, 1])
    gaps = merged({MISSING: missing, FAILED: failed})
    points = fold.blocks.points.size - count_in(gaps, MISSING)
    return Outcome(fold.finish(), gaps, points, fold.errors)


class StoreSink:
    """A store that a sweep fills, alone or with other processes.

    It is created if it does not exist, and grown if its space has grown; a store of
    another sweep raises a `StructureError`. With `write=False` nothing is written: the
    store may have no files yet, and `grown` is the store that it would become.
    """

    def __init__(self, plan: Plan, write: bool = True):
        assert plan.request.store is not None
        self.files = plan.request.store
        self.grown: GrownPlan | None = None
        with disk_errors(self.files.path_of(), "be opened"):
            self.store, self.plan, has_grown = self._opened(plan, write)
        self.contents = _contents_of(self.plan)
        shard, again = self.plan.request.shard, self.plan.request.resume == "failed"
        self._filling = Filling(self.store, shard, again, settles=not has_grown)
        self._flights = Flights(self.plan.work, self._filling, self.plan.asked)

    def _opened(self, plan: Plan, write: bool) -> tuple[Store, Plan, bool]:
        """Return the store, the plan with its chunks, and whether it has grown now."""
        files, contents, has_grown = self.files, _contents_of(plan), False
        now = {**identity_of(plan), **contents.identity}

        def growth_of(store: Store) -> Growth | None:
            with well_formed("sweep", files):
                self.grown = growth_in(plan, store, now)
            if self.grown is None:
                return None
            layout = _contents_of(self.grown.plan).layout(now)
            return Growth(layout, self.grown.origin, self.grown.moved)

        if exists(files):
            store = open_store("sweep", files)
        else:
            store = create_store("sweep", files, contents.layout(now), write)
            if not write:
                return store, plan, False
        # Also for a store that was just created: another process may have been first.
        # Without a lock, as nothing may be written to the store of another sweep.
        if growth_of(store) is not None and write:
            self._check_dropped(plan)
            has_grown = grow_store(files, growth_of) is not None
            store, self.grown = open_store("sweep", files), None
        if self.grown is not None:
            plan = self.grown.plan
        else:
            with well_formed("sweep", files):
                plan = plan_in(plan, store)
            if write:
                restore(store, lambda: _contents_of(plan).layout(now))
        program = now["function"]["program"]
        return dataclasses.replace(store, function=program), plan, has_grown

    def _check_dropped(self, plan: Plan) -> None:
        """Raise a `SweepError` if a growth would drop points in flight unasked."""
        assert self.grown is not None
        asked = not self.grown.moved or plan.request.resume is not None
        flying = [] if asked else in_flight(self.files)
        if flying:
            raise sweep_error(
                "sweep",
                f"the store `{self.files.path_of()}` has points in flight "
                f"({'; '.join(flying)}), which this growth would drop, since it moves "
                "points.",
                "Complete the sweep of the smaller space first, or pass "
                '`resume="force"`, which begins these points again.',
            )

    @contextlib.contextmanager
    def filling(self) -> Iterator[Todo]:
        """Lock the share of this process, and yield the missing chunks.

        Errors, also Ctrl-C, get a note with the number of stored points.
        """
        store, filling = self.store, self._filling
        with disk_errors(store.path, "be opened"):
            listed = filling.look()
            self._check(store.account(listed, filling.broken))
            done = not filling.todo(listed)
            done = done and not (filling.has_leftovers() or self._flights.look())
        if done:
            yield Todo(filling.owned, [])
            return
        with filling.locked() as listed:
            with disk_errors(store.path, "be opened"):
                # Other processes may have written chunks meanwhile.
                self._check(store.account(listed, filling.broken))
                todo = self._todo(filling.todo(listed))
                self._flights.tidy(todo.chunks)
            try:
                with contextlib.ExitStack() as stack:
                    if self.plan.request.executor is not None:
                        target = stack.enter_context(open_to_workers(filling))
                        todo = dataclasses.replace(todo, target=target)
                    yield todo
            # Also for Ctrl-C, whose note counts the stored points.
            except BaseException as error:
                self._note_kept(error)
                raise

    def keep(self, chunk: Chunk) -> None:
        """Write a chunk, or some rows of it."""
        with disk_errors(self.store.path, "take a chunk"):
            self._flights.keep(chunk)

    def outcome(self) -> Outcome:
        """Return the current contents of the store."""
        with disk_errors(self.store.path, "be read"):
            check_current(self.store)
            account = self.store.account()
        outcome = self.contents.outcome(self.store, account)
        # Other processes may have written more since the last check.
        self._refuse(outcome.gaps)
        return outcome

    def todo(self) -> Todo:
        """Return the chunks of a share to compute, whole or some of their rows."""
        with disk_errors(self.store.path, "be read"):
            if self.grown is not None:
                return self._todo_after(self.grown)
            return self._todo(self._filling.todo(self._filling.look()))

    def _todo(self, rows_by_chunk: Mapping[int, Any]) -> Todo:
        rows = {number: at for number, at in rows_by_chunk.items() if at is not None}
        filling, get = self._filling, self._flights.get
        return Todo(filling.owned, list(rows_by_chunk), rows, get, not filling.in_parts)

    def _todo_after(self, grown: GrownPlan) -> Todo:
        """Return the chunks to compute once the store has grown."""
        rows_by_chunk: dict[int, Any] = {}
        index, count = grown.plan.request.shard or (0, 1)
        owned = range(index, len(grown.plan.chunks), count)
        wanted = [MISSING, FAILED] if self._filling.again else [MISSING]
        statuses = statuses_of(self.store, grown.plan.chunks, grown.origin)
        for number, (_, status) in enumerate(statuses):
            at = np.flatnonzero(np.isin(status, wanted))
            if len(at) and number in owned:
                rows_by_chunk[number] = at if len(at) < len(status) else None
        return dataclasses.replace(self._todo(rows_by_chunk), owned=owned)

    def _check(self, account: Account) -> None:
        """Raise if there are failed points that are neither marked nor recomputed."""
        if not self._filling.again and count_in(account.gaps, FAILED):
            # The gaps of states are blocks, and the points are in the states.
            self._refuse(self.contents.outcome(self.store, account).gaps)

    def _refuse(self, gaps: Gaps) -> None:
        """Raise a `SweepError` if there are failed points, unless they are marked."""
        failed = points_in(gaps[gaps[:, 2] == FAILED, :2])
        if self.plan.request.isolated or not len(failed):
            return
        shown = ", ".join(map(str, failed[:5])) + (", ..." if len(failed) > 5 else "")
        what = f"{len(failed):,} points ({shown})"
        raise SweepError(
            message(
                "sweep",
                f'the store `{self.store.path}` was filled with `on_error="mark"`, and '
                f"`fn` failed at {f'point {shown}' if len(failed) == 1 else what}.",
                'Pass `on_error="mark"`, which keeps the other points, or call '
                f"`fn(space.point({failed[0]}))` to see the error. "
                'After a fix, `resume="failed"` computes these points again.',
            ),
            failed.tolist(),
        )

    def _note_kept(self, error: BaseException) -> None:
        all_ = self.plan.count(self._filling.owned)
        with contextlib.suppress(OSError, SweepError):
            left = self.todo().left(self.plan)
            flying = self._flights.text and f"; {self._flights.text}"
            error.add_note(
                f"{all_ - left:,} of {all_:,} points are finished and kept in "
                f"`{self.store.path}`{flying}. The same call goes on from there."
            )


def _contents_of(plan: Plan) -> "ValueContents | StateContents":
    return ValueContents(plan) if plan.blocks is None else StateContents(plan)


@dataclasses.dataclass(frozen=True)
class ValueContents:
    """The outputs of a sweep as the arrays of a store."""

    plan: Plan

    @property
    def identity(self) -> Mapping[str, Any]:
        """The names of the dims of outputs, and the reducers, for the record."""
        reducers = self.plan.request.reducers
        coords = self.plan.request.output_coords
        named = {"output_coords": coords_texts(coords)} if coords else {}
        if reducers is None:
            return named
        reducing = reducing_identity(reducers, self.plan.points.traced[0])
        over = " and ".join(reducers.over or ())
        # The store has finished values, and Python computes them.
        traced = ("by", "over", "init", "update", "merge")
        finish = [
            (type(x), *(v for name, v in vars(x).items() if name not in traced))
            for x in reducers.reducers
        ]
        text = digest(
            reducing["text"] + as_texts({"reduce": finish}, "sweep")["reduce"]
        )
        kinds = f"{reducing['reducers']} over {over}"
        return {**named, "cells": {**reducing, "reducers": kinds, "text": text}}

    def layout(self, identity: Mapping[str, Any]) -> StoreLayout:
        """Return the layout of a new store, for the sweep of this identity."""
        request, work = self.plan.request, self.plan.work
        points = self.plan.points
        dims = points.geometry.grid_dims
        digits = dict(zip(dims, points.key_digits, strict=False))
        keys = {"key_digits": key_digits_text(digits)} if digits else {}
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return layout_of(
            "sweep",
            work.outputs,
            work.row,
            request.space,
            request.output_coords,
            self.plan.chunks,
            {**_made_by(self.plan), "started": now, **points.attrs, **request.goal},
            {**identity, "batch_size": self.plan.points.batch_size, **keys},
        )

    def outcome(self, store: Store, account: Account) -> Outcome:
        """Return the current contents; values are read when they are indexed."""
        gaps, errors, done = account
        work = self.plan.work
        outputs, structure = jtu.tree_flatten(work.outputs)
        pairs = enumerate(zip(work.row, outputs, strict=True))
        leaves = [
            StoredArray(store, k, row.dtype, key_kind(output), done)
            for k, (row, output) in pairs
        ]
        values = jtu.tree_unflatten(structure, leaves)
        return Outcome(values, gaps, errors=errors)


def _made_by(plan: Plan) -> dict[str, Any]:
    """Return the provenance of a store, with the names of a result's attributes."""
    return {
        "function": fn_name(plan.request.fn),
        "batch_size": plan.points.batch_size,
        "devices": len(plan.points.devices),
    }


class StateContents:
    """The states of blocks as the arrays of a store."""

    def __init__(self, plan: Plan):
        assert plan.blocks is not None
        self.plan, self.blocks = plan, plan.blocks

    @property
    def identity(self) -> Mapping[str, Any]:
        """The identity of the reducers, for the record."""
        traced = self.blocks.points.traced[0]
        return {"reduce": reducing_identity(self.blocks.reducers, traced)}

    def layout(self, identity: Mapping[str, Any]) -> StoreLayout:
        """Return the layout of a new store, for the sweep of this identity."""
        blocks, request = self.blocks, self.plan.request
        first = np.arange(blocks.size, dtype=np.int64) * blocks.each
        variables = []
        for name, leaf in leaves_with_names(blocks.outputs):
            dtype = storable(np.empty((0,), leaf.dtype)).dtype
            dims = inner_dims(name, len(leaf.shape))
            variables.append(Variable(name, dtype, leaf.shape, dims))
        check_names("sweep", [variable.name for variable in variables])
        return StoreLayout(
            dims=("block",),
            chunks=self.plan.chunks,
            coordinates={"first_point": (("block",), first, {})},
            variables=variables,
            status="status",
            attributes={
                **_made_by(self.plan),
                "reduce": identity["reduce"]["reducers"],
                "space": repr(request.space),
                "points": request.space.size,
                "block_points": blocks.each,
                **versions(),
            },
            record={**identity, "batch_size": self.plan.points.batch_size},
        )

    def outcome(self, store: Store, account: Account) -> Outcome:
        """Return the reduction of all blocks in the store; others are missing."""
        blocks, gaps = self.blocks, account.gaps[account.gaps[:, 2] == MISSING, :2]
        merge = OrderedMerge(blocks, store.chunks)
        gap = ft.cache(blocks.gap)  # chunks have two lengths, and each compiles
        for number in range(len(store.chunks)):
            first, last = store.chunks.span(number)
            manifest = store.manifest(number)
            if manifest is None:
                merge.put(number, gap(last - first), {})
                continue
            rows = [store.read(number, k) for k in range(len(store.variables))]
            absent = np.flatnonzero(manifest.status == MISSING)
            if len(absent):  # Ctrl-C has stopped it within the chunk
                rows = list(map(np.array, rows))
                for leaf, empty in zip(rows, gap(len(absent)), strict=True):
                    leaf[absent] = empty
            begin, _ = blocks.span(first, last)
            errors = {text: begin + at for text, at in manifest.errors.items()}
            merge.put(number, rows, errors)
        missing = [blocks.span(*block) for block in gaps.tolist()]
        return reduced_outcome(merge, np.array(missing, np.int64).reshape(-1, 2))
