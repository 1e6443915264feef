"""What a store of a sweep holds: the values at all points, or the states of blocks.

Values stand there as xarray shows them. Of the states any reduction can be finished:
they are merged in the order of the index and one after the other, as if the sweep had
never been interrupted.
"""

import dataclasses
import datetime
import functools as ft
from collections.abc import Mapping
from typing import Any

import jax.tree_util as jtu
import numpy as np

from ..._jaxprs import array_text, digest, text_of
from ..._reduce import ReducerTree
from ..._store.layout import StoreLayout, Variable
from ..._store.lazy import Stored
from ..._store.store import Store
from ..._tree import tree_text
from ..compute.failure import Errors
from ..compute.job import Job
from ..gather import Outcome
from ..plan import Plan
from ..reduced.blocks import Blocks
from ..reduced.cells import Cells
from ..reduced.trace import trace_reducers
from ..results.gaps import stored_gaps
from ..results.label import (
    Names,
    attributes,
    check_names,
    coordinate_variables,
    inner_dims,
    names_of,
    storable,
    versions,
)
from ..results.output_coords import coords_texts
from ..results.raised import points_in, stored_errors
from ..tracing.call import fn_name
from ..tracing.trace import Traced
from .fingerprint import refuse_failed
from .memory import Fold, reduced_outcome


@dataclasses.dataclass(frozen=True)
class StoredValues:
    """The outputs of a sweep as the arrays of a store."""

    plan: Plan
    stopped = False

    @property
    def identity(self) -> Mapping[str, Any]:
        """What else the record says: how dims of outputs are named, and of which
        reductions there are values, if any.
        """
        reducers, job = self.plan.request.reducers, self.plan.job
        known = self.plan.request.output_coords
        named = {"output_coords": coords_texts(known)} if known else {}
        if reducers is None or job is None:
            return named
        found = reducing_identity(reducers, job.traced[0])
        over = " and ".join(reducers.over or ())
        # What is kept is finished, so that it also depends on what comes of a state.
        finish = [
            text_of(getattr(reducer, field.name))
            for reducer in reducers.reducers
            for field in dataclasses.fields(reducer)
            if field.name not in ("by", "over", "init", "update", "merge")
        ]
        text = digest("\n".join([found["text"], *finish]))
        kinds = f"{found['reducers']} over {over}"
        return {**named, "cells": {**found, "reducers": kinds, "text": text}}

    @property
    def lengths(self) -> tuple[int, ...]:
        """How many rows there are on each dim."""
        return tuple(self.plan.request.space.dims.values())

    @property
    def variables(self) -> list[Variable]:
        """The arrays for the outputs."""
        found = []
        named = self._names.outputs.items()
        for (name, dims), leaf in zip(named, self.plan.compiled.row, strict=True):
            kept = storable(np.empty((0, *leaf.shape), leaf.dtype))
            found.append(Variable(name, kept.dtype, kept.shape[1:], dims))
        return found

    @property
    def status(self) -> str:
        """The name of the array that says which points are there."""
        return self._names.status

    @property
    def coordinates(self) -> dict[str, Any]:
        """Dims, values and attributes of each coordinate."""
        return coordinate_variables(self.plan.request.space, self._names)

    def layout(self, record: Mapping[str, Any]) -> StoreLayout:
        """What a new store is made of."""
        space, names, job = self.plan.request.space, self._names, self.plan.job
        coordinates = self.coordinates
        assert job is not None
        inner = [dim for dims in names.outputs.values() for dim in dims]
        check_names("sweep", [*space.dims, *coordinates, *names.outputs, *inner])
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        made = {**_made_by(self.plan), "started": now, **dict(job.made)}
        return StoreLayout(
            dims=tuple(space.dims),
            chunks=self.plan.chunks,
            coordinates=coordinates,
            variables=self.variables,
            status=names.status,
            attributes=attributes(self._outputs, space, names, made),
            record=record,
        )

    def refuse(self, store: Store) -> None:
        """Raises if there are failed points in the store, unless they are isolated."""
        if store.ledger.failed and not self.plan.request.isolated:
            refuse_failed(store.path, store.failed())

    def advance(self, store: Store) -> None:
        """Values stop no sweep."""

    def outcome(self, store: Store) -> Outcome:
        """The store as it stands; values are read when somebody asks for them."""
        pairs = zip(self._compiled.row, self._compiled.kinds, strict=True)
        leaves = [Stored(store, k, s.dtype, kind) for k, (s, kind) in enumerate(pairs)]
        # Other processes may have written some since this one looked.
        self.refuse(store)
        values = jtu.tree_unflatten(jtu.tree_structure(self._outputs), leaves)
        return Outcome(values, stored_gaps(store), errors=stored_errors(store))

    @property
    def _outputs(self) -> Any:
        return self._compiled.outputs

    @property
    def _compiled(self) -> Job | Cells:
        assert isinstance(self.plan.compiled, Job | Cells)
        return self.plan.compiled

    @property
    def _names(self) -> Names:
        request = self.plan.request
        return names_of(self._outputs, request.space, request.output_coords)


