"""Linear algebra that would wait for threads which all wait.

JAX 0.10.0 to 0.11.0 split a batch of matrices over the pool of threads that all CPU
devices of a process share, and wait for the pieces. A program may run in a thread of
that pool itself. If all of its threads wait, no piece is ever computed, and the program
stands still (`ParallelBatchMap` in `jaxlib/cpu/lapack_kernels.cc`, until jax-ml/jax
commit 8599924). Only batches that are worth it are split: smaller ones are safe.
"""

import math
import os
from collections.abc import Sequence
from typing import Any

from .. import version
from ..cores import num_cores
from ..log import log_once

_THREADS = 8
"""So many threads for each device are enough; with 2, JAX 0.10.1 still stood still."""

_WORTH = 200_000
"""A batch of fewer operations than this is not split."""

# The operations of one matrix of m rows and n columns, over m n min(m, n), as JAX
# estimates them for the dearest routine that a primitive calls, rounded up. (For a
# tridiagonal system of m rows and n right-hand sides it is m n.)
_OPERATIONS = {
    "cholesky": 1,
    "eig": 10,
    "eigh": 5,
    "geqp3": 2,
    "geqrf": 2,
    "hessenberg": 2,
    "householder_product": 4,
    "lu": 1,
    "ormqr": 4,
    "qr": 4,
    "schur": 5,
    "svd": 10,
    "triangular_solve": 1,
    "tridiagonal": 2,
    "tridiagonal_solve": 5,
}
_COMPLEX = 3  # times as many


def most_whole(eqn: Any) -> int | None:
    """For how many points an equation of one point is not split.

    `None` if it never is, 0 if it is split for a single point.
    """
    per_product = _OPERATIONS.get(eqn.primitive.name)
    if per_product is None:
        return None
    shapes = [v.aval.shape for v in (*eqn.invars, *eqn.outvars)]
    matrix = shapes[0]
    if eqn.primitive.name == "triangular_solve":
        one = math.prod(shapes[1][-2:]) * matrix[-1]
    elif eqn.primitive.name == "tridiagonal_solve":
        matrix = shapes[-1]
        one = math.prod(matrix[-2:])
    else:
        one = max(math.prod(s[-2:]) * min(s[-2:]) for s in shapes if len(s) >= 2)
    number = math.prod(matrix[:-2])
    is_complex = eqn.invars[0].aval.dtype.kind == "c"
    operations = number * one * per_product * (_COMPLEX if is_complex else 1)
    if operations == 0:
        return None
    # A single matrix is not split, however much work it is.
    return max((_WORTH - 1) // operations, int(number == 1))


def may_wait(devices: Sequence[Any]) -> bool:
    """Whether batches that are split may wait for ever."""
    threads = _pool()
    return (
        devices[0].platform == "cpu"
        and (0, 10) <= version.jaxlib_version() < (0, 11, 1)
        and 1 < threads < _THREADS * len(devices)
    )


def say_if_it_may_stand_still(
    batch_size: int, whole: int | None, devices: Sequence[Any]
) -> None:
    """Says once per process that a sweep may wait for ever, and what to do."""
    if whole is None or batch_size <= whole or not may_wait(devices):
        return
    smaller = f"Use a `batch_size` of at most {whole}" if whole else "Use JAX 0.11.1"
    log_once(
        "linear algebra",
        "eqx_pipe.sweep: with jaxlib %s, batches of %d points of linear algebra on %d "
        "CPU device%s may stand still for ever. %s, or set the environment variable "
        "NPROC to at least %d before Python starts, which makes other sweeps slower.",
        version.JAXLIB,
        batch_size,
        len(devices),
        "s" * (len(devices) != 1),
        smaller,
        _THREADS * len(devices),
    )


def _pool() -> int:
    """How many threads the devices share, unless the environment was changed since."""
    given = os.environ.get("NPROC", "")
    return int(given) if given.isdecimal() and int(given) else num_cores()
