"""A stage with the input, state and key on which a law is tried."""

import contextlib
import dataclasses
import functools as ft
from typing import Any

import equinox as eqx
import jax
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from equinox.nn import State

from ..._check import check_callable, check_key
from ..._errors import MissingKeyError
from ..._stage import Scope, as_module, call, check_state, copy_state, wants_key
from ..._tree import is_key_array
from ..._types import Key, PyTree, StageLike
from .held import held


@dataclasses.dataclass(frozen=True)
class Trial:
    """A stage and what it is called with.

    Plain calls are the expensive part, since a loop or a branch compiles again each
    time, so those that several laws need are made once.
    """

    stage: StageLike
    x: PyTree
    state: State | None = None
    key: Key | None = None
    held: dict[str, Any] | None = None  # what the stage held before any call

    def again(self) -> PyTree:
        """What another plain call gives."""
        return evaluate(self.stage, self.x, self.state, self.key)

    @ft.cached_property
    def plain(self) -> PyTree:
        """What a plain call gives; on a copy, should the stage write into its input."""
        return snapshot(evaluate(self.stage, snapshot(self.x), self.state, self.key))

    @ft.cached_property
    def examples(self) -> list[tuple[PyTree, Key | None, PyTree]]:
        """Inputs like `x` that the stage takes, keys for them, and plain outputs."""
        keys = fold_all(self.key, 3)
        found = [(self.x, self.key, self.plain)]
        for x, key in zip(variants(self.x), keys, strict=False):
            # Another input may lie outside of what the stage takes.
            with contextlib.suppress(Exception):
                found.append((x, key, evaluate(self.stage, x, self.state, key)))
        return found

    @ft.cached_property
    def program(self) -> tuple[Any, list[Any]]:
        """A plain call as a jaxpr, and its arguments, of which the key is the first."""
        given = (self.key, self.stage, self.x, self.state)
        try:
            return _traced(given, eqx.is_array)
        except Exception:
            # The stage looks at numbers, which then are those of this input.
            with jax.ensure_compile_time_eval():
                is_key = jtu.tree_map(lambda leaf: leaf is self.key, given)
                return _traced(given, is_key)

    def on(self, x: PyTree) -> "Trial":
        """The same stage on another input."""
        return dataclasses.replace(self, x=x)


class Packed(eqx.Module):
    """A stage of several inputs as a stage of one tuple."""

    stage: StageLike

    def __call__(self, x: PyTree, *, key: Key | None = None) -> PyTree:
        return call(self.stage, tuple(x), None, Scope(key))[0]


def evaluate(
    stage: StageLike, x: PyTree, state: State | None, key: Key | None
) -> dict[str, PyTree]:
    """The output, and the new state if there is one; the old state stays valid."""
    y, new = call(stage, (x,), copy_state(state), Scope(key))
    return {"output": y} if state is None else {"output": y, "state": new}


def trial_of(
    function: str, stage: StageLike, x: PyTree, state: State | None, key: Key | None
) -> Trial:
    """The arguments of a law, after a check and a first plain call.

    What a stage raises on the caller's own input is raised as it is: then there is no
    law to check.
    """
    __tracebackhide__ = True
    check_callable(function, "stage", stage)
    child = as_module(stage)
    check_key(function, key)
    check_state(function, child, state)
    trial = Trial(child, x, state, key, held(child))
    try:
        trial.plain  # noqa: B018
    except Exception as error:
        if key is None and wants_key(error, child):
            raise MissingKeyError("stage") from error
        error.add_note(f"In the plain call that `eqx_pipe.{function}` makes first.")
        raise
    return trial


def _traced(given: PyTree, chosen: Any) -> tuple[Any, list[Any]]:
    traced, rest = eqx.partition(given, chosen)
    leaves, structure = jtu.tree_flatten(traced)

    def run(*leaves: Any) -> PyTree:
        whole = eqx.combine(jtu.tree_unflatten(structure, leaves), rest)
        key, stage, x, state = whole
        return eqx.filter(evaluate(stage, x, state, key), eqx.is_array)

    return jax.make_jaxpr(run)(*leaves), leaves


def snapshot(tree: PyTree) -> PyTree:
    """A copy that later writes into arrays or containers do not reach."""

    def copy(leaf: Any) -> Any:
        return leaf.copy() if isinstance(leaf, np.ndarray) else leaf

    return jtu.tree_map(copy, tree)


def variants(x: PyTree) -> list[PyTree]:
    """A few inputs like `x`: the same numbers elsewhere, and smaller ones.

    They are made from `x`, so that they have a chance to lie in the domain of a stage
    that takes only some numbers.
    """

    def rolled(leaf: Any) -> Any:
        array = _movable(leaf)
        return leaf if array is None else np.roll(array.ravel(), 1).reshape(array.shape)

    def halved(leaf: Any) -> Any:
        if not eqx.is_inexact_array(leaf):
            return leaf
        return (np.asarray(leaf) * np.asarray(0.5, leaf.dtype)).astype(leaf.dtype)

    moved = jtu.tree_map(rolled, x)
    return [_like(v, x) for v in (moved, jtu.tree_map(halved, moved))]


def _movable(leaf: Any) -> np.ndarray | None:
    return np.asarray(leaf) if eqx.is_array(leaf) and not is_key_array(leaf) else None


def _like(tree: PyTree, x: PyTree) -> PyTree:
    def one(new: Any, old: Any) -> Any:
        return jax.numpy.asarray(new) if isinstance(old, jax.Array) else new

    return jtu.tree_map(one, tree, x)


def fold_all(key: Key | None, n: int) -> list[Key | None]:
    """A key for each of several examples."""
    return [None if key is None else jr.fold_in(key, i) for i in range(n)]
