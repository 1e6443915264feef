"""Devices of this process: one for each core, and linear algebra that may hang on them.

JAX 0.10.0 to 0.11.0 split a batch of matrices over the thread pool that all CPU devices
of a process share, and wait for the pieces. A program may itself run in a thread of
that pool. If all of its threads wait, no piece is ever computed: a deadlock
(`ParallelBatchMap` in `jaxlib/cpu/lapack_kernels.cc`, fixed in
https://github.com/jax-ml/jax/commit/8599924). Batches of little work are not split, and
are safe. The second half of this file can be removed when JAX 0.11.1 is the oldest
version supported.
"""

import math
import operator
import os
from collections.abc import Sequence
from typing import Any, SupportsIndex

import jax
import jaxlib.version
from jax.sharding import Mesh

from .._check import check_int
from .._compiled import is_there
from .._errors import log_once, message, value_error
from .._jaxprs import Equation
from .._mesh_context import check_mesh
from .._types import Device


def local_devices(function: str, mesh: Mesh | None) -> tuple[Device, ...]:
    """Return the devices of `mesh`, or all of this process; those of others raise."""
    if mesh is None:
        return tuple(jax.local_devices())
    check_mesh(function, mesh)
    devices = tuple(mesh.devices.flat)
    if devices and not is_there(devices[0]):
        if function in ("plan", "plan_train"):
            return devices
        wrong = f"`mesh` has devices that are not there ({devices[0].device_kind})."
        cure = "Give a `topology` to `plan`, `plan_train` or `program`, which compile "
        cure += "for it and do not compute."
        raise value_error(function, wrong, cure)
    others = sum(d.process_index != jax.process_index() for d in devices)
    if others or not devices:
        cure = "Give a mesh of this process's own devices: "
        cure += "`jax.make_mesh((n,), ('x',), devices=jax.local_devices()[:n])`."
        if function in ("sweep", "plan"):
            cure += " To share a sweep between processes, give a `store` on a disk "
            cure += "that all see, and `shard='auto'`."
        wrong = f"`mesh` has {len(devices)} devices, {others} of them of other "
        raise value_error(function, f"{wrong}processes.", cure)
    return devices


def use_cpu_devices(n: SupportsIndex | None = None) -> None:
    """Give JAX a CPU device for every core, so that sweeps use all cores.

    JAX has one CPU device by default, so a sweep leaves most of the machine idle. Call
    this function at the top of a program, before JAX computes anything. Calling it
    again with the same number does nothing, so a notebook cell can be run again.

    **Arguments:**

    - `n`: the number of devices; by default the number of cores that this process may
        use, unless several devices were configured before, which are then kept.

    **Raises:** `RuntimeError` if JAX has already started with another number of CPU
    devices; `TypeError` if `n` is not an integer; `ValueError` if it is below 1.

    !!! example

        >>> import eqx_pipe as ep, jax
        >>> ep.use_cpu_devices(8)
        >>> len(jax.devices("cpu"))
        8
    """
    asked = n is not None
    n = num_cores() if n is None else n
    check_int("use_cpu_devices", "n", n, 1)
    n = operator.index(n)
    if not asked and jax.config.jax_num_cpu_devices > 1:
        return
    try:
        # Do not ask first whether JAX has started, since that would start it.
        jax.config.update("jax_num_cpu_devices", n)
    except RuntimeError as error:
        there = jax.local_device_count("cpu")
        if there != n and (asked or there == 1):
            wrong = f"JAX has already started with {there} CPU "
            wrong += f"device{'s' * (there != 1)}, but {n} were requested."
            cure = "Call it at the top of the program, right after the imports and "
            cure += "before anything that makes an array or asks for devices; in a "
            cure += "notebook restart the kernel and run it in the first cell."
            raise RuntimeError(message("use_cpu_devices", wrong, cure)) from error


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def warn_if_cores_idle(devices: Sequence[Device], mesh: Mesh | None) -> None:
    """Log once per process that a sweep uses only one of several cores.

    Nothing is logged if a mesh is given, or if there are several processes.
    """
    lone = len(devices) == 1 and devices[0].platform == "cpu"
    if mesh is not None or not lone or jax.process_count() > 1:
        return
    cores = num_cores()
    if cores == 1:
        return
    text = "eqx_pipe.sweep: this sweep runs on one CPU device, and this process may "
    text += "use %d cores. To use them all, call `eqx_pipe.use_cpu_devices()` at the "
    text += "top of the program, before JAX computes anything."
    log_once("idle cores", text, cores)


def all_busy(devices: Sequence[Any], batches: int) -> bool:
    """Return whether `batches` on these devices occupy every core of a CPU."""
    on_cpu = all(device.platform == "cpu" for device in devices)
    return on_cpu and min(len(devices), batches) >= num_cores()


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
        and first <= jaxlib.version.__version_info__ < mended
        and 1 < threads < _THREADS * len(devices)
    )


def warn_if_it_may_hang(
    batch_size: int, limit: int | None, devices: Sequence[Any]
) -> None:
    """Log once per process that a sweep may hang, and the fix."""
    if limit is None or batch_size <= limit or not may_hang(devices):
        return
    smaller = f"Use a `batch_size` of at most {limit}" if limit else "Use JAX 0.11.1"
    n, version = len(devices), jaxlib.version.__version__
    text = "eqx_pipe.sweep: with jaxlib %s, batches of %d points of linear algebra on "
    text += "%d CPU device%s may hang. %s, or set the environment variable NPROC to at "
    text += "least %d before Python starts, which makes other sweeps slower."
    args = version, batch_size, n, "s" * (n != 1), smaller, _THREADS * n
    log_once("linear algebra", text, *args)


def _pool_size() -> int:
    """Return the number of threads that devices share, if NPROC was set at start."""
    text = os.environ.get("NPROC", "")
    return int(text) if text.isdecimal() and int(text) else num_cores()
