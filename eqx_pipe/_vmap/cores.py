"""CPU cores: a device for each core, a thread for each device, and a hint."""

import operator
import os
from collections.abc import Sequence
from typing import Any, SupportsIndex

import jax
from jax.sharding import Mesh

from .._check import check_int
from .._errors import log_once, message
from .._types import Device


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
            raise RuntimeError(
                message(
                    "use_cpu_devices",
                    f"JAX has already started with {there} CPU "
                    f"device{'s' * (there != 1)}, but {n} were requested.",
                    "Call it at the top of the program, right after the imports and "
                    "before anything that makes an array or asks for devices; in a "
                    "notebook restart the kernel and run it in the first cell.",
                )
            ) from error


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
    log_once(
        "idle cores",
        "eqx_pipe.sweep: this sweep runs on one CPU device, and this process may use "
        "%d cores. To use them all, call `eqx_pipe.use_cpu_devices()` at the top of "
        "the program, before JAX computes anything.",
        cores,
    )


def all_busy(devices: Sequence[Any], batches: int) -> bool:
    """Return whether `batches` on these devices occupy every core of a CPU."""
    on_cpu = all(device.platform == "cpu" for device in devices)
    return on_cpu and min(len(devices), batches) >= num_cores()
