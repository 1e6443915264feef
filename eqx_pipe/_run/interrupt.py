"""Ctrl-C and the signals that end a process: the first one stops after a step.

What is kept then: of a sweep, `_sweep/sweep.py` (`carry`) and, in a store, its points
in flight (`_sweep/flight_files.py`); of a training, `_train/train.py`. Kernels, which
run no Python, are stopped in `_kernel/interrupts.py`.
"""

import contextlib
import signal
import threading
from collections.abc import Iterable
from types import FrameType
from typing import Any

from .._kernel import stopping_at
from .._progress import tell

CTRL_C = (signal.SIGINT,)
ENDING = (*CTRL_C, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM))
"""The signals that end a process which has not installed a handler of its own."""


class Interrupt:
    """A context in which the first signal only sets `asked`; the second acts as usual.

    A handler installed by the program is not replaced. Python calls handlers in the
    main thread, so in other threads no signal is handled. Kernels stop in the middle.
    The context may be a part of the call of a `name` (see `share`).
    """

    def __init__(
        self,
        signals: Iterable[signal.Signals],
        loud: bool = True,
        name: str = "",
    ) -> None:
        self._signals, self._loud, self._name = signals, loud, name
        self._kernels = contextlib.ExitStack()
        self._usual: dict[signal.Signals, Any] = {}
        self._came: signal.Signals | None = None

    @property
    def asked(self) -> bool:
        """True if a signal was received."""
        return self._came is not None

    def __enter__(self) -> "Interrupt":
        stops = None
        if threading.current_thread() is threading.main_thread():
            for number in set(self._signals):
                is_ctrl_c = number == signal.SIGINT
                usual = signal.default_int_handler if is_ctrl_c else signal.SIG_DFL
                if signal.getsignal(number) is usual:
                    self._usual[number] = signal.signal(number, self._note)
            stops = self._usual
        self._kernels.enter_context(stopping_at(stops, self._name))
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
