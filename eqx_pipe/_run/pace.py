"""The control of a running sweep: when it stops, and how much one device call computes.

Everything that computes rows gets a `Watch`, and asks it between two device calls. The
progress bar only shows.
"""

import contextlib
import time
from collections.abc import Callable, Iterator

from .._progress import Progress

COMMIT_EVERY = 30.0
"""Seconds after which the finished rows of a chunk are handed over to a store."""

# The duration of a device call in seconds. (The host moves the bar: `io_callback` fails
# in a `vmap` of a `cond`.)
_CALL_SECONDS = 0.25
_SILENT_SECONDS = 1.0

_SAVE_PAUSE = 20
"""The time between two saves, in durations of a save: they take at most 5 %."""


def clock() -> float:
    """Return the time in seconds, from a fixed point on."""
    return time.monotonic()


def save_pause(seconds: float) -> float:
    """Return the seconds between two saves, if one takes some `seconds`."""
    return max(COMMIT_EVERY, _SAVE_PAUSE * seconds)


class Pace:
    """The number of steps, or of batches, of the next device call of a program.

    An estimate of the duration of a step may be far off (a convolution, linear
    algebra), so the first call has one step, and a call at most 64 times as many as the
    last one.
    """

    def __init__(self) -> None:
        self.steps = 1

    def record(self, steps: int, seconds: float, wanted: float) -> None:
        """Record the duration of a call; the next one should take `wanted` seconds."""
        if steps:
            within = int(steps * wanted / max(seconds, 1e-6))
            self.steps = max(1, min(within, 64 * self.steps, 2**30))


class Watch:
    """The answers that computing code needs between two device calls.

    It computes no further after `stopping()` is true. A call takes about a second, or a
    quarter of it if a bar is shown. If it `hands_over`, it does so after half a minute:
    the rows that are finished, or what is in flight if chunks are only handed over as a
    `whole`.
    """

    def __init__(
        self,
        bar: Progress | None = None,
        stopping: Callable[[], bool] = bool,  # `bool()` is False
        *,
        hands_over: bool = False,
        whole: bool = False,
    ):
        self.stopping, self.hands_over, self.whole = stopping, hands_over, whole
        self.bar = Progress(False, 0) if bar is None else bar
        often = hands_over or self.bar.is_shown
        self.call_seconds = _CALL_SECONDS if often else _SILENT_SECONDS
        """The wanted duration of a device call."""
        self._handed_over: float | None = None
        self._failed = 0
        self._save_seconds = 0.0

    def restart(self) -> None:
        """Count the time until rows are handed over from the next device call on."""
        self._handed_over = None

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Measure how long it takes to save what is handed over."""
        begun = clock()
        yield
        self._save_seconds = clock() - begun

    def compile(self) -> None:
        """Show that the first program is compiled."""
        if self._handed_over is None:
            self.bar.compiling()

    def begin(self) -> None:
        """Start the clock, after the program is compiled."""
        self.bar.compiled()
        if self._handed_over is None:
            self._handed_over = clock()

    def after(self, points: int, failed: int = 0) -> bool:
        """Record finished points, of which some failed.

        Returns whether to hand over what is finished.
        """
        self._failed += failed
        self.bar.done(points)
        self.bar.failed(self._failed)
        if not self.hands_over or self._handed_over is None:
            return False
        now = clock()
        late = now - self._handed_over >= save_pause(self._save_seconds)
        self._handed_over = now if late else self._handed_over
        return late
