"""The automatic batch size: a short rule based on the function's jaxpr.

Only values that depend on the point count. Other values exist once for any number of
points, such as a matrix that a network multiplies by, or a loop that starts from
constants.

The rule distinguishes four cases (no loop, a loop, a loop in which lanes wait for the
slowest, a loop whose lanes are refilled) and has one cap: the working set of a batch
should stay in the nearest cache. Figures are from `benchmarks/sweep_batch_size.py`,
models and survey, on two cores of a CPU with jaxlib 0.10.2 and 0.12.0: times relative
to the best size. The rule took 1.17 times as long, 2.7 times at worst (geometric mean
over 34 rows, each a model and a version of jaxlib, on which the numbers were chosen;
loops whose lanes wait then had 256 points).

A sweep asks for it in `_sweep/work/prepare.py`, unless its store has recorded a size,
and `Points.fitted` beside it makes the size smaller if the memory is too small.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from .._compiled import free_bytes
from .._jaxprs import Equation, Flow, kind, live_bytes, open_jaxpr
from .._kernel import kernel_p
from .._refill import refill_p
from .._types import AnyJaxpr, Device
from .devices import linalg_limit, may_hang

MOST = 1024
"""Points at once for functions without loops, or with loops of equal length.

A scan of Runge-Kutta steps took 8.7 times as long with 8 points, 1.4 times with 128 and
with 4,096; without a loop, sizes from 64 to 4,096 points differ little.
"""

WAITING = 64
"""Points at once if a loop runs until the slowest lane has finished.

Fewer points waste fewer steps, but each step has a fixed cost of about 12 lanes. In
random order 64 points took 0.22 to 1.06 times as long as 256 with jaxlib 0.12 (Newton's
method 0.22, BFGS 0.46, solvers of diffrax 1.04 and 1.06; an earlier run on the same
busy machine had 1.27 and 1.59 for these), and 0.48 to 1.27 times with 0.10, where steps
of a few additions lose; geometric means 0.65 (earlier 0.75) and 0.88. If costs are
alike within a batch no lane waits, and this limit does not apply.
"""

REFILLED = 32_768
"""Points at once if a finished lane takes the next point of the batch.

They are in memory at once, but not computed at once: 65,536 points of 1 to 1,000 steps
took 31 ms, and 66 ms in batches of 32 whose lanes wait.
"""

OF_KERNELS = 4096
"""Points at once for kernels, whose blocks of lanes do not wait for each other.

Their arrays stay in a cache, and the fixed cost of a call is small beside them.
"""

NEAREST_CACHE = 12 * 1024
"""Bytes of the largest intermediate value, over all lanes: a part of 32 or 48 KiB.

