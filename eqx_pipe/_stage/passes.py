"""Record outputs in the traced bodies of loops and of `vmap`."""

import dataclasses

import equinox as eqx
import jax.tree_util as jtu

from .._tree import as_arrays, join_path
from .._types import PyTree, Segment
from .scope import Record, Scope


class Passes:
    """Outputs recorded in the traced body of a loop, or under `vmap`.

    A value can leave the body only as one of its outputs. So the body calls its stages
    with the scope that `begin` returns, and returns the result of `arrays` too, which
    `end` gets stacked over the passes. Without a record there is nothing to return.

    With `size` the stages have positions: the values of pass `i` are recorded below
    `i`, although the path in the body has 0. Without `size` they stay stacked.
    """

    def __init__(self, scope: Scope, size: int | None = None):
        self.scope = scope
        self.size = size
        self.record: Record | None = None
        self.constants: PyTree = None
        self.paths: list[str] = []

    def begin(self) -> Scope:
        """Return a new scope for the body, which JAX may trace more than once."""
        if self.scope.record is None:
            return self.scope
        self.record = Record(self._wants)
        return dataclasses.replace(self.scope, record=self.record)

    def arrays(self) -> PyTree:
        """Return the recorded arrays, which the body must return too."""
        if self.record is None:
            return None
        self.paths = list(self.record.values)  # in order; JAX sorts those of a dict
        values = as_arrays(self.record.values)
        arrays, self.constants = eqx.partition(values, eqx.is_array)
        self.record.values.clear()  # no tracer outlives its trace
        return arrays

    def end(self, stacked: PyTree) -> None:
        """Record the values, stacked over the passes along their leading axes."""
        outer = self.scope.record
        if outer is None:
            return
        values = eqx.combine(stacked, self.constants)
        for i in range(self.size or 1):
            for path in self.paths:
                outer.add(self._path(path, i), self._part(values[path], i))

    def _wants(self, path: str) -> bool:
        assert self.scope.record is not None
        wants = self.scope.record.wants
        return any(wants(self._path(path, i)) for i in range(self.size or 1))

    def _path(self, path: str, i: Segment) -> str:
        """Return the path in pass `i` for `path` in the body."""
        if self.size is None:
            return path
        first = join_path(self.scope.path, 0)
        return join_path(self.scope.path, i) + path[len(first) :]

    def _part(self, value: PyTree, i: int) -> PyTree:
        if self.size is None:
            return value
        return jtu.tree_map(lambda v: v[i] if eqx.is_array(v) else v, value)
