"""The key, path and record that a composite passes to a child, also out of loops."""

import dataclasses
from collections.abc import Callable

import equinox as eqx
import jax.tree_util as jtu
from jaxtyping import Array, Integer

from .._keys import fold
from .._tree import as_arrays, combine, is_none, join_path
from .._types import Key, PyTree, Segment


@dataclasses.dataclass(frozen=True)
class Record:
    """The outputs of stages, by path, for requested paths."""

    wants: Callable[[str], bool]
    values: dict[str, PyTree] = dataclasses.field(default_factory=dict)

    def add(self, path: str, value: PyTree) -> None:
        """Store the value at a path, if it is requested."""
        if self.wants(path):
            self.values[path] = value


@dataclasses.dataclass(frozen=True)
class Scope:
    """The values that a composite passes to a child besides its input and state.

    `key` is the composite's own key; a child draws from it folded with the child's name
    or position. `record` collects outputs by path; it is `None` if no outputs are
    requested, or where values cannot leave a traced branch. `watch` is called before
    each direct child, with its path, the child, its inputs, state, key and named
    inputs.
    """

    key: Key | None
    path: str = ""
    record: Record | None = None
    watch: Callable[..., None] | None = None

    def child(
        self, segment: Segment, index: Integer[Array, ""] | None = None
    ) -> "Scope":
        """Return the scope of the child named, or positioned at, `segment`.

        `index` is folded into the key instead of `segment` if one traced call stands
        for many (`repeat`, `batched`).
        """
        key = fold(self.key, segment if index is None else index)
        return Scope(key, join_path(self.path, segment), self.record)

    @property
    def where(self) -> str:
        """ " at `path`" for a message, or nothing at the root."""
        return f" at `{self.path}`" if self.path else ""

    def silent(self) -> "Scope":
        """Return the same scope without a record."""
        return dataclasses.replace(self, record=None)


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
        values = combine(stacked, self.constants)
        for i in range(self.size or 1):
            for path in self.paths:
                value = values[path]
                if self.size is not None:
                    value = _slice(value, self.constants[path], i)
                outer.add(self._path(path, i), value)

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


def _slice(stacked: PyTree, inside: PyTree, i: int) -> PyTree:
    """Return the value of one pass, with the structure that it has in the body."""
    # `vmap` changes the static data of a sparse matrix.
    structure = jtu.tree_structure(inside, is_leaf=is_none)
    leaves = jtu.tree_leaves(stacked, is_leaf=is_none)
    return structure.unflatten([v[i] if eqx.is_array(v) else v for v in leaves])
