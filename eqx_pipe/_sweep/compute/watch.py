"""The control of a running sweep: when it stops, and how much one device call computes.

Everything that computes rows gets a `Watch`, and asks it between two device calls. The
progress bar only shows.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

from ..._errors import SweepError
from ..._kernel import stopping_at
from ..._progress import Progress, tell

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
    algebra), so the first call has one step, and a call at most 8 times as many as the
    last one.
    """

    def __init__(self) -> None:
        self.steps = 1

    def record(self, steps: int, seconds: float, wanted: float) -> None:
        """Record the duration of a call; the next one should take `wanted` seconds."""
        if steps:
            within = int(steps * wanted / max(seconds, 1e-6))
            self.steps = max(1, min(within, 8 * self.steps, 2**30))


class Watch:
    """The answers that computing code needs between two device calls.

    It computes no further after `stopping()` is true. If it is `paced`, it returns to
    the host several times a second, and after half a minute it hands over the rows that
    are finished, or what is in flight if chunks are only handed over as a `whole`. By
    default it computes everything in as few calls as possible.
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
        self.paced = hands_over or self.bar.is_shown
        """True if a call returns to the host before all batches are computed."""
        self.call_seconds = _CALL_SECONDS if self.paced else _SILENT_SECONDS
        """The wanted duration of a device call that may end inside of a batch."""
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


CTRL_C = (signal.SIGINT,)
ENDING = (*CTRL_C, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM))
"""The signals that end a process which has not installed a handler of its own."""


class Stopped(SweepError):
    """The error for a call whose kernels were stopped by a signal."""


class Interrupt:
    """A context in which the first signal only sets `asked`; the second acts as usual.

    A handler installed by the program is not replaced. Python calls handlers in the
    main thread, so in other threads no signal is handled. Kernels stop in the middle of
    a call, unless it must be `whole`.
    """

    def __init__(
        self, signals: Iterable[signal.Signals], loud: bool = True, whole: bool = False
    ) -> None:
        self._signals, self._loud, self._whole = signals, loud, whole
        self._kernels = contextlib.ExitStack()
        self._usual: dict[signal.Signals, Any] = {}
        self._came: signal.Signals | None = None

    @property
    def asked(self) -> bool:
        """True if a signal was received."""
        return self._came is not None

    def __enter__(self) -> "Interrupt":
        if threading.current_thread() is threading.main_thread():
            for number in set(self._signals):
                is_ctrl_c = number == signal.SIGINT
                usual = signal.default_int_handler if is_ctrl_c else signal.SIG_DFL
                if signal.getsignal(number) is usual:
                    self._usual[number] = signal.signal(number, self._note)
            stops = () if self._whole else self._usual
            self._kernels.enter_context(stopping_at(stops))
        return self

    def __exit__(self, *_: object) -> None:
        self._kernels.close()
        self._restore()

    def end(self) -> None:
        """Raise the exception that ends the sweep, if a signal was received.

        A program that does not catch it ends, also within a loop over sweeps.
        """
        if self._came == signal.SIGINT:
            raise KeyboardInterrupt
        if self._came is not None:
            raise SystemExit(128 + self._came)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came = signal.Signals(number)
        if self._loud:  # workers get a signal from the terminal, and another one
            self._restore()
        name = "Ctrl-C" if number == signal.SIGINT else self._came.name
        if self._loud:
            text = "it stops after the step or batch that is being computed."
            tell(f"{name}: {text} {name} again stops at once.")

    def _restore(self) -> None:
        for number, usual in self._usual.items():
            signal.signal(number, usual)
        self._usual = {}
