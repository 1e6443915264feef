"""How many points to vectorise: a rule of one page, which reads the function's jaxpr.

It knows four cases (no loop, a loop, a loop in which lanes wait for the slowest, a loop
whose lanes are refilled) and one cap: what a batch works on should stay in the nearest
cache. Figures are of `benchmarks/sweep_batch_size.py`, models and survey, on
two cores of a CPU with jaxlib 0.10.2 and 0.12.0: times over that of the best size. The
rule took 1.17 times as long, 2.7 times at worst (geometric mean over 34 rows, each of a
model and a version of jaxlib; those by which the numbers were chosen). Who wants the
best size for a function tries a few.
"""

from ..tracing.analysis import Analysis

MOST = 1024
"""Points at once of functions without loops, or with loops of equal length.

A scan of Runge-Kutta steps took 8.7 times as long with 8 points, 1.4 times with 128 and
with 4,096; without a loop there is little between 64 and 4,096 points.
"""

WAITING = 256
"""Points at once where a loop goes on until the slowest lane has finished.

Fewer waste fewer steps, but each step costs something for however few: jaxlib 0.10 took
1.5 times as long with 256 as with 16 if a step computes a sine, twice as long with 64
as with 512 if it is a few additions. With jaxlib 0.12 there is little between 32 and
512. If costs are alike within a batch nothing waits, and it is a loop like any other.
"""

REFILLED = 32_768
"""Points at once where a lane that has finished takes the next point of the batch.

They are in memory, not in work at the same time: 65,536 points of 1 to 1,000 steps took
31 ms, and 66 ms as batches of 32 whose lanes wait.
"""

NEAREST_CACHE = 12 * 1024
"""Bytes of the largest value in work, over all lanes: some of 32 or 48 KiB.

From 16 KiB on, sums over short axes took 2.4 times (softmax over 4) or 3 times as long
(norms of 4 in a loop), large steps up to 2.5 times (leapfrog of 8 bodies).
"""

LAST_CACHE = 8 * 1024 * 1024
"""Bytes of the largest value round a loop, over all lanes."""

ELSEWHERE = 16_384
"""Points at once on other devices than CPUs, as far as memory goes (not measured)."""

REGISTER = 8
"""Lanes of a register.

A batch is a multiple of it, or loops take up to three times as long; and at least one,
since a single lane wastes most of what an instruction can do (14 to 17 times as long).
"""


def choose_batch_size(
    analysis: Analysis,
    size: int,
    num_devices: int,
    *,
    alike: bool = False,
    on_cpu: bool = True,
    may_hang: bool = False,
) -> int:
    """The batch size for `size` points of a function on `num_devices` devices.

    Costs are `alike` within a batch if points were put in order. Where batches of
    linear algebra `may_hang`, they are small enough that they do not.
    """
    most = _most(analysis, alike) if on_cpu else ELSEWHERE
    most = max(1, most // REGISTER) * REGISTER
    even = -(-even_out(most, size, num_devices) // REGISTER) * REGISTER
    chosen = min(even, -(-size // num_devices))
    limit = analysis.linalg_limit
    if may_hang and limit is not None and limit < chosen:
        return max(1, limit // REGISTER * REGISTER or limit)
    return chosen


def _most(analysis: Analysis, alike: bool) -> int:
    """The four cases, and the caps by what a point works on."""
    if not analysis.loops:
        return min(MOST, NEAREST_CACHE // analysis.largest)
    around = LAST_CACHE // analysis.largest
    if analysis.refilled:
        return min(REFILLED, around)
    most = WAITING if analysis.waits and not alike else MOST
    return min(most, NEAREST_CACHE // analysis.of_a_step, around)


def even_out(batch_size: int, size: int, num_devices: int) -> int:
    """At most `batch_size`, so that devices have as much to do and tails are short."""
    per_device = -(-size // num_devices)
    batches = -(-per_device // batch_size)
    return -(-per_device // batches)
