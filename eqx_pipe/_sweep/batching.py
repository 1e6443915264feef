"""How many points to vectorise: a rule that reads the function's jaxpr."""

from typing import Any

import numpy as np

from .program import opened, sub_jaxprs

_WITH_WHILE = 32
_REFILLED = 16_384
_WITH_SCAN = 128
_WITHOUT_LOOP = 16_384
_LOOP_BYTES = 512 * 1024
_BYTES = 8 * 1024 * 1024
_LEAST = 8


def choose_batch_size(
    jaxpr: Any, size: int, num_devices: int, alike: bool = False
) -> int:
    """The batch size for `size` points of a function on `num_devices` devices.

    Lanes of a `while` loop wait for the slowest, so there they are few, unless their
    costs are `alike`; those of a `scan` should keep their state in the cache; without a
    loop the more the better, as long as the largest intermediate stays in the cache.
    (Measured on CPU.)
    """
    per_lane = max(1, _largest(jaxpr))
    loops = _loops(jaxpr)
    if "eqx_pipe_refill" in loops:  # a lane that is done takes another point
        best, room = _REFILLED, _BYTES
    elif "while" in loops:
        best, room = _WITH_SCAN if alike else _WITH_WHILE, _LOOP_BYTES
    elif "scan" in loops:
        best, room = _WITH_SCAN, _LOOP_BYTES
    else:
        best, room = _WITHOUT_LOOP, _BYTES
    return even_out(max(_LEAST, min(best, room // per_lane)), size, num_devices)


def even_out(batch_size: int, size: int, num_devices: int) -> int:
    """At most `batch_size`, so that devices have as much to do and tails are short."""
    per_device = -(-size // num_devices)
    batches = -(-per_device // batch_size)
    return -(-per_device // batches)


def _loops(jaxpr: Any) -> set[str]:
    found = set()
    for eqn in opened(jaxpr)[0].eqns:
        found.add(eqn.primitive.name)
        for inner in sub_jaxprs(eqn.params):
            found |= _loops(inner)
    return found & {"while", "scan", "eqx_pipe_refill"}


def _largest(jaxpr: Any) -> int:
    """The bytes of the largest value that one lane computes."""
    largest = 0
    for eqn in opened(jaxpr)[0].eqns:
        for out in eqn.outvars:
            shape = getattr(out.aval, "shape", ())
            itemsize = getattr(getattr(out.aval, "dtype", None), "itemsize", 4)
            largest = max(largest, int(np.prod(shape, dtype=object)) * itemsize)
        for inner in sub_jaxprs(eqn.params):
            largest = max(largest, _largest(inner))
    return largest
