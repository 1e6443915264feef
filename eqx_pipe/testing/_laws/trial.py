"""A stage with the input, state and key on which a law is tried."""

import contextlib
import dataclasses
import functools as ft
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from equinox.nn import State
from jax.core import Tracer

from ..._check import check_callable
from ..._errors import MissingKeyError
from ..._jaxprs.jaxpr import equations
from ..._keys import check_key
from ..._stage import Scope, as_module, call, check_state, copy_state, wants_key
from ..._tree import is_key_array, leaves_with_names
from ..._types import Key, PyTree, StageLike
from .compare import Bound, Tolerance, tolerance_of
from .held import held


@dataclasses.dataclass(frozen=True)
class Trial:
    """A stage, what it is called with, and how far its numbers may be apart.

    Plain calls are the expensive part, since a loop or a branch compiles again each
    time, so those that several laws need are made once.
    """

    stage: StageLike
    x: PyTree
    state: State | None = None
    key: Key | None = None
    tolerance: Tolerance = Tolerance()
    held: dict[str, Any] | None = None  # what the stage held before any call

    def again(self) -> PyTree:
        """What another plain call gives."""
        return evaluate(self.stage, self.x, self.state, self.key)

    @ft.cached_property
    def plain(self) -> PyTree:
        """The result of a plain call, on a copy, since a call may change its input."""
        given = jtu.tree_map(copied, self.x)
        return snapshot(self.on(given).again())

    @ft.cached_property
    def examples(self) -> list[tuple[PyTree, Key | None, PyTree]]:
        """Inputs like `x` that the stage takes, keys for them, and plain outputs."""
        found = [(self.x, self.key, self.plain)]
        for i, x in enumerate(variants(self.x)):
            key = None if self.key is None else jr.fold_in(self.key, i)
            # Another input may lie outside of what the stage takes.
            with contextlib.suppress(Exception):
                found.append((x, key, evaluate(self.stage, x, self.state, key)))
        return found

    def batch(self, n: int) -> tuple[PyTree, Any, PyTree] | None:
        """`n` inputs, keys and plain outputs, each stacked; `None` if they differ."""
        chosen = [self.examples[i % len(self.examples)] for i in range(n)]
        try:
            xs, keys, outputs = map(stack, zip(*chosen, strict=True))
        except (TypeError, ValueError):
            return None
        return xs, keys, outputs

    @ft.cached_property
    def program(self) -> tuple[Any, list[Any]]:
        """A plain call as a jaxpr, and its arguments."""
        given = (self.stage, self.x, self.state, self.key)
        try:
            program = eqx.filter_make_jaxpr(evaluate)(*given)[0]
        except Exception:
            # The stage looks at numbers, which then are those of this input.
            with jax.ensure_compile_time_eval():
                of_key = eqx.filter_make_jaxpr(lambda key: evaluate(*given[:3], key))
                return of_key(self.key)[0], [self.key]
        return program, jtu.tree_leaves(eqx.filter(given, eqx.is_array))

    @property
    def coarser(self) -> "Trial | None":
        """With the bounds of the fewest digits that the stage computes with on the way.

        `None` if these are no wider: half precision inside of a stage of float32 leaves
        roundings that depend on what XLA fuses.
        """
        try:
            variables = [v for e in equations(self.program[0]) for v in e.outvars]
        except Exception:
            return None
        dtypes = [getattr(v.aval, "dtype", np.dtype(int)) for v in variables]
        halves = [v.name for v in dtypes if v in (jnp.float16, jnp.bfloat16)]
        if not halves or self.tolerance != Tolerance():
            return None
        coarsest = "bfloat16" if "bfloat16" in halves else "float16"
        return dataclasses.replace(self, tolerance=Tolerance(coarsest=coarsest))

    def on(self, x: PyTree) -> "Trial":
        """The same stage on another input."""
        return dataclasses.replace(self, x=x)


