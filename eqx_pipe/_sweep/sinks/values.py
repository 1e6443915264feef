"""A store of the values at all points, as xarray shows them."""

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

import jax.tree_util as jtu
import numpy as np

from ..._store.layout import StoreLayout, Variable
from ..._store.lazy import Stored
from ..._store.store import MISSING, OK, Store
from ..gather import Outcome, result_of
from ..plan import Plan
from ..results.label import (
    Names,
    attributes,
    check_names,
    coordinate_variables,
    inner_dims,
    names_of,
    storable,
)
from ..results.result import provenance_of
from .checks import refuse_failed


@dataclasses.dataclass(frozen=True)
class StoredValues:
    """The outputs of a sweep as the arrays of a store."""

    plan: Plan
    stopped = False

    @property
    def identity(self) -> Mapping[str, Any]:
        """What else the record of the store says: nothing."""
        return {}

    @property
    def lengths(self) -> tuple[int, ...]:
        """How many rows there are on each dim."""
        return tuple(self.plan.request.space.dims.values())

    @property
    def variables(self) -> list[Variable]:
        """The arrays for the outputs."""
        found = []
        for name, leaf in zip(self._names.outputs, self.plan.work.row, strict=True):
            kept = storable(np.empty((0, *leaf.shape), leaf.dtype))
            inner = kept.shape[1:]
            dims = inner_dims(name, len(inner))
            found.append(Variable(name, kept.dtype, inner, dims))
        return found

    @property
    def status(self) -> str:
        """The name of the array that says which points are there."""
        return self._names.status

    def layout(self, record: Mapping[str, Any]) -> StoreLayout:
        """What a new store is made of."""
        space, names = self.plan.request.space, self._names
        coordinates = coordinate_variables(space, names)
        check_names("sweep", [*space.dims, *coordinates, *names.outputs])
        # What made it, but for the time it took: it is not over yet.
        nothing = result_of(self.plan, Outcome(self._outputs, np.ones(0, bool)), 0.0)
        now = dataclasses.replace(nothing, started=time.time())
        made = attributes(now.values, space, names, provenance_of(now))
        return StoreLayout(
            dims=tuple(space.dims),
            chunks=self.plan.chunks,
            coordinates=coordinates,
            variables=self.variables,
            status=names.status,
            attributes={k: v for k, v in made.items() if k != "seconds"},
            record=record,
        )

    def refuse(self, store: Store, rows: np.ndarray) -> None:
        """Raises if there are failed points in the store, unless they are isolated."""
        if not self.plan.request.isolated:
            refuse_failed(store.path, rows)

    def advance(self, store: Store) -> None:
        """Values stop no sweep."""

    def outcome(self, store: Store) -> Outcome:
        """The store as it stands; values are read when somebody asks for them."""
        traced = self._traced
        pairs = zip(traced.stored, traced.key_kinds, strict=True)
        leaves = [Stored(store, k, s.dtype, kind) for k, (s, kind) in enumerate(pairs)]
        status = store.statuses()
        ok, missing = status == OK, status == MISSING
        # Other processes may have written some since this one looked.
        self.refuse(store, np.flatnonzero(~(ok | missing)))
        return Outcome(
            values=jtu.tree_unflatten(traced.structure, leaves),
            ok=np.broadcast_to(np.True_, ok.shape) if ok.all() else ok,  # no memory
            missing=missing if missing.any() else None,
        )

    @property
    def _traced(self) -> Any:
        assert self.plan.job is not None
        return self.plan.job.traced[0]

    @property
    def _outputs(self) -> Any:
        return jtu.tree_unflatten(self._traced.structure, self._traced.outputs)

    @property
    def _names(self) -> Names:
        return names_of(self._outputs, self.plan.request.space)
