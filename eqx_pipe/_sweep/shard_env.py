"""The share of a process among those that a launcher started, from the environment."""

import os

import jax

from .._errors import value_error
from .._progress import tell

_SHARD, _COUNT = "EQX_PIPE_SHARD", "EQX_PIPE_SHARD_COUNT"
_CURE = f"Set `{_SHARD}=7/16` for the share 7 of 16, which counts from 0"

_SLURM = "SLURM_ARRAY_TASK"
_TASKS = (
    (f"{_SLURM}_ID", f"{_SLURM}_COUNT"),
    ("PBS_ARRAY_INDEX", _COUNT),
    ("HQ_TASK_ID", _COUNT),
    ("JOB_COMPLETION_INDEX", _COUNT),
)
"""The index of a task in arrays of Slurm, PBS, HyperQueue and Kubernetes."""

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
    shares, chosen = [], os.environ.get(_SHARD)
    if chosen:
        index, _, count = chosen.partition("/")
        try:
            shares = [(_SHARD, int(index), int(count))]
        except ValueError:
            wrong = f"`{_SHARD}` is {chosen!r}."
            raise value_error(function, wrong, f"{_CURE}.") from None
    else:
        for name, size in _TASKS:
            task, count = _integer(function, name), _integer(function, size)
            if task is not None:
                shares = [(name, *_task(function, name, task, count))]
                break
        for name, size in _RANKS:
            rank, count = _integer(function, name), _integer(function, size)
            if rank is not None and count is not None:
                shares += [(name, rank, count)] * (count > 1)
                break
        if not shares and jax.process_count() > 1:
            here = jax.process_index(), jax.process_count()
            shares = [("jax.distributed", *here)]
    shard = 0, 1
    for name, part, parts in shares:
        if not 0 <= part < parts:
            wrong = f"`{name}` is {part} of {parts}."
            cure = f"The index must be from 0 to the count - 1. {_CURE}."
            raise value_error(function, wrong, cure)
        shard = shard[0] * parts + part, shard[1] * parts
    text = "computes all chunks, since no launcher of several processes is known."
    if shares:
        origin = " and ".join(name for name, _, _ in shares)
        text = f"computes share {shard[0]} of {shard[1]}, by {origin}."
    elif (count := _integer(function, "SLURM_NTASKS") or 1) > 1:
        text = f"computes all chunks: SLURM_NTASKS is {count}, but `srun` did not "
        text += "start this process."
    tell(f'shard="auto": this process {text}')
    return shard


def _task(function: str, name: str, task: int, count: int | None) -> tuple[int, int]:
    """Return the index of a task in its array, from 0, and the number of tasks."""
    if count is None:
        wrong = f"`{name}` is {task}, and the number of tasks is unknown."
        raise value_error(function, wrong, f"Set `{_COUNT}`, such as `{_COUNT}=16`.")
    if not name.startswith(_SLURM):
        return task, count
    least = _integer(function, f"{_SLURM}_MIN") or 0
    index, rest = divmod(task - least, _integer(function, f"{_SLURM}_STEP") or 1)
    if (count == 1 and least) or rest or index >= count:
        only = "the only one" if count == 1 else f"one of {count} without equal steps"
        raise value_error(
            function,
            f"Slurm's array task {task} is {only}, so its share is unknown.",
            f"{_CURE}, or restart a lost task by `scontrol requeue`.",
        )
    return index, count


def _integer(function: str, name: str) -> int | None:
    text = os.environ.get(name)
    try:
        return int(text) if text else None
    except ValueError:
        raise value_error(function, f"`{name}` is {text!r}.", f"{_CURE}.") from None
