"""Ctrl-C and other signals, which stop the kernels of the calls that were made before.

XLA calls a kernel, so the main thread may wait for an hour in which Python handles no
signal. But Python writes the number of each signal to a file descriptor at once, from
which a thread reads it here. Kernels look at a byte in each step of their loops, and
return an error while it is set.

A `Call` begins in Python, so a signal that comes later stops all of its kernels, also
those that threads and workers begin long after it. The byte is set while one of them
may run. Calls of a `jax.jit` cannot be told apart: all kernels stop until Python has
handled the signal, the arrays that were being computed are ready, and no kernel has run
for a moment.
"""

import contextlib
import contextvars
import ctypes
import math
import os
import select
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import jax

from .._cache import LRUCache

STOPPED = "eqx_pipe: a signal stopped the kernel"
"""The message of the error that a stopped kernel returns."""

_LOOK = 0.02
"""The seconds between two looks at whether kernels still run.

XLA begins the next kernel of a program within much less.
"""

_PATIENCE = 1.0
"""The seconds for which a new call waits for kernels from before."""

_SILENCE = 30.0
"""The seconds without kernels after which Python is not expected to handle a signal.

Between two kernels of a program XLA may compute other things for so long.
"""


class Shared(ctypes.Structure):
    """The memory that kernels share with this module.

    They stop while the first byte is set, and count the calls that began and ended.
    """

    _fields_ = (
        ("stop", ctypes.c_uint8),
        ("begun", ctypes.c_int64),
        ("ended", ctypes.c_int64),
    )


class Call:
    """A call of a function of this library, which signals stop with all its kernels."""

    stopped = False


_shared = Shared()
_lock = threading.RLock()
_current: contextvars.ContextVar[Call | None] = contextvars.ContextVar("call")
_named = LRUCache(256)
_calls: list[Call] = []
"""The calls that a signal stops."""
_computing: list[Call] = []
"""The calls whose kernels may run."""
_signals = frozenset({signal.SIGINT})
_handled, _changed, _seen = 0.0, 0.0, 0
"""When Python handled the last signal, and when the number of calls last changed."""
_unready: list[Any] = []
"""The arrays that were being computed when the last signal came."""
_reader, _own = -1, -1
"""The ends of a pipe to which Python writes; -1 before the first kernel."""
_former: tuple[int, tuple[int, int]] | None = None
"""The descriptor that had its place, and the file that it stood for."""


def shared_address() -> int:
    """Return the address of the memory that kernels share with this module."""
    return ctypes.addressof(_shared)


def begin() -> None:
    """Watch for signals, from the first kernel on; those from before stop nothing."""
    watch()
    _outwait()


def watch(create: bool = True) -> int:
    """Receive signals in place of the descriptor of the program, which gets them, too.

    Returns the descriptor that received them so far, -1 if there is none. In other
    threads than the main one, Python allows no change. Without `create` nothing happens
    before the first kernel.
    """
    global _reader, _own, _former
    # Windows has no pipes that do not block: there kernels run to their end.
    if not _is_main() or os.name == "nt" or (_own == -1 and not create):
        return -1
    if _own == -1:
        _reader, _own = os.pipe()
        os.set_blocking(_own, False)
        name = "eqx_pipe signals"
        threading.Thread(target=_listen, name=name, daemon=True).start()
    before = signal.set_wakeup_fd(_own, warn_on_full_buffer=False)
    if before != _own:
        file = _file_of(before)
        _former = None if file is None else (before, file)
    return before


@contextlib.contextmanager
def stopping_at(signals: Iterable[int] | None, name: str = "") -> Iterator[Call]:
    """Let some signals stop kernels in this context, and no others.

    Signals from before do not. At the end the descriptor of the program is back. The
    context is a call, or a part of the call of that `name`.
    """
    global _signals
    before, kept = watch(create=False), _signals
    call = _named.setdefault(name, Call()) if name else Call()
    if not call.stopped:
        _outwait()
    reset = _current.set(call)
    if signals is not None:
        _signals = frozenset(signals)
    try:
        with _among(_calls, call):
            yield call
    finally:
        _current.reset(reset)
        if signals is not None:
            _signals = kept
        if before not in (-1, _own):
            signal.set_wakeup_fd(before)


