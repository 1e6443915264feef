"""A pytree of reducers as one."""

import inspect
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, TypeGuard

import equinox as eqx
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Bool

from .._errors import describe_value, structure_error, type_error, value_error
from .._tree import differences, path_name
from .._types import PyTree
from .reducer import Reducer, Reduction, picked

AnyReducer: TypeAlias = Reduction | Reducer
"""One reducer, ours or made of the user's functions."""

ReduceLike: TypeAlias = PyTree[AnyReducer]
"""Whatever is accepted where values are reduced: a reducer or a pytree of them."""


def begin(reducer: AnyReducer, struct: PyTree) -> PyTree:
    """The state of no points, for outputs of the given structure."""
    if isinstance(reducer, Reducer):  # whose `init` is the user's own
        return reducer.start(picked(reducer, struct))
    return reducer.init(struct)


class Many(eqx.Module):
    """Reducers that all receive the whole output; a state is a list of theirs."""

    reducers: list[AnyReducer]
    structure: Any = eqx.field(static=True)

    def init(self, struct: PyTree) -> list[PyTree]:
        """The state of no points."""
        return [begin(r, struct) for r in self.reducers]

    def absorb(
        self, state: list[PyTree], values: PyTree, ok: Bool[Array, " points"]
    ) -> list[PyTree]:
        """The state after a batch: outputs with a leading axis, and which count."""
        both = zip(self.reducers, state, strict=True)
        return [r.absorb(s, values, ok) for r, s in both]

    def merge(self, first: list[PyTree], second: list[PyTree]) -> list[PyTree]:
        """The state of the points of both."""
        three = zip(self.reducers, first, second, strict=True)
        return [r.merge(a, b) for r, a, b in three]

    def finish(self, state: list[PyTree]) -> PyTree:
        """The results, in the place of the reducers."""
        results = []
        for r, s in zip(self.reducers, state, strict=True):
            # By way of the class: a method that is read from a module is a module made
            # anew, which takes longer than most reducers take to finish.
            own = isinstance(r, Reducer)
            done = r.finish(s) if own else type(r).finish(r, s)
            results.append(jtu.tree_map(_on_host, done))
        return jtu.tree_unflatten(self.structure, results)

    def finish_each(self, state: list[PyTree], count: int) -> PyTree:
        """The results of `count` states side by side, side by side; see `finish`."""
        results = []
        for r, s in zip(self.reducers, state, strict=True):
            if isinstance(r, Reducer):
                results.append(_stacked([r.finish(x) for x in _each(s, count)]))
            else:
                results.append(jtu.tree_map(np.asarray, type(r).finish(r, s)))
        return jtu.tree_unflatten(self.structure, results)

    @property
    def over(self) -> tuple[str, ...] | None:
        """The dims that are reduced, by all of the reducers; `None` for all points."""
        found: Any = self.reducers[0].over
        return found

    @property
    def stops(self) -> bool:
        """Whether any of the reducers may ask to stop."""
        return any(getattr(r, "stop", None) is not None for r in self.reducers)

    def stop(self, state: list[PyTree]) -> bool:
        """Whether any of the reducers asks to stop now."""
        stops = [getattr(r, "stop", None) for r in self.reducers]
        both = zip(stops, state, strict=True)
        return any(stop is not None and bool(stop(s)) for stop, s in both)

    def stop_each(self, state: list[PyTree], asked: np.ndarray) -> np.ndarray:
        """For each of the states side by side whether it asks to stop.

        Only those that are `asked`; the others do not.
        """
        found = np.zeros(len(asked), bool)
        for i in np.flatnonzero(asked):
            found[i] = self.stop(_at(state, int(i)))
        return found


def as_many(function: str, reduce: ReduceLike) -> Many:
    """A reducer or a pytree of them, after a check."""
    leaves, structure = jtu.tree_flatten_with_path(reduce, is_leaf=is_reducer)
    for path, leaf in leaves:
        if is_reducer(leaf):
            continue
        name = path_name(path)
        place = f"`reduce` has at `.{name}`" if name else "`reduce` is"
        cure = "Give a reducer such as `Mean()`, `ArgMin(by='loss')`, your own "
        cure += "`Reducer(init, update, merge, finish)`, or a pytree of reducers."
        if inspect.isclass(leaf) and issubclass(leaf, Reduction | Reducer):
            cure = f"Make an instance of it: `{leaf.__name__}(...)`."
        raise type_error(function, f"{place} {describe_value(leaf)}, no reducer.", cure)
    if not leaves:
        raise type_error(
            function,
            f"`reduce` is {describe_value(reduce)}, without any reducer in it.",
            "Give one such as `Mean()`, or None to keep all values.",
        )
    reducers = [leaf for _, leaf in leaves]
    _check_over(function, reducers)
    return Many(reducers, structure)


def _check_over(function: str, reducers: Sequence[AnyReducer]) -> None:
    """Raises a `ValueError` unless all reduce the same dims."""
    kinds = {r.over if r.over is None else frozenset(r.over): r for r in reducers}
    if len(kinds) > 1:
        shown = ", ".join(
            f"{type(r).__name__} over {'all points' if r.over is None else r.over}"
            for r in kinds.values()
        )
        raise value_error(
            function,
            f"the reducers differ in the dims that they reduce: {shown}.",
            "Give all of them the same `over=`, or sweep once for each.",
        )


def _each(state: PyTree, count: int) -> Iterator[PyTree]:
    """The states that lie side by side in one."""
    return (_at(state, i) for i in range(count))


def _at(state: PyTree, i: int) -> PyTree:
    return jtu.tree_map(lambda leaf: leaf[i], state)


def _stacked(results: Sequence[PyTree]) -> PyTree:
    """Results of your own `finish`, as arrays with a leading axis."""
    results = [jtu.tree_map(np.asarray, result) for result in results]
    for result in results[1:]:
        lines = differences(results[0], result)
        if lines:
            raise structure_error(
                "reduce.Reducer",
                f"`finish` gives one form for a cell and another for the next: "
                f"{'; '.join(lines)}.",
                "With `over=` the results are kept side by side: give the same "
                "structure, shapes and dtypes for every cell, also for one without "
                "any point.",
            )
    for leaf in jtu.tree_leaves(results[0]):
        if leaf.dtype.kind not in "biufcV":
            raise type_error(
                "reduce.Reducer",
                f"`finish` gives {leaf.dtype} values.",
                "With `over=` the results are kept side by side: give numbers or "
                "arrays of numbers.",
            )
    return jtu.tree_map(lambda *leaves: np.stack(leaves), *results)


def is_reducer(x: object) -> TypeGuard[AnyReducer]:
    """Whether `x` is a reducer."""
    return isinstance(x, Reduction | Reducer)


def _on_host(leaf: Any) -> Any:
    """Arrays in NumPy, but for PRNG keys; anything else as it is."""
    is_array = eqx.is_array(leaf) and not isinstance(leaf, np.ndarray)
    if not is_array or not isinstance(getattr(leaf, "dtype", None), np.dtype):
        return leaf
    return np.asarray(leaf)[()]
