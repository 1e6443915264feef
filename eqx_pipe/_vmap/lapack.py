"""Batches of linear algebra for which some versions of JAX hang.

JAX 0.10.0 to 0.11.0 split a batch of matrices over the thread pool that all CPU devices
of a process share, and wait for the pieces. A program may itself run in a thread of
that pool. If all of its threads wait, no piece is ever computed: a deadlock
(`ParallelBatchMap` in `jaxlib/cpu/lapack_kernels.cc`, fixed in
https://github.com/jax-ml/jax/commit/8599924). Batches of little work are not split, and
are safe. This module can be removed when JAX 0.11.1 is the oldest version supported.
"""

import math
import os
from collections.abc import Sequence
from typing import Any

from jaxlib.version import __version__ as JAXLIB

from .._errors import log_once
from .._jaxprs import Equation
from .cores import num_cores

_HANGS = (0, 10), (0, 11, 1)
"""The first version of jaxlib that may hang, and the first in which this is fixed."""

_THREADS = 8
"""A sufficient number of threads per device; with 2, JAX 0.10.1 still hung."""

_SPLIT = 200_000
"""A batch with fewer operations than this is not split."""

# Routines that are split. The operations of one matrix of m rows and n columns are at
# most these times m n min(m, n), as JAX estimates them for the most expensive one.
_SPLIT_ROUTINES = frozenset(
    """
    cholesky eig eigh geqp3 geqrf hessenberg householder_product lu ormqr qr schur svd
    triangular_solve tridiagonal tridiagonal_solve
    """.split()
)
_PER_PRODUCT, _COMPLEX = 10, 3


def linalg_limit(eqn: Equation) -> int | None:
    """Return the maximum number of points for which an equation is not split.

    It is `None` if the equation is never split, 0 if it is split for a single point.
    """
    if eqn.primitive.name not in _SPLIT_ROUTINES:
        return None
    avals: list[Any] = [v.aval for v in (*eqn.invars, *eqn.outvars)]
    shapes = [aval.shape for aval in avals if len(aval.shape) >= 2]
    num_matrices = max(math.prod(shape[:-2]) for shape in shapes)
    one = max(math.prod(shape[-2:]) * min(shape[-2:]) for shape in shapes)
    is_complex = avals[0].dtype.kind == "c"
    operations = num_matrices * one * _PER_PRODUCT * (_COMPLEX if is_complex else 1)
    if operations == 0:
        return None
    # A single matrix is never split.
    return max((_SPLIT - 1) // operations, int(num_matrices == 1))


def may_hang(devices: Sequence[Any]) -> bool:
    """Return whether split batches may hang on these devices."""
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
    """Log once per process that a sweep may hang, and the fix."""
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
    """Return the numbers of the version, without a suffix like `dev`."""
    return tuple(int(n) for n in JAXLIB.split(".")[:3] if n.isdecimal())


def _pool_size() -> int:
    """Return the number of threads that devices share, if NPROC was set at start."""
    given = os.environ.get("NPROC", "")
    return int(given) if given.isdecimal() and int(given) else num_cores()
