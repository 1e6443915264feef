"""The laws that compiling, tracing and batching change nothing."""

from typing import Any

import equinox as eqx
import jax.tree_util as jtu
from equinox.nn import State

from ..._tree import as_arrays
from ..._types import Key, PyTree, StageLike
from .compare import Bound, agree, agree_in_form
from .law import law, must_work
from .report import check
from .trial import Trial, evaluate, stack

# One for all calls, so that a stage compiles once and not for each input.
_compiled = eqx.filter_jit(evaluate)


@law("jit", "under `equinox.filter_jit` a stage gives what a plain call gives.")
def jit_law(trial: Trial) -> None:
    with must_work("`equinox.filter_jit`"):
        got = _compiled(trial.stage, trial.x, trial.state, trial.key)
    agree(got, trial.plain, ("under jit", "plain"), trial.tolerance)


@law(
    "struct",
    "abstract evaluation gives the structure, shapes and dtypes of a real one.",
)
def struct_law(trial: Trial) -> None:
    def form(leaf: Any) -> Any:
        if isinstance(leaf, bool | int | float | complex):
            return jtu.tree_leaves(eqx.filter_eval_shape(lambda: leaf))[0]
        return leaf

    given = (trial.stage, trial.x, trial.state, trial.key)
    with must_work("abstract evaluation"):
        abstract = eqx.filter_eval_shape(evaluate, *given)
    got, wanted = (jtu.tree_map(form, tree) for tree in (abstract, trial.plain))
    agree_in_form(got, wanted, ("abstractly", "when run"))


@law("vmap", "`jax.vmap` over a batch gives what a loop over its examples gives.")
def vmap_law(trial: Trial) -> None:
    batch = trial.batch(3)
    if batch is None:
        return
    xs, keys, wanted = batch
    with must_work("`jax.vmap`"):
        got = _compiled_over_batch(trial.stage, xs, trial.state, keys)
    agree(got, wanted, ("under vmap", "in the loop"), trial.tolerance)


def over_batch(stage: Any, xs: PyTree, state: Any, keys: Any) -> PyTree:
    """The stage under `vmap`, each example with a state and a key of its own."""

    def one(x: PyTree, key: Any, own: PyTree) -> PyTree:
        return as_arrays(evaluate(stage, x, own, key))

    arrays = jtu.tree_leaves(eqx.filter((xs, keys), eqx.is_array))
    if not arrays:
        return one(xs, None, state)
    return eqx.filter_vmap(one)(xs, keys, stack([state] * len(arrays[0])))


_compiled_over_batch = eqx.filter_jit(over_batch)


def check_jit(
    stage: StageLike,
    x: PyTree,
    state: State | None = None,
    *,
    key: Key | None = None,
    rtol: Bound = None,
    atol: Bound = None,
) -> None:
    """Checks that a stage gives the same under `equinox.filter_jit`.

    **Arguments:** those of `check_stage`.

    **Raises:** `AssertionError` if the law is broken.

    !!! example

        >>> import eqx_pipe.testing as ept, jax.numpy as jnp
        >>> ept.check_jit(lambda x: x if x.sum() > 0 else -x, jnp.ones(2))
        Traceback (most recent call last):
            ...
        AssertionError: `eqx_pipe.testing.check_jit`: the law `jit` is broken: ...
    """
    __tracebackhide__ = True
    check(jit_law, stage, x, state, key, rtol, atol)


def check_struct(
    stage: StageLike,
    x: PyTree,
    state: State | None = None,
    *,
    key: Key | None = None,
    rtol: Bound = None,
    atol: Bound = None,
) -> None:
    """Checks that abstract evaluation (`jax.eval_shape`) tells what will come out.

    Structure, shapes and dtypes are compared with those of a plain call. A stage that
    computes in NumPy, which makes `float64` of many things, is a way to break this.

    **Arguments:** those of `check_stage`.

    **Raises:** `AssertionError` if the law is broken.
    """
    __tracebackhide__ = True
    check(struct_law, stage, x, state, key, rtol, atol)


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
    check(vmap_law, stage, x, state, key, rtol, atol)
