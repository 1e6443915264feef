"""A trial in double precision, in which differences tell most."""

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from ..._types import PyTree
from .trial import Trial, evaluate


@contextlib.contextmanager
def wide() -> Iterator[None]:
    """Double precision; what a stage closes over is promoted."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        yield


def cast(tree: PyTree, real: Any) -> PyTree:
    """Inexact arrays in another real dtype, complex ones in that of two such."""

    def one(leaf: Any) -> Any:
        if not eqx.is_inexact_array(leaf):
            return leaf
        is_complex = jnp.issubdtype(leaf.dtype, jnp.complexfloating)
        dtype = jnp.result_type(real, jnp.complex64) if is_complex else real
        with np.errstate(over="ignore"):  # half precision does not hold all numbers
            return jnp.asarray(np.asarray(leaf).astype(dtype))  # compiles nothing

    return jtu.tree_map(one, tree)


@contextlib.contextmanager
def widened(trial: Trial) -> Iterator[Trial]:
    """The trial in double precision, or as it is if the stage cannot do that."""
    parts = {"stage": trial.stage, "x": trial.x, "state": trial.state}
    found = None
    with contextlib.suppress(Exception), wide():
        other = dataclasses.replace(trial, **cast(parts, jnp.float64))
        given = (other.stage, other.x, other.state, other.key)
        eqx.filter_eval_shape(evaluate, *given)
        found = other
    if found is None:
        yield trial
        return
    with wide():
        yield found