From 16 KiB on, sums over short axes took 2.4 times (softmax over 4) or 3 times as long
(norms of 4 in a loop), large steps up to 2.5 times (leapfrog of 8 bodies).
"""

LAST_CACHE = 8 * 1024 * 1024
"""Bytes of the largest value of a function with loops, over all lanes."""

LAUNCH = 8e-6
"""Seconds of a step on a GPU, for few lanes (QuantEcon/lecture-python#440)."""

BANDWIDTHS = {
    "H200": 4.8e12,
    "H100": 3.3e12,
    "A100": 1.9e12,
    "V100": 9e11,
    "Tesla T4": 3e11,
}
"""Bytes per second of the memory of some GPUs, by their data sheets."""

LAUNCHES = 5
"""The time of the lanes of a step, in launches: a launch is a sixth of the step.

On a CPU the fixed cost of a step is about 12 lanes, so `WAITING` is about the same.
"""

ELSEWHERE = 2**14, 2**20
"""The least and most points at once on devices other than CPUs (not measured)."""

SPARE = 0.8
"""The fraction of free memory to use, since allocators need some room."""

REGISTER = 16
"""Lanes of a register (numbers of four bytes in AVX-512).

A batch is a multiple of it, since loops otherwise take up to three times as long, and
at least one register, since a single lane wastes most of an instruction (14 to 17 times
as long). If the rule would choose 8, 16 took 0.90 times as long with jaxlib 0.12 (ten
models, 0.43 to 1.5) and 0.93 with 0.10 (eight models, 0.71 to 1.3).
"""


@dataclasses.dataclass
class Analysis:
    """Facts about the program of one point, on which the batch size depends.

    `largest` is the size in bytes of the largest value, `of_a_step` the size of the
    largest value in a loop, and `alive` the size of all values that are needed at the
    same time; `carried` is the size of the largest carry of a loop. `loops` is true if
    there is a loop, `refilled` if a loop is refilled, `kernels` if it has kernels, and
    `waits` if the end of a loop depends on the point, so that a batch waits for its
    slowest lane. `linalg_limit` is the maximum number of points for which no linear
    algebra is split over threads (`devices.py`), or `None` without such a limit.
    """

    largest: int = 1
    of_a_step: int = 1
    alive: int = 1
    carried: int = 4
    loops: bool = False
    waits: bool = False
    refilled: bool = False
    kernels: bool = False
    linalg_limit: int | None = None


def analyze(jaxpr: AnyJaxpr, varies: Sequence[bool]) -> Analysis:
    """Analyze a jaxpr; `varies` marks the inputs that differ between points."""
    analysis = Analysis(alive=max(1, live_bytes(jaxpr)))
    _Analyzer(analysis).run(jaxpr, varies)
    return analysis


@dataclasses.dataclass(frozen=True)
class _Analyzer(Flow):
    """An analysis of the values that depend on the point, and their sizes."""

    analysis: Analysis
    in_loop: bool = False
    in_refill: bool = False

    def silent(self) -> Flow:
        return Flow()

    def equation(self, eqn: Equation, marks: list[bool]) -> list[bool]:
        outputs = super().equation(eqn, marks)
        if any(marks):
            pairs = zip(eqn.outvars, outputs, strict=True)
            self.note(eqn, [v for v, varies in pairs if varies])
        return outputs

    def note(self, eqn: Equation, outputs: list[Any]) -> None:
        """Record the sizes of the outputs of an equation."""
        analysis = self.analysis
        analysis.kernels |= eqn.primitive is kernel_p
        limits = [linalg_limit(eqn), analysis.linalg_limit]
        analysis.linalg_limit = min((n for n in limits if n is not None), default=None)
        largest = max(map(_nbytes, outputs), default=1)
        analysis.largest = max(analysis.largest, largest)
        if self.in_loop:
            analysis.of_a_step = max(analysis.of_a_step, largest)

    def inside(self, eqn: Equation, waits: bool = False) -> Flow:
        if kind(eqn) not in ("scan", "while"):
            return self
        refilled = eqn.primitive is refill_p
        body: Any = eqn.params.get("body_jaxpr", eqn.params.get("jaxpr"))
        carried = sum(map(_nbytes, open_jaxpr(body)[0].outvars))
        self.analysis.carried = max(self.analysis.carried, carried)
        self.analysis.refilled |= refilled
        # A loop inside a refilled loop waits for a few lanes, not for the batch.
        self.analysis.loops |= refilled or not self.in_refill
        self.analysis.waits |= waits and not self.in_refill
        return _Analyzer(self.analysis, True, refilled or self.in_refill)


def _nbytes(variable: Any) -> int:
    """Return the bytes of a value, at least 4 per number, as XLA computes halves."""
    shape = getattr(variable.aval, "shape", ())
    itemsize = getattr(getattr(variable.aval, "dtype", None), "itemsize", 4)
    return math.prod(shape) * max(itemsize, 4)


def choose_batch_size(
    analysis: Analysis,
    size: int,
    devices: Sequence[Device],
    *,
    alike: bool = False,
    reserved: int | None = 0,
) -> int:
    """Return the batch size for `size` points of a function on some devices.

    Costs are `alike` within a batch if points were sorted. `reserved` bytes of the
    memory of each device that reports it are left free; with `None` memory does not
    count. On devices where large batches
    of linear algebra may hang, batches are small enough not to.
    """
    on_cpu = devices[0].platform == "cpu"
    most = _most(analysis, alike) if on_cpu else _lanes_elsewhere(analysis, devices[0])
    most = max(1, most // REGISTER) * REGISTER
    even = -(-even_out(most, size, len(devices)) // REGISTER) * REGISTER
    chosen = min(even, -(-size // len(devices)))
    limit = analysis.linalg_limit
    if limit is not None and limit < chosen and may_hang(devices):
        chosen = max(1, limit // REGISTER * REGISTER or limit)
    if reserved is None:
        return chosen
    return min(chosen, _lanes_that_fit(analysis, devices, reserved))


def _most(analysis: Analysis, alike: bool) -> int:
    """Return the bound of the function's case, with its caps."""
    if analysis.kernels:
        return min(OF_KERNELS, LAST_CACHE // analysis.largest)
    if not analysis.loops:
        return min(MOST, NEAREST_CACHE // analysis.largest)
    around = LAST_CACHE // analysis.largest
    if analysis.refilled:
        return min(REFILLED, around)
    most = WAITING if analysis.waits and not alike else MOST
    return min(most, NEAREST_CACHE // analysis.of_a_step, around)


def _lanes_elsewhere(analysis: Analysis, device: Device) -> int:
    """Return the lanes of a step whose cost is not mainly its launch.

    A step reads and writes its carry: XLA fuses the rest.
    """
    kind = device.device_kind
    known = (rate for name, rate in BANDWIDTHS.items() if name in kind)
    lanes = LAUNCHES * LAUNCH * next(known, 1e12) / (2 * analysis.carried)
    least, most = ELSEWHERE
    return max(least, min(most, int(lanes)))


def even_out(batch_size: int, size: int, num_devices: int) -> int:
    """Return a size of at most `batch_size` for which tails are short."""
    per_device = -(-size // num_devices)
    batches = -(-per_device // batch_size)
    return -(-per_device // batches)


def _lanes_that_fit(
    analysis: Analysis, devices: Sequence[Device], reserved: int
) -> int:
    """Return the number of points that fit into free memory, at least 1.

    If not even one fits, JAX raises a better error. The live values of a jaxpr are an
    upper bound, since XLA fuses operations. A batch that does not fit is halved later.
    """
    free = free_bytes(devices)
    if free is None:
        return MOST * REFILLED  # more than any other bound
    return max(1, int(max(0, free - reserved) * SPARE) // analysis.alive)


def may_not_fit(analysis: Analysis, size: int, devices: Sequence[Device]) -> int | None:
    """Return the free memory if a batch may need much of it, so that it is measured."""
    free = None if devices[0].platform == "cpu" else free_bytes(devices)
    return free if free and analysis.alive * size > _MEASURED * free else None


def largest_that_fits(
    bytes_of: Callable[[int], tuple[int, int] | None],
    most: int,
    free: int,
    alive: int,
    probes: int = 2,
) -> int:
    """Return the largest batch size up to `most` whose program fits, or 0.

    `bytes_of` compiles a size, and returns the bytes of its program and those of them
    that do not depend on the size, or `None` if the compiler says that it does not fit.
    Bytes are affine in lanes until the compiler chooses another layout: so the size
    that `probes` smaller ones predict is compiled, too, and corrected.
    """
    room, known, fixed = free * SPARE_COMPILED, {}, 0
    best, above = 0, most + 1
    size = min(most, _tiled(int(room / alive / 4 ** (probes + 1))))
    for tried in range(1, probes * (1 + _TRIES) + 1):
        found = bytes_of(size)
        if found is not None:
            known[size], fixed = found
        if found is None or found[0] > room:
            above = min(above, size)
        else:
            best = max(best, size)
        if not best:
            size = above // 8
        elif tried < probes:
            size = min(most, 4 * size)
        elif found is None:  # there the compiler chose another layout
            size = _tiled(math.isqrt(best * above))
        else:
            (a, x), (b, y) = [(0, fixed), *sorted(known.items())][-2:]
            size = min(above - 1, int(b + (room - y) * (b - a) / max(y - x, 1)))
            if size < most:
                size = _tiled(size) if _tiled(size) > best else (best + above) // 2
        is_close = above <= most and above - best <= max(1, best // 64)
        if size <= best or is_close:
            break
    return best


def _tiled(size: int) -> int:
    """Return a size that devices divide well."""
    return max(1, size // _TILE * _TILE if size > 4 * _TILE else size)


_TRIES = 3
"""The maximum number of predicted sizes that are compiled for each probe."""

_TILE = 1024
"""The lanes of which large batches on accelerators are multiples."""

_MEASURED = 0.3
"""The fraction of free memory from which on the compiler is asked."""

SPARE_COMPILED = 0.97
"""The fraction of free memory to use where the bytes of a program are known."""