def _made_by(plan: Plan) -> dict[str, Any]:
    """What makes a store, in the words of a result's attributes."""
    return {
        "function": fn_name(plan.request.fn),
        "batch_size": plan.batch_size,
        "devices": len(plan.devices),
    }


def reducing_identity(reducers: ReducerTree, traced: Traced) -> dict[str, str]:
    """What tells reducers: what they do to a state, whatever the batch size."""
    # Of a size of its own: the text must not depend on that of the sweep.
    reducing = trace_reducers(reducers, traced, 2)
    programs = [program for one in reducing.each for program in one.programs]
    texts = [program.text for program in programs]
    texts += [array_text(x) for program in programs for x in program.constants]
    texts += map(array_text, reducing.init)
    kinds = [type(reducer).__name__ for reducer in reducers.reducers]
    states = jtu.tree_unflatten(reducing.structure, reducing.init)
    return {
        "reducers": str(jtu.tree_unflatten(reducers.structure, kinds)),
        "states": tree_text(states),
        "text": digest("\n".join(texts)),
    }


_STATUS = "status"


class StoredStates:
    """The states of blocks as the arrays of a store."""

    def __init__(self, plan: Plan):
        assert isinstance(plan.blocks, Blocks)
        self.plan, self.blocks = plan, plan.blocks
        self.fold = Fold(self.blocks, plan.chunks)

    @property
    def stopped(self) -> bool:
        """Whether the chunks at the beginning say that no more are needed."""
        return self.fold.stopped

    @property
    def identity(self) -> Mapping[str, Any]:
        """What tells reducers: what they do to a state, whatever the batch size."""
        found = reducing_identity(self.blocks.reducers, self.blocks.job.traced[0])
        return {"reduce": found}

    @property
    def lengths(self) -> tuple[int, ...]:
        """How many rows there are on each dim."""
        return (len(self.blocks),)

    @property
    def variables(self) -> list[Variable]:
        """The arrays for the states of blocks."""
        found = []
        for name, leaf in self.blocks.variables:
            dtype = storable(np.empty((0,), leaf.dtype)).dtype
            dims = inner_dims(name, len(leaf.shape))
            found.append(Variable(name, dtype, leaf.shape, dims))
        return found

    @property
    def status(self) -> str:
        """The name of the array that says which blocks are there."""
        return _STATUS

    def layout(self, record: Mapping[str, Any]) -> StoreLayout:
        """What a new store is made of."""
        blocks, request = self.blocks, self.plan.request
        first = np.arange(len(blocks), dtype=np.int64) * blocks.points
        variables = self.variables
        check_names("sweep", [variable.name for variable in variables])
        return StoreLayout(
            dims=("block",),
            chunks=self.plan.chunks,
            coordinates={"first_point": (("block",), first, {})},
            variables=variables,
            status=_STATUS,
            attributes={
                **_made_by(self.plan),
                "reduce": record["reduce"]["reducers"],
                "space": repr(request.space),
                "points": request.space.size,
                "block_points": blocks.points,
                **versions(),
            },
            record=record,
        )

    def refuse(self, store: Store) -> None:
        """Raises if there are failed points in the store, unless they are isolated."""
        # Where a reducer stops the sweep, blocks behind that do not count.
        counts = not (self.plan.request.isolated or self.blocks.reducers.stops)
        if store.ledger.failed and counts:
            refuse_failed(store.path, self._all(store)[0].failed)

    def advance(self, store: Store) -> None:
        """Merges the chunks that are finished up to the first one that is not.

        Only where that may stop the sweep.
        """
        if not self.blocks.reducers.stops:
            return
        fold = self.fold
        while fold.next < len(store.chunks) and not fold.stopped:
            try:
                if not _put(fold, store, fold.next, {}):
                    return
            except OSError:  # damaged; it is removed, or named when all is read
                return

    def outcome(self, store: Store) -> Outcome:
        """The reduction of what is in the store."""
        fold, gaps = self._all(store)
        if not self.plan.request.isolated:
            refuse_failed(store.path, fold.failed)
        missing = [self.blocks.span(first, last) for first, last in gaps]
        return reduced_outcome(fold, np.array(missing, np.int64).reshape(-1, 2))

    def _all(self, store: Store) -> tuple[Fold, list[tuple[int, int]]]:
        """Merges all that there is; and the blocks that are missing, from and to."""
        fold, gaps = Fold(self.blocks, store.chunks), []
        known = dict(store.errors())
        gap = ft.cache(self.blocks.gap)  # chunks have two lengths; each one compiles
        for number in range(len(store.chunks)):
            if fold.stopped:
                break
            first, last = store.chunks.span(number)
            begin, _ = self.blocks.span(first, last)
            raised = known.get(number, {}).items()
            errors = {text: begin + points_in(spans) for text, spans in raised}
            if not _put(fold, store, number, errors):
                gaps.append((first, last))
                fold.put(number, gap(last - first), {})
        return fold, gaps


def _put(fold: Fold, store: Store, number: int, errors: Errors) -> bool:
    """Merges a chunk of a store; whether it is there."""
    if not store.is_done(number):
        return False
    names = range(len(store.arrays))
    fold.put(number, [store.read(number, variable) for variable in names], errors)
    return True
