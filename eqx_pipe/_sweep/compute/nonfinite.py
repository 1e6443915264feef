"""NaN and inf in what a kernel gives, where JAX was asked to find them.

JAX looks at the outputs of a program that was compiled ahead of time at its first call
only, so a sweep looks itself.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def check_finite(outputs: Sequence[Any], infs: bool = True) -> None:
    """Raises a `FloatingPointError` under `jax_debug_nans`, `jax_debug_infs`.

    `outputs` are arrays on devices, each of which is looked at by itself; `infs` says
    that an inf is not what some of them begin with.
    """
    config: Any = jax.config
    nans = config.jax_debug_nans
    infs = infs and config.jax_debug_infs
    if not (nans or infs):
        return
    for leaf in outputs:
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            continue
        for shard in leaf.addressable_shards:
            data = np.asarray(shard.data)
            if nans and np.any(np.isnan(data)):
                raise FloatingPointError("nan")
            if infs and np.any(np.isinf(data)):
                raise FloatingPointError("inf")


def as_nonfinite(error: Exception) -> FloatingPointError:
    """The error about NaN or inf; raises what is none."""
    if isinstance(error, FloatingPointError):
        return error
    # What JAX raises by itself, and `jit` would translate.
    if type(error).__name__ == "InternalFloatingPointError":
        return FloatingPointError(error.args[-1] if error.args else "nan")
    raise error
