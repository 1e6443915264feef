"""Batches of linear algebra that some versions of JAX never finish.

JAX 0.10.0 to 0.11.0 split a batch of matrices over the pool of threads that all CPU
devices of a process share, and wait for the pieces. A program may run in a thread of
that pool itself. If all of its threads wait, no piece is ever computed: a deadlock, and
the program hangs (`ParallelBatchMap` in `jaxlib/cpu/lapack_kernels.cc`, mended in
https://github.com/jax-ml/jax/commit/8599924). Batches of little work are not split, and
are safe. All of this can go when JAX 0.11.1 is the oldest version supported.
"""

import math
import os
from collections.abc import Sequence
from typing import Any

from jaxlib.version import __version__ as JAXLIB

from ..._errors import log_once
from ..._jaxprs.jaxpr import Equation
from ..cores import num_cores

_HANGS = (0, 10), (0, 11, 1)
"""The first version of jaxlib that may hang, and the first that does not any more."""

_THREADS = 8
"""So many threads for each device are enough; with 2, JAX 0.10.1 still hung."""

_SPLIT = 200_000
"""A batch of fewer operations than this is not split."""

# The operations of one matrix of m rows and n columns, over m n min(m, n), as JAX
# estimates them for the most expensive routine that a primitive calls, rounded up. (For
# a tridiagonal system of m rows and n right-hand sides it is m n.)
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


def linalg_limit(eqn: Equation) -> int | None:
    """The most points for which an equation of one point is not split over threads.

    `None` if it never is, 0 if it is split for a single point.
    """
    per_product = _OPERATIONS.get(eqn.primitive.name)
    if per_product is None:
        return None
    avals: list[Any] = [v.aval for v in (*eqn.invars, *eqn.outvars)]
    shapes = [aval.shape for aval in avals]
    matrix = shapes[0]
    if eqn.primitive.name == "triangular_solve":
        one = math.prod(shapes[1][-2:]) * matrix[-1]
    elif eqn.primitive.name == "tridiagonal_solve":
        matrix = shapes[-1]
        one = math.prod(matrix[-2:])
    else:
        one = max(math.prod(s[-2:]) * min(s[-2:]) for s in shapes if len(s) >= 2)
    num_matrices = math.prod(matrix[:-2])
    is_complex = avals[0].dtype.kind == "c"
    operations = num_matrices * one * per_product * (_COMPLEX if is_complex else 1)
    if operations == 0:
        return None
    # A single matrix is not split, however much work it is.
    return max((_SPLIT - 1) // operations, int(num_matrices == 1))


def may_hang(devices: Sequence[Any]) -> bool:
    """Whether a sweep on these devices may hang in batches that are split."""
    first, mended = _HANGS
    threads = _pool_size()
    return (
        devices[0].platform == "cpu"
        and first <= _jaxlib_version() < mended
        and 1 < threads < _THREADS * len(devices)
    )


def warn_if_it_may_hang(
    batch_size: int, limit: int | None, devices: Sequence[Any]
) -> None:
    """Says once per process that a sweep may hang, and what to do."""
    if limit is None or batch_size <= limit or not may_hang(devices):
        return
    smaller = f"Use a `batch_size` of at most {limit}" if limit else "Use JAX 0.11.1"
    log_once(
        "linear algebra",
        "eqx_pipe.sweep: with jaxlib %s, batches of %d points of linear algebra on %d "
        "CPU device%s may hang. %s, or set the environment variable NPROC to at least "
        "%d before Python starts, which makes other sweeps slower.",
        JAXLIB,
        batch_size,
        len(devices),
        "s" * (len(devices) != 1),
        smaller,
        _THREADS * len(devices),
    )


def _jaxlib_version() -> tuple[int, ...]:
    """The numbers of the version, without a suffix like `dev`."""
    return tuple(int(n) for n in JAXLIB.split(".")[:3] if n.isdecimal())


def _pool_size() -> int:
    """How many threads the devices share, unless the environment was changed since."""
    given = os.environ.get("NPROC", "")
    return int(given) if given.isdecimal() and int(given) else num_cores()
