"""Ctrl-C in a sweep that is stored: the chunk in flight is finished first."""

import signal
import sys
import threading
from types import FrameType

_SAID = "\nThe chunk in flight will be finished. Ctrl-C again stops at once.\n"


class Interrupt:
    """Within it the first Ctrl-C only sets `asked`; the second one is as ever.

    Somebody else's way to deal with Ctrl-C is left as it is, and signals come to the
    main thread only.
    """

    def __init__(self, said: str = _SAID) -> None:
        self.asked = False
        self._said = said
        self._installed = False

    def __enter__(self) -> "Interrupt":
        usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if usual and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._note)
            self._installed = True
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        self._restore()
        sys.stderr.write(self._said)

    def _restore(self) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._installed = False
