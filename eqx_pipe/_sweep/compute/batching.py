"""How many points to vectorise: a rule that reads the function's jaxpr."""

from ..tracing.reading import Reading
from ..version import jaxlib_version

_SINCE = 0, 12  # the jaxlib from which on steps of few lanes compile to faster code
_WAIT = 512, 64  # before, and since
_COSTLY_WAIT = 8, 16
_ALIKE = 512
_MOST = 1024
_MORE = 4  # times as many, where a step runs programs of their own
_WEIGHTS = 128  # lanes that share the reading of large matrices
_SHARED = 512  # lanes that share what is computed once for all
_SUMMED = 4095, 16  # numbers of a batch, and of a point
_REFILLED = 32_768
_ELSEWHERE = 16_384
_STEP_BYTES = 16 * 1024
_BYTES = 2 * 1024 * 1024
_LOOP_BYTES = _REFILL_BYTES = 8 * 1024 * 1024
_LEAST = 8
_WHOLE = 8  # the lanes of a register


def choose_batch_size(
    reading: Reading,
    size: int,
    num_devices: int,
    alike: bool = False,
    on_cpu: bool = True,
    may_wait: bool = False,
) -> int:
    """The batch size for `size` points of a function on `num_devices` devices.

    Some numbers hold if costs of points are not `alike`: a loop then goes on until its
    last lane has finished, so the fewer the better, unless it takes many to make up for
    what a step costs whatever the number. That was measured on CPUs; other devices work
    on thousands of lanes at the same time, and get that many as long as they fit. Where
    linear algebra `may_wait` for ever, a batch is small enough that it does not.
    """
    best = _best(reading, alike) if on_cpu else _ELSEWHERE
    best = max(_LEAST, best) // _WHOLE * _WHOLE
    best = even_out(best, size, num_devices)
    # Loops over an odd number of lanes compile to code up to three times slower.
    best = min(-(-best // _WHOLE) * _WHOLE, -(-size // num_devices))
    if may_wait and reading.whole is not None and reading.whole < best:
        best = max(1, reading.whole)
        best = best // _WHOLE * _WHOLE or best
    return best


def _best(reading: Reading, alike: bool) -> int:
    """What one step makes should stay in the nearest cache, all of it in the last."""
    if reading.refilled:  # a lane that is done takes another point
        return min(_REFILLED, _REFILL_BYTES // reading.largest)
    if not reading.loops:
        return min(_MOST, _BYTES // reading.largest, _sums(reading))
    caches = _step(reading), _LOOP_BYTES // reading.largest, _sums(reading)
    if reading.waits:
        return min(_ALIKE if alike else _waiting(reading), *caches)
    return min(_MOST * (_MORE if reading.programs else 1), *caches)


def _step(reading: Reading) -> int:
    """For how many lanes the values of a step stay in the nearest cache."""
    own = reading.of_a_step
    # Random bits and Fourier transforms are programs that cost something to begin.
    if reading.programs:
        lanes = _MORE * _STEP_BYTES // own
    elif reading.weights >= own:
        lanes = 2 * _STEP_BYTES // own
    else:  # one byte less is one step back from the cliff in `_sums`
        lanes = (_STEP_BYTES - (reading.summed > 1)) // own
    # What a step reads or computes once for all lanes weighs little if they are many.
    read = min(_WEIGHTS, reading.weights // own)
    computed = min(_SHARED, 4 * reading.shared // own)
    return max(lanes, read, computed)


def _sums(reading: Reading) -> int:
    """Sums of a few numbers each are several times dearer from 4,096 numbers on."""
    most, few = _SUMMED
    return most // reading.summed if 1 < reading.summed <= few else _REFILLED


def _waiting(reading: Reading) -> int:
    """For loops that go on until the last lane of a batch has finished."""
    # A step of single numbers is one piece of compiled code, which costs little to
    # begin: if it has functions like `sin`, lanes that wait cost more than they gain.
    sizes = _COSTLY_WAIT if reading.scalar and reading.costly else _WAIT
    return sizes[jaxlib_version() >= _SINCE]


def even_out(batch_size: int, size: int, num_devices: int) -> int:
    """At most `batch_size`, so that devices have as much to do and tails are short."""
    per_device = -(-size // num_devices)
    batches = -(-per_device // batch_size)
    return -(-per_device // batches)
