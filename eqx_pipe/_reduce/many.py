"""A pytree of reducers as one."""

import inspect
from typing import Any, TypeAlias, TypeGuard

import equinox as eqx
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Bool

from .._errors import describe_value, type_error
from .._tree import path_name
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

    @property
    def stops(self) -> bool:
        """Whether any of the reducers may ask to stop."""
        return any(getattr(r, "stop", None) is not None for r in self.reducers)

    def stop(self, state: list[PyTree]) -> bool:
        """Whether any of the reducers asks to stop now."""
        stops = [getattr(r, "stop", None) for r in self.reducers]
        both = zip(stops, state, strict=True)
        return any(stop is not None and bool(stop(s)) for stop, s in both)


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
    return Many([leaf for _, leaf in leaves], structure)


def is_reducer(x: object) -> TypeGuard[AnyReducer]:
    """Whether `x` is a reducer."""
    return isinstance(x, Reduction | Reducer)


def _on_host(leaf: Any) -> Any:
    """Arrays in NumPy, but for PRNG keys; anything else as it is."""
    is_array = eqx.is_array(leaf) and not isinstance(leaf, np.ndarray)
    if not is_array or not isinstance(getattr(leaf, "dtype", None), np.dtype):
        return leaf
    return np.asarray(leaf)[()]
