"""The contents of the store of a sweep: values at all points, or states of blocks.

Values are stored as xarray shows them. States are merged in the order of the index, as
in a sweep without interruption.
"""

import contextlib
import dataclasses
import datetime
import functools as ft
from collections.abc import Callable, Mapping
from typing import Any

import jax.tree_util as jtu
import numpy as np

from ..._errors import SweepError, message
from ..._jaxprs import array_text, digest, text_of
from ..._reduce import ReducerTree
from ..._tree import leaves_with_names, tree_text
from ..compute.reduce_programs import trace_reducers
from ..compute.rows import Rows
from ..compute.trace import Traced
from ..gather import Outcome
from ..options import fn_name
from ..plan import Plan
from ..results.label import (
    check_names,
    coordinate_variables,
    inner_dims,
    layout_of,
    names_of,
    storable,
    versions,
)
from ..results.output_coords import coords_texts
from ..store import (
    FAILED,
    Account,
    Store,
    StoredArray,
    StoreLayout,
    Variable,
    count_in,
    points_in,
)
from .memory import OrderedMerge, reduced_outcome


@dataclasses.dataclass(frozen=True)
class ValueContents:
    """The outputs of a sweep as the arrays of a store."""

    plan: Plan
    stopped = False

    @property
    def identity(self) -> Mapping[str, Any]:
        """The names of the dims of outputs, and the reducers, for the record."""
        reducers = self.plan.request.reducers
        known = self.plan.request.output_coords
        named = {"output_coords": coords_texts(known)} if known else {}
        if reducers is None:
            return named
        found = reducing_identity(reducers, self.plan.points.traced[0])
        over = " and ".join(reducers.over or ())
        # The store has finished values, so `finish` is part of the identity too.
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
    def coordinates(self) -> dict[str, Any]:
        """The dims, values and attributes of each coordinate."""
        request = self.plan.request
        names = names_of(self.plan.outputs, request.space, request.output_coords)
        return coordinate_variables(request.space, names)

    def layout(self, identity: Mapping[str, Any]) -> StoreLayout:
        """Return the layout of a new store, for the sweep of this identity."""
        request, work = self.plan.request, self.plan.work
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return layout_of(
            "sweep",
            work.outputs,
            work.row,
            request.space,
            request.output_coords,
            self.plan.chunks,
            {**_made_by(self.plan), "started": now, **self.plan.points.attrs},
            {**identity, "batch_size": self.plan.batch_size},
        )

    def begin(self, store: Store, number: int) -> int:
        """Return the first row of a chunk, from which its errors are counted."""
        return store.chunks.span(number)[0]

    def refuse(self, store: Store, account: Account) -> None:
        """Raise if there are failed points in the store, unless they are marked."""
        if not self.plan.request.isolated:
            gaps = account.gaps
            _refuse_failed(store.path, points_in(gaps[gaps[:, 2] == FAILED, :2]))

    def advance(self, store: Store) -> None:
        """Do nothing: values do not stop a sweep."""

    def outcome(self, store: Store, account: Account) -> Outcome:
        """Return the current contents; values are read when they are indexed."""
        # Other processes may have written more since the last check.
        self.refuse(store, account)
        gaps, errors, done = account
        work = self.plan.work
        leaves = [
            StoredArray(store, k, struct.dtype, kind, done)
            for k, (struct, kind) in enumerate(zip(work.row, work.kinds, strict=True))
        ]
        values = jtu.tree_unflatten(jtu.tree_structure(work.outputs), leaves)
        return Outcome(values, gaps, errors=errors)


def _made_by(plan: Plan) -> dict[str, Any]:
    """Return the provenance of a store, with the names of a result's attributes."""
    return {
        "function": fn_name(plan.request.fn),
        "batch_size": plan.batch_size,
        "devices": len(plan.devices),
    }


def reducing_identity(reducers: ReducerTree, traced: Traced) -> dict[str, str]:
    """Return the identity of reducers: their programs, for any batch size."""
    # Use a fixed batch size, so that the text does not depend on that of the sweep.
    reducing = trace_reducers(reducers, traced, 2)
    programs = [reducing.absorb.program, reducing.merge.program]
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