def trial_of(
    function: str,
    stage: StageLike,
    x: PyTree,
    state: State | None,
    key: Key | None,
    rtol: Bound,
    atol: Bound,
) -> Trial:
    """The arguments of a law, after a check and a first plain call.

    What a stage raises on the caller's own input is raised as it is: then there is no
    law to check.
    """
    __tracebackhide__ = True
    tolerance = tolerance_of(function, rtol, atol)
    check_callable(function, "stage", stage)
    child = as_module(stage)
    check_key(function, key)
    check_state(function, child, state)
    trial = Trial(child, as_jax_sees(x), state, key, tolerance, held(child))
    try:
        trial.plain  # noqa: B018
    except Exception as error:
        if key is None and wants_key(error, child):
            raise MissingKeyError("stage") from error
        error.add_note(f"In the plain call that `eqx_pipe.{function}` makes first.")
        raise
    return trial


def as_jax_sees(x: PyTree) -> PyTree:
    """An input whose NumPy arrays have the dtypes that JAX would give them.

    Without `jax_enable_x64` it makes 32 bits of 64. A plain call in NumPy keeps them,
    which is no fault of the stage.
    """

    def narrowed(leaf: Any) -> Any:
        if not isinstance(leaf, np.ndarray):
            return leaf
        return leaf.astype(jax.dtypes.canonicalize_dtype(leaf.dtype), copy=False)

    return jtu.tree_map(narrowed, x)


def evaluate(
    stage: StageLike, x: PyTree, state: State | None, key: Key | None
) -> dict[str, PyTree]:
    """The output, and the new state if there is one; the old state stays valid."""
    y, new = call(stage, (x,), copy_state(state), Scope(key))
    return {"output": y} if state is None else {"output": y, "state": new}


def snapshot(tree: PyTree) -> PyTree:
    """A copy that later writes into arrays or containers do not reach."""

    def copy(leaf: Any) -> Any:
        return leaf.copy() if isinstance(leaf, np.ndarray) else leaf

    return jtu.tree_map(copy, tree)


def copied(leaf: Any) -> Any:
    """An array of its own: by way of NumPy, which compiles nothing."""
    if isinstance(leaf, np.ndarray):
        return leaf.copy()
    if not isinstance(leaf, jax.Array) or isinstance(leaf, Tracer):
        return leaf
    # NumPy would lose the key, the weak type or the sharding.
    if is_key_array(leaf) or leaf.weak_type or len(leaf.devices()) > 1:
        return leaf
    return jnp.asarray(np.array(leaf))


def variants(x: PyTree) -> list[PyTree]:
    """A few inputs like `x`: the same numbers elsewhere, and smaller ones.

    They are made from `x`, so that they have a chance to lie in the domain of a stage
    that takes only some numbers.
    """

    def rolled(leaf: Any) -> Any:
        return changed(leaf, lambda v: np.roll(v, 1)) if is_numbers(leaf) else leaf

    def halved(leaf: Any) -> Any:
        half = np.asarray(0.5, getattr(leaf, "dtype", float))
        return changed(leaf, lambda v: v * half) if eqx.is_inexact_array(leaf) else leaf

    moved = jtu.tree_map(rolled, x)
    return [moved, jtu.tree_map(halved, moved)]


def inexact_arrays(tree: PyTree) -> tuple[list[str], list[Any]]:
    """The arrays of real and complex numbers in a pytree: their names, and they."""
    named = [(n, v) for n, v in leaves_with_names(tree) if eqx.is_inexact_array(v)]
    return [name for name, _ in named], [leaf for _, leaf in named]


def is_numbers(leaf: Any) -> bool:
    """Whether a leaf is an array, and not of keys."""
    return eqx.is_array(leaf) and not is_key_array(leaf)


def changed(leaf: Any, change: Callable[[np.ndarray], np.ndarray]) -> Any:
    """An array after a change made in NumPy, of its dtype, and of JAX if it was."""
    new = np.asarray(change(np.asarray(leaf))).astype(leaf.dtype)
    return jnp.asarray(new) if isinstance(leaf, jax.Array) else new


def stack(trees: Sequence[PyTree]) -> PyTree:
    """Pytrees as one with a leading axis; leaves that are no arrays, of the first."""

    def join(*leaves: Any) -> Any:
        if eqx.is_array_like(leaves[0]) and not isinstance(leaves[0], str):
            return jnp.stack([jnp.asarray(leaf) for leaf in leaves])
        return leaves[0]

    return jtu.tree_map(join, *trees)
