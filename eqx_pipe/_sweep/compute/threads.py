"""A thread for each CPU device, where there are enough of them for all cores.

XLA splits a step of a program over its threads if the step is longer than some 50
microseconds by its reckoning, even where every core has a device of its own to work
for. The devices then wait for each other's threads: loops of short steps took up to
1.7 times as long, and one time in two twice as long as the other.
"""

from collections.abc import Sequence
from typing import Any

from ..cores import num_cores

_UNSPLIT = {"xla_disable_hlo_passes": "cpu-parallel-task-assigner"}


def compiled(lowered: Any, devices: Sequence[Any]) -> Any:
    """Compiles a program that runs on all of some devices at the same time."""
    return lowered.compile(compiler_options=options(devices))


def options(devices: Sequence[Any]) -> dict[str, str] | None:
    """What XLA is told; nothing where cores would have nothing to do."""
    on_cpu = all(device.platform == "cpu" for device in devices)
    return dict(_UNSPLIT) if on_cpu and len(devices) >= num_cores() else None
