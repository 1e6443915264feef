"""The share of a process among those that a launcher started, from the environment."""

import os

from .._errors import value_error
from .._progress import tell

_SHARD, _COUNT = "EQX_PIPE_SHARD", "EQX_PIPE_SHARD_COUNT"
_CURE = f"Set `{_SHARD}=7/16` for the share 7 of 16, which counts from 0"

_TASKS = ("PBS_ARRAY_INDEX", "HQ_TASK_ID", "JOB_COMPLETION_INDEX")
"""The indices of tasks in arrays of PBS, HyperQueue and Kubernetes."""

_RANKS = (
    # Before Slurm, since `mpirun` starts one process of its own on each node by `srun`.
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    # A script of `sbatch` also has SLURM_PROCID=0 and SLURM_NTASKS, but is one process.
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


def shard_of_environment(function: str) -> tuple[int, int]:
    """Return the share of this process, `(index, count)`, and print its origin.

    The processes of each task of an array divide the share of the task.
    """
    given = os.environ.get(_SHARD)
    if given:
        try:
            index, count = map(int, given.split("/"))
        except ValueError:
            wrong = f"`{_SHARD}` is {given!r}."
            raise value_error(function, wrong, f"{_CURE}.") from None
        found = [(_SHARD, index, count)]
    else:
        found = [_task(function), _rank(function)]
    origin, shard = [], (0, 1)
    for name, part, parts in filter(None, found):
        if not 0 <= part < parts:
            wrong = f"`{name}` is {part} of {parts}."
            cure = f"The index must be from 0 to the count - 1. {_CURE}."
            raise value_error(function, wrong, cure)
        origin.append(name)
        shard = shard[0] * parts + part, shard[1] * parts
    if origin:
        text = f"computes share {shard[0]} of {shard[1]}, by {' and '.join(origin)}."
    elif (_integer(function, "SLURM_NTASKS") or 1) > 1:
        text = (
            f"computes all chunks: SLURM_NTASKS is {os.environ['SLURM_NTASKS']}, but "
            "`srun` did not start this process."
        )
    else:
        text = "computes all chunks, since no launcher of several processes is known."
    tell(f'shard="auto": this process {text}')
    return shard


def _task(function: str) -> tuple[str, int, int] | None:
    """Return the variable, the index of this task in its array, and their number."""
    task = _integer(function, "SLURM_ARRAY_TASK_ID")
    if task is not None:
        least, step, count = (
            _integer(function, f"SLURM_ARRAY_TASK_{name}")
            for name in ("MIN", "STEP", "COUNT")
        )
        index, rest = divmod(task - (least or 0), step or 1)
        if count == 1 and least or rest or not count or index >= count:
            only = (
                "the only one" if count == 1 else f"one of {count} without equal steps"
            )
            raise value_error(
                function,
                f"Slurm's array task {task} is {only}, so its share is unknown.",
                f"{_CURE}, or restart a lost task by `scontrol requeue`.",
            )
        return "SLURM_ARRAY_TASK_ID", index, count
    for name in _TASKS:
        task = _integer(function, name)
        if task is not None:
            count = _integer(function, _COUNT)
            if count is None:
                raise value_error(
                    function,
                    f"`{name}` is {task}, and the number of tasks is unknown.",
                    f"Set `{_COUNT}`, such as `{_COUNT}=16`.",
                )
            return name, task, count
    return None


def _rank(function: str) -> tuple[str, int, int] | None:
    """Return the variable, the rank of this process, and the number of processes."""
    for name, size in _RANKS:
        rank, count = _integer(function, name), _integer(function, size)
        if rank is not None and count is not None:
            return (name, rank, count) if count > 1 else None
    return None


def _integer(function: str, name: str) -> int | None:
    text = os.environ.get(name)
    try:
        return int(text) if text else None
    except ValueError:
        raise value_error(function, f"`{name}` is {text!r}.", f"{_CURE}.") from None