def share(name: str) -> Call:
    """Let threads and workers compute parts of this call under a name."""
    call = _current.get(None) or Call()
    _named.put(name, call)
    return call


@contextlib.contextmanager
def watched() -> Iterator[Call]:
    """Run kernels of the call, or of a new one; they must not begin if it `stopped`."""
    call = _current.get(None)
    if call is None:
        _outwait()
    with _among(_computing, call or Call()) as call:
        yield call


@contextlib.contextmanager
def _among(calls: list[Call], call: Call) -> Iterator[Call]:
    with _lock:
        calls.append(call)
    try:
        yield call
    finally:
        with _lock:
            calls.remove(call)


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


def _waits(seconds: float | None = 0.0) -> bool:
    """Return whether a signal has not been read, or comes within some seconds."""
    poll = select.poll()
    poll.register(_reader, select.POLLIN)
    return bool(poll.poll(None if seconds is None else 1000 * seconds))


def _outwait() -> None:
    """Wait until kernels from before have stopped; then let new ones run."""
    call, until = _current.get(None), time.monotonic() + _PATIENCE
    if _own == -1 or (call is not None and call.stopped):
        return
    while time.monotonic() < until:
        with _lock:
            if not (_shared.stop or _waits()):
                return
        if _is_main():
            _handle(None)
        time.sleep(_LOOK / 2)
    if _shared.stop:
        _release(at_once=True)


def _listen() -> None:
    global _handled, _changed, _unready
    owed = False
    while True:
        if owed:
            # The main thread calls it when it runs Python again. Its queue is short.
            owed = bool(ctypes.pythonapi.Py_AddPendingCall(_handle, None))
        if not _waits(_LOOK if _shared.stop or owed else None):
            _release()
            continue
        with _lock:  # nobody sees that they are read, and not what follows
            numbers = os.read(_reader, 4096)
            stops = not _signals.isdisjoint(numbers)
            if stops:
                _shared.stop, _handled, _changed = 1, math.inf, time.monotonic()
                for call in (*_calls, *_computing):
                    call.stopped = True
        if _former is not None and _file_of(_former[0]) == _former[1]:
            with contextlib.suppress(OSError):
                os.write(_former[0], numbers)
        if stops:
            with contextlib.suppress(RuntimeError):  # JAX has no CPUs
                _unready = jax.live_arrays("cpu")
            owed = True


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
def _handle(_: Any) -> int:
    """Note that Python has handled the signals."""
    global _handled
    _handled = min(_handled, time.monotonic())
    return 0


def _release(at_once: bool = False) -> None:
    """Let kernels run again, unless those of a stopped call may still run.

    They are over once none has begun for a moment. While Python has not handled the
    signal, or arrays of before are not ready, more of the same program may follow
    later, so a moment does not do. `at_once` is for a new call that has waited.
    """
    global _seen, _changed, _unready
    _unready = [x for x in _unready if not (x.is_deleted() or x.is_ready())]
    with _lock:
        now, begun = time.monotonic(), _shared.begun
        if begun != _seen:
            _seen, _changed = begun, now
        rest = now - _changed
        expected = bool(_unready) or now <= _handled
        over = rest > (_SILENCE if expected else _LOOK / 2)
        # A thread may begin one new kernel after the other, without such a moment.
        over |= at_once or now > _handled + _PATIENCE and not expected
        if over and begun == _shared.ended and not any(c.stopped for c in _computing):
            _shared.stop, _unready = 0, []


def _file_of(descriptor: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(descriptor)
    except OSError:  # -1, or it is closed
        return None
    return found.st_dev, found.st_ino


def _forget() -> None:
    """Leave the pipe to the parent of a fork, whose thread is not here."""
    global _own, _former, _lock
    if _own != -1:
        signal.set_wakeup_fd(-1)
    _own, _former, _lock = -1, None, threading.RLock()
    _calls.clear()
    _computing.clear()
    _shared.stop = _shared.begun = _shared.ended = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
