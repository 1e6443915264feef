"""A thread for each CPU device, where there are enough of them for all cores.

XLA splits a step of a program over its threads if it reckons that the step is long,
even where every core has a device of its own to work for. The devices then wait for
each other's threads: loops of short steps took up to 1.7 times as long.
"""

from collections.abc import Sequence
from typing import Any

import jax

from ..cores import num_cores

_UNSPLIT = {"xla_disable_hlo_passes": "cpu-parallel-task-assigner"}


def all_busy(devices: Sequence[Any], batches: int) -> bool:
    """Whether devices that get so many batches have work for every core of a CPU."""
    on_cpu = all(device.platform == "cpu" for device in devices)
    return on_cpu and min(len(devices), batches) >= num_cores()


def compiled(lowered: jax.stages.Lowered, unsplit: bool) -> jax.stages.Compiled:
    """Compiles a program; `unsplit` keeps each device to its own thread."""
    return lowered.compile(compiler_options=dict(_UNSPLIT) if unsplit else None)
