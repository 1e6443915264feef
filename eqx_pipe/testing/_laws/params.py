"""The law that all parameters of a stage count."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np
from equinox.nn import State

from ..._jaxprs.flow import Flow
from ..._jaxprs.jaxpr import open_jaxpr
from ..._tree import join_path, leaves_with_names
from ..._types import Key, PyTree, StageLike
from .compare import Bound
from .law import Broken, Undecided, law
from .report import check
from .trial import Trial


@law("params", "each array of parameters reaches the output.")
def params_law(trial: Trial) -> None:
    for name in _static_arrays(trial.stage):
        raise Broken(
            "static",
            "it is an array in a static field: no gradient reaches it, and a change of "
            "it is not seen by compiled programs; make the field an ordinary one",
            name,
        )
    arrays = [(n, v) for n, v in leaves_with_names(trial.stage) if eqx.is_array(v)]
    if not any(eqx.is_inexact_array(v) for _, v in arrays):
        return
    try:
        program = trial.program[0]
    except Exception as error:
        raise Undecided("the stage cannot be traced") from error
    inputs = len(open_jaxpr(program)[0].invars)
    if inputs < len(arrays):
        raise Undecided("the stage looks at its numbers, and cannot be traced")
    for i, (name, leaf) in enumerate(arrays):
        marks = [i == k for k in range(inputs)]
        counts = eqx.is_inexact_array(leaf) and leaf.size
        if counts and not any(Flow().run(program, marks)):
            raise Broken(
                "unused",
                "it does not reach the output; the stage may use an older copy, such "
                "as one that a function closes over",
                name,
            )


def _static_arrays(tree: PyTree, path: str = "") -> Iterator[str]:
    """Where modules hold arrays in static fields."""
    modules = jtu.tree_flatten_with_path(tree, is_leaf=lambda v: v is not tree)[0]
    if isinstance(tree, eqx.Module):
        for field in dataclasses.fields(tree):
            held = getattr(tree, field.name, None)
            if field.metadata.get("static") and _holds_array(held):
                yield join_path(path, field.name) if path else field.name
    for where, inner in modules:
        if inner is not tree:
            name = jtu.keystr(where, simple=True, separator=".")
            yield from _static_arrays(inner, join_path(path, name) if path else name)


def _holds_array(held: Any) -> bool:
    leaves = jtu.tree_leaves(held)
    return any(isinstance(v, jax.Array | np.ndarray) for v in leaves)


def check_params(
    stage: StageLike,
    x: PyTree,
    state: State | None = None,
    *,
    key: Key | None = None,
    rtol: Bound = None,
    atol: Bound = None,
) -> None:
    """Checks that each array of a stage's parameters is used.

    By the program that computes the output every array of real or complex numbers in
    the stage must lead to it: a parameter that does not would never be trained. No
    static field holds an array.

    **Arguments:** those of `check_stage`.

    **Raises:** `AssertionError` if the law is broken.

    !!! example

        >>> import equinox as eqx, eqx_pipe.testing as ept, jax, jax.numpy as jnp
        >>> class Scaled(eqx.Module):
        ...     scale: jax.Array
        ...     offset: jax.Array
        ...
        ...     def __call__(self, x, *, key=None):
        ...         return self.scale * x
        >>> ept.check_params(Scaled(jnp.ones(()), jnp.zeros(())), jnp.ones(2))
        Traceback (most recent call last):
            ...
        AssertionError: `eqx_pipe.testing.check_params`: the law `params` is broken: ...
    """
    __tracebackhide__ = True
    check(params_law, stage, x, state, key, rtol, atol)
