"""The law that a batch is a loop over its examples."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from equinox.nn import State

from ..._types import Key, PyTree, StageLike
from .compare import Bound, Finding, Tolerance, compare, raised
from .law import Law
from .report import check
from .trial import Trial, evaluate


def find(trial: Trial, tolerance: Tolerance) -> Finding | None:
    """What `check_vmap` finds."""
    found = examples(trial)
    if found is None:
        return None
    xs, keys, wanted = found
    try:
        got = _COMPILED(trial.stage, xs, trial.state, keys)
    except Exception as error:
        return raised(error, "`jax.vmap`")
    return compare(got, wanted, tolerance, ("under vmap", "in the loop"))


def examples(trial: Trial, n: int = 3) -> tuple[PyTree, Any, PyTree] | None:
    """A batch of `n` inputs, keys, and plain outputs; `None` if they make no batch."""
    plain = trial.examples
    try:
        chosen = [plain[i % len(plain)] for i in range(n)]
        xs, keys, wanted = zip(*chosen, strict=True)
        return stack(xs), stack(keys), stack(wanted)
    except (TypeError, ValueError):
        return None  # outputs that differ in form


def over_batch(stage: Any, xs: PyTree, state: Any, keys: Any) -> PyTree:
    """The stage under `vmap`, each example with a state and a key of its own."""
    arrays, rest = eqx.partition(xs, eqx.is_array)
    others: list[Any] = []

    def one(x: PyTree, key: Any, own: PyTree) -> PyTree:
        y = _with_arrays(evaluate(stage, eqx.combine(x, rest), own, key))
        arrays, other = eqx.partition(y, eqx.is_array)
        others[:] = [other]
        return arrays

    sizes = [leaf.shape[0] for leaf in jtu.tree_leaves((arrays, keys))]
    if not sizes:
        return one(arrays, None, state)
    out = jax.vmap(one)(arrays, keys, stack([state] * sizes[0]))
    return eqx.combine(out, others[0])


_COMPILED = eqx.filter_jit(over_batch)


def stack(trees: Sequence[PyTree]) -> PyTree:
    """Pytrees as one with a leading axis; leaves that are no arrays, of the first."""

    def join(*leaves: Any) -> Any:
        if eqx.is_array_like(leaves[0]) and not isinstance(leaves[0], str):
            return jnp.stack([jnp.asarray(leaf) for leaf in leaves])
        return leaves[0]

    return jtu.tree_map(join, *trees)


def _with_arrays(tree: PyTree) -> PyTree:
    return jtu.tree_map(lambda v: jnp.asarray(v) if eqx.is_array_like(v) else v, tree)


LAW = Law(
    "vmap", "`jax.vmap` over a batch gives what a loop over its examples gives.", find
)


def check_vmap(
    stage: StageLike,
    x: PyTree,
    state: State | None = None,
    *,
    key: Key | None = None,
    rtol: Bound = None,
    atol: Bound = None,
) -> None:
    """Checks that `jax.vmap` of a stage is a loop over the examples.

    The batch is made of `x` and of inputs with the numbers of `x` in other places; each
    example has a key and a state of its own.

    **Arguments:** those of `check_stage`.

    **Raises:** `AssertionError` if the law is broken.
    """
    __tracebackhide__ = True
    check(LAW, stage, x, state, key, rtol, atol)
