"""How many points to vectorise: a rule that reads the function's jaxpr."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from .program import opened, sub_jaxprs

_WITH_WHILE = 64
_WITH_SCAN = 1024
_REFILLED = 16_384
_WITHOUT_LOOP = 16_384
_STEP_BYTES = 16 * 1024
_LOOP_BYTES = 512 * 1024
_BYTES = 2 * 1024 * 1024
_REFILL_BYTES = 8 * 1024 * 1024
_LEAST = 8
_WHOLE = 8
_DRAWS = {"random_bits", "threefry2x32"}
_DRAW = 8  # a draw makes that much more on the way
_LOOPS = {"while", "scan", "eqx_pipe_refill"}


def choose_batch_size(
    jaxpr: Any, size: int, num_devices: int, alike: bool = False
) -> int:
    """The batch size for `size` points of a function on `num_devices` devices.

    Lanes of a `while` loop wait for the slowest, so there they are few, unless their
    costs are `alike` or the loop is refilled. What one step of a loop makes should stay
    in the nearest cache, and what surrounds the loop in the next; without a loop the
    more the better, as long as the largest intermediate stays in the cache. (Measured
    on CPU.)
    """
    largest, in_loop = _largest(jaxpr), _largest_of_a_step(jaxpr)
    loops = _loops(jaxpr)
    if "eqx_pipe_refill" in loops:  # a lane that is done takes another point
        best = min(_REFILLED, _REFILL_BYTES // largest)
    elif loops:
        waits = "while" in loops and not alike
        best = _WITH_WHILE if waits else _WITH_SCAN
        best = min(best, _STEP_BYTES // in_loop, _LOOP_BYTES // largest)
    else:
        best = min(_WITHOUT_LOOP, _BYTES // largest)
    best = even_out(max(_LEAST, best), size, num_devices)
    if best < 8 * _WHOLE:
        return best
    # Loops over an odd number of lanes compile to code up to three times slower.
    return min(-(-best // _WHOLE) * _WHOLE, -(-size // num_devices))


def even_out(batch_size: int, size: int, num_devices: int) -> int:
    """At most `batch_size`, so that devices have as much to do and tails are short."""
    per_device = -(-size // num_devices)
    batches = -(-per_device // batch_size)
    return -(-per_device // batches)


def _loops(jaxpr: Any) -> set[str]:
    """The kinds of loops of one point, seen from outside."""
    found = set()
    for eqn in opened(jaxpr)[0].eqns:
        found.add(eqn.primitive.name)
        if eqn.primitive.name == "eqx_pipe_refill":
            continue  # a loop in its body waits for a few lanes, not for the batch
        for inner in sub_jaxprs(eqn.params):
            found |= _loops(inner)
    return found & _LOOPS


def _largest(jaxpr: Any) -> int:
    """The bytes of the largest value that one lane computes, at least 1."""
    return max([1, *(_nbytes(v) for eqn in _equations(jaxpr) for v in eqn.outvars)])


def _largest_of_a_step(jaxpr: Any) -> int:
    """The same of what is inside of loops, where draws count for what they hide."""
    return max(
        [
            1,
            *(
                _nbytes(v) * (_DRAW if eqn.primitive.name in _DRAWS else 1)
                for loop in _equations(jaxpr)
                if loop.primitive.name in _LOOPS
                for body in sub_jaxprs(loop.params)
                for eqn in _equations(body)
                for v in eqn.outvars
            ),
        ]
    )


def _equations(jaxpr: Any) -> Iterator[Any]:
    """All equations of a jaxpr, those inside of others too."""
    for eqn in opened(jaxpr)[0].eqns:
        yield eqn
        for inner in sub_jaxprs(eqn.params):
            yield from _equations(inner)


def _nbytes(variable: Any) -> int:
    shape = getattr(variable.aval, "shape", ())
    itemsize = getattr(getattr(variable.aval, "dtype", None), "itemsize", 4)
    return int(np.prod(shape, dtype=object)) * itemsize
