"""The progress bar."""

import contextlib
import sys
import threading
from collections.abc import Callable
from typing import Any

# A log file, where a bar would be thousands of lines, gets a line each minute. With
# `miniters`, tqdm's thread does not update it, and at `position` 0 it moves no cursor.
_LINES = {
    "bar_format": "{desc}: {percentage:.0f}%, {n:,} of {total:,}{unit} in {elapsed}, "
    "{rate_noinv_fmt}, {remaining} left{postfix}",
    "mininterval": 60.0,
    "miniters": 1,
    "position": 0,
}

# If points are long, the bar moves inside of them.
_INSIDE = "{desc}: {percentage:.0f}%|{bar}|{postfix} [{elapsed}<{remaining}]"
_INSIDE_LOGGED = "{desc}: {percentage:.0f}%{postfix} in {elapsed}, {remaining} left"


_PATIENCE = 1.0
"""Seconds of a compilation until the bar shows that it runs."""


class Progress:
    """A bar over the points of a sweep, or other units.

    `shown=None` shows it in a terminal or a notebook, and only once the work has taken
    a second. Elsewhere it prints a line now and then. A bar that is opened while
    another is open appears below it and is removed at the end. `before` points were
    finished by an earlier run: they count as done, but not for the rate.
    """

    def __init__(
        self,
        shown: bool | None,
        size: int,
        before: int = 0,
        title: str = "sweep",
        unit: str = "points",
    ):
        self._bar = None
        self._notes: dict[str, Any] = {}
        self._finished, self._work, self._inside = before, 0.0, ""
        self._timer: threading.Timer | None = None
        if shown if shown is not None else _is_seen():
            delay = 0 if shown else 1
            text: dict[str, Any] = {"desc": title, "unit": f" {unit}"}
            self._bar = _bar(total=size, initial=before, delay=delay, **text)

    @property
    def is_shown(self) -> bool:
        """True if there is a bar to move."""
        return self._bar is not None

    def done(self, points: int) -> None:
        """Record that `points` more points are finished."""
        self._finished += points
        self._draw(lambda bar: bar.update(points))

    def compiling(self) -> None:
        """Show that a program is compiled, once that has taken a second."""
        if self._bar is not None:
            self._inside = "compiling"
            self._timer = threading.Timer(_PATIENCE, self._draw, [self._show])
            self._timer.daemon = True
            self._timer.start()

    def compiled(self) -> None:
        """Show that the computation begins."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._inside = None, ""
            self._draw(self._postfix)

    def inside(self, work: float, text: str) -> None:
        """Show the `work` on unfinished points, in points, and how far they are."""
        more, self._work, self._inside = work - self._work, work, text

        def draw(bar: Any) -> None:
            if text:  # `n` of `total` would read as finished points
                bar.bar_format = _INSIDE if _is_seen() else _INSIDE_LOGGED
            bar.update(more)
            self._postfix(bar)

        if text or more:
            self._draw(draw)

    def failed(self, points: int) -> None:
        """Show that a total of `points` points have failed so far."""
        if points:
            self.note(failed=points)

    def note(self, **notes: Any) -> None:
        """Show some names with values after the bar."""
        self._notes |= notes
        self._draw(self._postfix)

    def _show(self, bar: Any) -> None:
        self._postfix(bar)
        bar.refresh()

    def _postfix(self, bar: Any) -> None:
        texts = [f"{name}={value}" for name, value in self._notes.items()]
        if bar.bar_format in (_INSIDE, _INSIDE_LOGGED):
            count = f"{self._finished:,} of {bar.total:,}{bar.unit}"
            texts.insert(0, count)
        if self._inside:
            texts.append(self._inside)
        bar.set_postfix_str(", ".join(texts), refresh=False)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self.compiled()

        def draw(bar: Any) -> None:
            if self._finished == bar.total:
                bar.n, self._inside = bar.total, ""
            self._postfix(bar)
            bar.close()

        self._draw(draw)

    def _draw(self, draw: Callable[[Any], object]) -> None:
        # A terminal may be closed while a sweep runs, or a notebook may lose its front
        # end: then drop the bar, but continue the sweep.
        if self._bar is not None:
            try:
                draw(self._bar)
            except Exception:
                self._bar.disable = True
                self._bar = None
                _unlock()


def _bar(**options: Any) -> Any:
    """Return a bar of tqdm; `None` if drawing fails."""
    # Import here, since it takes time and most sweeps are short.
    from tqdm import std

    # A bar below another, such as the bar of a search in rounds, disappears at the end.
    options["leave"] = not getattr(std.tqdm, "_instances", ())
    if not _is_seen():
        options |= {"file": _Log(), **_LINES}
    bar = std.tqdm.__new__(std.tqdm)
    try:
        bar.__init__(**options)
        return bar
    except Exception:
        # A partly created bar would print a traceback when it is collected.
        bar.disable = True
        _unlock()
        return None


class _Log:
    """A file for tqdm that ends each line instead of returning to its start."""

    def write(self, text: str) -> None:
        line = text.strip("\r\n ")
        if line:
            sys.stderr.write(f"{line}\n")

    def flush(self) -> None:
        sys.stderr.flush()  # raises if stderr is closed


def _unlock() -> None:
    """Release the lock of tqdm, which a bar keeps if drawing it fails.

    (`tqdm.refresh` has no `finally`.) Bars in other threads, such as those of
    `datasets`, would otherwise wait forever. A lock of another thread raises.
    """
    from tqdm import std

    with contextlib.suppress(RuntimeError, AssertionError, ValueError):
        while True:  # until this thread no longer holds it
            std.tqdm.get_lock().release()


def _is_seen() -> bool:
    """Return whether somebody sees a bar move."""
    # `sys.stderr` may be None (a Windows program without a console), closed, or a
    # replacement.
    with contextlib.suppress(Exception):
        if sys.stderr.isatty():
            return True
    # A notebook: Colab, Spyder and others derive their own shells from Jupyter's.
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return any(t.__name__ == "ZMQInteractiveShell" for t in type(shell).__mro__)


def tell(text: str) -> None:
    """Print a line to standard error, if it can be written."""
    # The terminal may be closed, or a signal may interrupt another write.
    with contextlib.suppress(OSError, RuntimeError, ValueError, AttributeError):
        sys.stderr.write(f"\n{text}\n")
        sys.stderr.flush()