class StateContents:
    """The states of blocks as the arrays of a store."""

    def __init__(self, plan: Plan):
        assert plan.blocks is not None
        self.plan, self.blocks = plan, plan.blocks
        self.merge = OrderedMerge(self.blocks, plan.chunks)

    @property
    def stopped(self) -> bool:
        """True if a reducer stops within the first finished chunks."""
        return self.merge.stopped

    @property
    def identity(self) -> Mapping[str, Any]:
        """The identity of the reducers, for the record."""
        found = reducing_identity(self.blocks.reducers, self.blocks.points.traced[0])
        return {"reduce": found}

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
            status=_STATUS,
            attributes={
                **_made_by(self.plan),
                "reduce": identity["reduce"]["reducers"],
                "space": repr(request.space),
                "points": request.space.size,
                "block_points": blocks.each,
                **versions(),
            },
            record={**identity, "batch_size": self.plan.batch_size},
        )

    def begin(self, store: Store, number: int) -> int:
        """Return the first point of a chunk, from which its errors are counted."""
        return self.blocks.span(*store.chunks.span(number))[0]

    def refuse(self, store: Store, account: Account) -> None:
        """Raise if there are failed points in the store, unless they are marked."""
        # If a reducer stops the sweep, later blocks do not count.
        counts = not (self.plan.request.isolated or self.blocks.reducers.stops)
        if counts and count_in(account.gaps, FAILED):
            _refuse_failed(store.path, self._all(store)[0].failed)

    def advance(self, store: Store) -> None:
        """Merge finished chunks up to the first missing one, if a reducer may stop."""
        if self.blocks.reducers.stops:
            # A damaged chunk is removed, or reported when all is read.
            with contextlib.suppress(OSError):
                self._merge(self.merge, store)

    def outcome(self, store: Store, account: Account) -> Outcome:
        """Return the reduction of all chunks in the store."""
        merge, gaps = self._all(store)
        if not self.plan.request.isolated:
            _refuse_failed(store.path, merge.failed)
        missing = [self.blocks.span(first, last) for first, last in gaps]
        return reduced_outcome(merge, np.array(missing, np.int64).reshape(-1, 2))

    def _all(self, store: Store) -> tuple[OrderedMerge, list[tuple[int, int]]]:
        """Merge all chunks; return also the missing blocks, as ranges."""
        merge = OrderedMerge(self.blocks, store.chunks)
        # Chunks have two lengths, and each one compiles.
        return merge, self._merge(merge, store, ft.cache(self.blocks.gap))

    def _merge(
        self,
        merge: OrderedMerge,
        store: Store,
        gap: Callable[[int], Rows] | None = None,
    ) -> list[tuple[int, int]]:
        """Merge chunks in order, and return the missing blocks, as ranges.

        `gap` returns the rows of missing blocks; without it, the first one ends it.
        """
        gaps = []
        while merge.next < len(store.chunks) and not merge.stopped:
            number = merge.next
            span = store.chunks.span(number)
            manifest = store.manifest(number)
            if manifest is not None:
                begin, _ = self.blocks.span(*span)
                errors = {text: begin + at for text, at in manifest.errors.items()}
                names = range(len(store.variables))
                merge.put(number, [store.read(number, k) for k in names], errors)
            elif gap is not None:
                gaps.append(span)
                merge.put(number, gap(span[1] - span[0]), {})
            else:
                break
        return gaps


def _refuse_failed(path: str, failed: np.ndarray) -> None:
    """Raise a `SweepError` if a store contains failed points."""
    if not len(failed):
        return
    shown = ", ".join(map(str, failed[:5])) + (", ..." if len(failed) > 5 else "")
    what = f"point {shown}" if len(failed) == 1 else f"{len(failed):,} points ({shown})"
    raise SweepError(
        message(
            "sweep",
            f'the store `{path}` was filled with `on_error="mark"`, and `fn` '
            f"failed at {what}.",
            'Pass `on_error="mark"`, which keeps the other points, or call '
            f"`fn(space.point({failed[0]}))` to see the error. "
            'After a fix, `resume="failed"` computes these points again.',
        ),
        failed.tolist(),
    )
