"""`plan_train`: the program of a training, before it runs and for other devices."""

import contextlib
import dataclasses
import time
from typing import Any, Literal, SupportsIndex

from jax.sharding import Mesh

from .._check import check_is
from .._compiled import ProgramPlan, bytes_of_program, free_bytes, plan_of_program
from .._errors import value_error
from .._keys import key_argument
from .._run import TooLarge, needs_key, no_mesh
from .._spaces import SpaceLike
from .._sweep import Request, cases_of, request_of, rows_of
from .._types import Key
from .._vmap import largest_that_fits
from .lanes import FUNCTIONS, Lanes, Training
from .result import columns_of


def plan_train(
    training: Training,
    space: SpaceLike,
    *,
    key: Key | None = None,
    batch_size: SupportsIndex | Literal["auto"] = "auto",
    mesh: Mesh | None = None,
) -> ProgramPlan:
    """Compile the steps of a training, and describe their program, without running it.

    It works for devices that this machine does not have (`topology`): the memory of all
    lanes, the largest number of them that fits, and the kernels of a step. These are
    the compiler's figures, and none of them is a time.

    **Arguments:**

    - `training`, `space`, `key`, `batch_size`: as in `train`. If there are `Static`
      axes, the program is that of the first combination of their values.
    - `mesh`: the devices to compile for, such as a `topology`. (Keyword only.)

    **Returns:** a `ProgramPlan`, for calls that record once.

    **Raises:** the errors that `train` raises for the same arguments.

    !!! example

        >>> import eqx_pipe as ep
        >>> init = lambda point: 1.0
        >>> step = lambda point, x: (x - point["rate"] * 2 * x, {"loss": x**2})
        >>> descent = ep.Training(init, step)
        >>> plan = ep.plan_train(descent, {"rate": ep.Geomspace(1e-3, 1.0, 4)})
        >>> plan.collectives, plan.callbacks
        ({}, 0)
    """
    options = {"key": key, "batch_size": batch_size, "mesh": mesh}
    request = request_for("plan_train", training, space, **options)
    with no_mesh("plan_train"):
        columns, cases = columns_of(request.space), cases_of(request.space.geometry)
        rows = rows_of(request.space.geometry, cases)[0]
        lanes = Lanes(training, request, key, rows, columns, 1, 1)
        begun = time.perf_counter()
        made = lanes.compiled()
        seconds, devices = time.perf_counter() - begun, request.devices
        free, largest = free_bytes(devices), None

        def bytes_of(size: int) -> tuple[int, int] | None:
            with contextlib.suppress(TooLarge):
                return bytes_of_program(lanes.compiled(size))

        if free is not None:
            most = -(-len(rows) // len(devices))
            largest = largest_that_fits(bytes_of, most, free, lanes.alive)
    plan = plan_of_program(made, seconds, devices[0].platform)
    return dataclasses.replace(plan, largest_batch=largest)


def request_for(
    function: str, training: Any, space: SpaceLike, **options: Any
) -> Request:
    """Return a call of `train` or `plan_train`, after the checks of both."""
    cure = "Give `eqx_pipe.Training(init, step)`."
    check_is(function, "training", training, Training, cure)
    request = request_of(function, training.step, space, **options)
    if not request.space.size:
        raise value_error(function, "the space is empty.", "Give at least one point.")
    if request.by_hand:
        cure = "Turn it off; to debug, call `training.step(space.point(0), carry)`."
        raise value_error(function, "it does not run under `jax.disable_jit()`.", cure)
    for name in FUNCTIONS if options["key"] is None else ():
        if key_argument(getattr(training, name), None):
            raise needs_key(function, fn=name)
    return request
