"""The settings of JAX under which a sweep is traced and runs."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from ..._errors import type_error

_SETTINGS = (
    "enable_x64",
    "numpy_dtype_promotion",
    "numpy_rank_promotion",
    "default_matmul_precision",
    "default_prng_impl",
    "threefry_partitionable",
    "debug_nans",
    "debug_infs",
)


def no_mesh() -> Any:
    """Leaves the user's own mesh context, which would end up in the program."""
    try:
        return jax.set_mesh(Mesh(np.empty((), object), ()))
    except ValueError as error:  # it has to be set outside of all transformations
        raise type_error(
            "sweep",
            "it was called under a transformation (`jit`, `grad`, `vmap`, ...).",
            "A sweep runs on the host. Use `eqx_pipe.vmap_space`, which is a pure "
            "function.",
        ) from error


def settings() -> dict[str, Any]:
    """The settings that programs depend on, to be used in another process."""
    return {name: getattr(jax.config, f"jax_{name}") for name in _SETTINGS}


@contextlib.contextmanager
def under(settings: dict[str, Any]) -> Iterator[None]:
    """Runs under the settings of another process, without a mesh."""
    with contextlib.ExitStack() as stack:
        for name, value in settings.items():
            stack.enter_context(getattr(jax, name)(value))
        stack.enter_context(no_mesh())
        yield
