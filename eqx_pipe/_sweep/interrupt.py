"""Signals that end a sweep, after the work in flight is finished and kept.

Ctrl-C raises a `KeyboardInterrupt`, as ever. SIGTERM (a batch system, `timeout`) and
SIGHUP (a closed terminal) end the process: with the exit code that a shell reports for
a process that the signal has killed.
"""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterable
from types import FrameType
from typing import Any

CTRL_C = (signal.SIGINT,)
ENDING = (*CTRL_C, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM))
"""The signals that end a process which has not installed a handler of its own."""


class Interrupt:
    """Within it the first signal only sets `asked`; the second one acts as usual.

    A handler that the program has installed is left alone. Python calls handlers in the
    main thread, so elsewhere no signal is taken.
    """

    def __init__(self, signals: Iterable[signal.Signals], loud: bool = True) -> None:
        self._signals, self._loud = signals, loud
        self._usual: dict[signal.Signals, Any] = {}
        self._came: signal.Signals | None = None

    @property
    def asked(self) -> bool:
        """True if a signal came."""
        return self._came is not None

    def __enter__(self) -> "Interrupt":
        if threading.current_thread() is threading.main_thread():
            for number in set(self._signals):
                is_ctrl_c = number == signal.SIGINT
                usual = signal.default_int_handler if is_ctrl_c else signal.SIG_DFL
                if signal.getsignal(number) is usual:
                    self._usual[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def end(self) -> None:
        """Raise what ends the sweep, if a signal came.

        A program that catches neither of these ends, and so does a loop round sweeps.
        """
        if self._came == signal.SIGINT:
            raise KeyboardInterrupt
        if self._came is not None:
            raise SystemExit(128 + self._came)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came = signal.Signals(number)
        self._restore()
        name = "Ctrl-C" if number == signal.SIGINT else self._came.name
        if self._loud:
            tell(f"{name}: what is in flight will be finished. {name} again stops.")

    def _restore(self) -> None:
        for number, usual in self._usual.items():
            signal.signal(number, usual)
        self._usual = {}


def tell(text: str) -> None:
    """Print a line to standard error, if there is somebody to read it."""
    # A terminal may be closed, and Python may be about to write when a signal comes.
    with contextlib.suppress(OSError, RuntimeError, ValueError, AttributeError):
        sys.stderr.write(f"\n{text}\n")
        sys.stderr.flush()
