"""Reducers that reduce each leaf of the output by itself."""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array

from .._types import PyTree, PyTreeDef
from . import exact
from .reducer import AbstractReducer, Ok, numbers, pick_all


class _Form(NamedTuple):
    """The structure and the dtypes of what is reduced."""

    structure: PyTreeDef
    dtypes: tuple[np.dtype, ...]


class Leaves(eqx.Module):
    """The number of points, and the state of each leaf."""

    count: exact.Pair
    states: list[PyTree]
    form: _Form = eqx.field(static=True)


class LeafReducer(AbstractReducer):
    """A reducer that is defined by what it does with one leaf.

    Complex numbers are refused if it is `ordered`.
    """

    ordered: eqx.AbstractClassVar[bool]

    @abc.abstractmethod
    def empty(self, leaf: jax.ShapeDtypeStruct) -> PyTree:
        """Return the state of no points."""

    @abc.abstractmethod
    def after(self, state: PyTree, leaf: Array, ok: Ok) -> PyTree:
        """Return the state after a batch."""

    @abc.abstractmethod
    def joined(self, first: PyTree, second: PyTree) -> PyTree:
        """Return the state of the points of both."""

    @abc.abstractmethod
    def result(self, state: PyTree, dtype: np.dtype, count: np.ndarray) -> Any:
        """Return the result for a leaf of some dtype; or those of states in a row."""

    def begin(self, struct: PyTree) -> Leaves:
        """Return the state of no points, for outputs of these shapes and dtypes."""
        chosen = numbers(self, struct, ordered=self.ordered)
        leaves, structure = jtu.tree_flatten(chosen)
        form = _Form(structure, tuple(leaf.dtype for leaf in leaves))
        return Leaves(exact.zero((), jnp.uint32), list(map(self.empty, leaves)), form)

    def absorb(self, state: Leaves, values: PyTree, ok: Ok) -> Leaves:
        """Return the state after a batch: outputs with a leading axis, and which."""
        leaves = jtu.tree_leaves(pick_all(self, values))
        pairs = zip(state.states, leaves, strict=True)
        states = [self.after(before, leaf, ok) for before, leaf in pairs]
        count = exact.add(state.count, exact.count(ok))
        return Leaves(count, states, state.form)

    def merge(self, first: Leaves, second: Leaves) -> Leaves:
        """Return the state of the points of both."""
        states = list(map(self.joined, first.states, second.states))
        return Leaves(exact.add(first.count, second.count), states, first.form)

    def finish(self, state: Leaves) -> PyTree:
        """Return the results in the place of the leaves."""
        count = exact.on_host(state.count, jnp.uint32)
        pairs = zip(state.states, state.form.dtypes, strict=True)
        found = [self.result(one, dtype, count)[()] for one, dtype in pairs]
        return jtu.tree_unflatten(state.form.structure, found)
