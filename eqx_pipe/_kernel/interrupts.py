"""Ctrl-C and other signals, which stop the kernels that run.

XLA calls a kernel, so the main thread may wait for an hour in which Python handles no
signal. But Python writes the number of each signal to a file descriptor at once, from
which a thread reads it here. Kernels look at a byte in each step of their loops, and
return an error when it is set.

The byte stays set until the calls that are `watched` have ended, since a program may
run many kernels in turn. Without such a call it stays set for a moment only.
"""

import contextlib
import ctypes
import os
import signal
import threading
from collections.abc import Iterable, Iterator

STOPPED = "eqx_pipe: a signal stopped the kernel"
"""The message of the error that a stopped kernel returns."""

_HOLD = 0.1
"""Seconds for which the byte stays set: longer than XLA takes between two kernels."""

_MARK = bytes(1)
"""It follows the signals from before in the pipe; signals have other numbers."""

_past = threading.Event()
_byte = ctypes.c_uint8(0)
_lock = threading.Lock()
_calls = 0
_signals = frozenset({signal.SIGINT})
_own = -1
"""The end of a pipe that Python writes to; -1 before the first kernel."""
_former: tuple[int, tuple[int, int]] | None = None
"""The descriptor that had its place, and the file that it stood for."""


def stop_address() -> int:
    """Return the address of the byte that kernels read."""
    return ctypes.addressof(_byte)


def begin() -> None:
    """Watch for signals, from the first kernel on; those from before stop nothing."""
    watch()
    if _byte.value:
        _forgive()


def watch(create: bool = True) -> int:
    """Receive signals in place of the descriptor of the program, which gets them, too.

    Returns the descriptor that received them so far, -1 if there is none. In other
    threads than the main one, Python allows no change. Without `create` nothing happens
    before the first kernel.
    """
    global _own, _former
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or (_own == -1 and not create):
        return -1
    if _own == -1:
        reader, _own = os.pipe()
        os.set_blocking(_own, False)
        name = "eqx_pipe signals"
        threading.Thread(target=_listen, args=[reader], name=name, daemon=True).start()
    before = signal.set_wakeup_fd(_own, warn_on_full_buffer=False)
    if before != _own:
        file = _file_of(before)
        _former = None if file is None else (before, file)
    return before


@contextlib.contextmanager
def stopping_at(signals: Iterable[int]) -> Iterator[None]:
    """Let some signals stop kernels in this context, and no others.

    Signals from before do not. At the end the descriptor of the program is back.
    """
    global _signals
    before, kept = watch(create=False), _signals
    _forgive()
    _signals = frozenset(signals)
    try:
        yield
    finally:
        _signals = kept
        if before not in (-1, _own):
            signal.set_wakeup_fd(before)


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Let a signal stop all kernels of a call, and none of the next call."""
    global _calls
    with _lock:
        _calls += 1
    try:
        yield
    finally:
        with _lock:
            _calls -= 1
            _byte.value &= bool(_calls)


def _forgive() -> None:
    """Wait for the signals from before, and let kernels run again."""
    if _own != -1 and threading.current_thread() is threading.main_thread():
        _past.clear()
        os.write(_own, _MARK)
        _past.wait(1)
        _release()


def _release() -> None:
    """Let kernels run again, unless a call is going on."""
    with _lock:
        _byte.value &= bool(_calls)


def _listen(reader: int) -> None:
    while True:
        numbers = os.read(reader, 4096)
        if not _signals.isdisjoint(numbers):
            _byte.value = 1
            timer = threading.Timer(_HOLD, _release)
            timer.daemon = True
            timer.start()
        if _MARK in numbers:
            _past.set()
        numbers = numbers.replace(_MARK, b"")
        if numbers and _former is not None and _file_of(_former[0]) == _former[1]:
            with contextlib.suppress(OSError):
                os.write(_former[0], numbers)


def _file_of(descriptor: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(descriptor)
    except OSError:  # -1, or it is closed
        return None
    return found.st_dev, found.st_ino


def _forget() -> None:
    """Leave the pipe to the parent of a fork, whose thread is not here."""
    global _own, _former, _lock, _calls
    if _own != -1:
        signal.set_wakeup_fd(-1)
    _own, _former, _lock, _calls = -1, None, threading.Lock(), 0
    _byte.value = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
