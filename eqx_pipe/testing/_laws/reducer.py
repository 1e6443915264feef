"""The laws of reducers."""

import dataclasses
import functools as ft
import itertools as it
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from ..._errors import describe_value, value_error
from ..._reduce import (
    AbstractReducer,
    ReduceLike,
    Reducer,
    ReducerTree,
    as_reducers,
    pick,
)
from ..._tree import as_arrays, struct_of
from ..._types import PyTree
from .law import USUAL, agree, agree_with_reference, check_laws, check_reference, law


@dataclasses.dataclass(frozen=True)
class ReducerTrial:
    """A reducer with the values of `n` points, split into three ranges."""

    many: ReducerTree
    values: PyTree
    n: int
    reference: Callable[[PyTree], PyTree] | None = None

    @ft.cached_property
    def empty(self) -> list[PyTree]:
        """The state of no points."""
        first = jtu.tree_map(lambda leaf: struct_of(leaf[0]), self.values)
        return self.many.begin(first)

    def state(self, start: int, stop: int, ok: Any = None) -> Any:
        """Return the state of the points from `start` to `stop`."""
        part = jtu.tree_map(lambda leaf: leaf[start:stop], self.values)
        ok = jnp.ones(stop - start, bool) if ok is None else ok[start:stop]
        return self.many.absorb(self.empty, part, ok)

    def same(self, got: Any, wanted: Any, labels: tuple[str, str]) -> None:
        """Raise `Broken` if the results of two states differ."""
        got, wanted = (as_arrays(self.many.finish(s)) for s in (got, wanted))
        agree(got, wanted, labels, USUAL)

    def steps(self, start: int, stop: int) -> list[PyTree]:
        """Return the state of the points from `start` to `stop`, one by one."""
        states = list(self.empty)
        for i in range(start, stop):
            point = jtu.tree_map(lambda leaf, i=i: leaf[i : i + 1], self.values)
            for j, r in enumerate(self.many.reducers):
                states[j] = _with_point(r, states[j], point)
        return states

    @ft.cached_property
    def thirds(self) -> list[list[PyTree]]:
        """The states of three consecutive ranges, by `update` alone."""
        cuts = (0, max(1, self.n // 3), max(2, 2 * self.n // 3), self.n)
        return [self.steps(a, b) for a, b in it.pairwise(cuts)]

    # First, since a batch is merged of several stretches.
    @law("merge", "merged states of parts, also of no points, equal that of the whole.")
    def merge_law(self) -> None:
        (a, b, c), whole = self.thirds, self.steps(0, self.n)
        merge, empty = self.many.merge, self.empty
        merged = {
            "as (a b) c": merge(merge(a, b), c),
            "as a (b c)": merge(a, merge(b, c)),
            "with no points before": merge(empty, whole),
            "with no points after": merge(whole, empty),
        }
        for how, state in merged.items():
            self.same(state, whole, (how, "one by one"))

    @law("update", "points one by one give the same result as all at once.")
    def update_law(self) -> None:
        at_once = self.state(0, self.n)
        self.same(self.steps(0, self.n), at_once, ("one by one", "at once"))

    @law("failed", "points that failed do not count.")
    def failed_law(self) -> None:
        ok = jnp.arange(self.n) < self.n - 1
        got = self.state(0, self.n, ok)
        wanted = self.state(0, self.n - 1)
        self.same(got, wanted, ("with a failed point", "without it"))

    @law("jit", "compiled, it gives the same results.")
    def jit_law(self) -> None:
        ok, (a, b, _) = jnp.ones(self.n, bool), self.thirds
        absorb = jax.jit(lambda values: self.many.absorb(self.empty, values, ok))
        merge = jax.jit(lambda a, b: self.many.merge(a, b))
        self.same(absorb(self.values), self.state(0, self.n), ("under jit", "plain"))
        wanted = self.many.merge(a, b)
        self.same(merge(a, b), wanted, ("merged under jit", "plain"))

    @law("reference", "it agrees with the reference.")
    def reference_law(self) -> None:
        if self.reference is not None:
            got = self.many.finish(self.state(0, self.n))
            wanted = self.reference(self.values)
            agree_with_reference(got, wanted)


def _with_point(reducer: AbstractReducer, state: PyTree, point: PyTree) -> PyTree:
    """Return the state after a batch of one point, by `update` if it is defined."""
    if not isinstance(reducer, Reducer):
        return reducer.absorb(state, point, jnp.ones(1, bool))
    value = jtu.tree_map(lambda leaf: leaf[0], point)
    return reducer.update(state, pick("testing.check_reducer", reducer.by, value))


def check_reducer(
    reducer: ReduceLike,
    values: PyTree,
    *,
    reference: Callable[[PyTree], PyTree] | None = None,
) -> None:
    """Check that a reducer can be split, merged and compiled as in a sweep.

    The laws: merging is associative, with the empty state as its identity on both
    sides; points give the same result one by one, in one batch, or in parts; points
    that are not `ok` do not count; results are the same under `jit`. The results of
    `finish` are compared.

    **Arguments:**

    - `reducer`: a reducer such as `Mean()`, your own `Reducer(...)`, or a pytree of
        reducers.
    - `values`: outputs at a few points: a pytree of arrays with a leading axis of at
        least three points.
    - `reference`: a function of `values` that returns the same as the reducer, such as
        a NumPy function, which detects a wrong initial state or an overflow. (Keyword
        only.)

    **Raises:** `AssertionError` if a law is broken; `ValueError` if `values` has fewer
    than three points.

    !!! example

        >>> import eqx_pipe as ep, eqx_pipe.testing as ept, jax.numpy as jnp
        >>> import numpy as np
        >>> ept.check_reducer(ep.reduce.Var(), jnp.array([1.0, 5.0, 2.0, 2.0]))
        >>> ept.check_reducer(ep.reduce.Max(), jnp.array([-2, -3, -1]),
        ...     reference=np.max)
    """
    __tracebackhide__ = True
    function = "testing.check_reducer"
    check_reference(function, reference)
    many = as_reducers(function, reducer)
    values = as_arrays(values)
    sizes = {leaf.shape[0] if leaf.ndim else 0 for leaf in jtu.tree_leaves(values)}
    if len(sizes) != 1 or min(sizes) < 3:
        raise value_error(
            function,
            f"`values` is {describe_value(values)}, with leading axes of the sizes "
            f"{sorted(sizes)}.",
            "Give outputs of at least three points, stacked along a leading axis.",
        )
    trial = ReducerTrial(many, values, min(sizes), reference)
    check_laws("check_reducer", "a reducer", trial, type(reducer).__name__)
