"""The progress bar, and how often a sweep comes back to the host to move it."""

import contextlib
import sys
import time
from collections.abc import Callable
from typing import Any

_TARGET = 0.25
_FIRST_PARTS = 32


class Progress:
    """A bar over the points, and the pace at which it should move.

    `shown=None` shows it in a terminal or a notebook, and only once the work has taken
    a second. `before` points were finished by an earlier run: they count as done, but
    not for the rate. What is computed ends early once `stopping()` is true.
    """

    def __init__(
        self,
        shown: bool | None,
        size: int,
        before: int = 0,
        stopping: Callable[[], bool] = bool,
    ):
        self.stopping = stopping
        self._last = time.perf_counter()
        self._pace: float | None = None
        self._bar = None
        if shown if shown is not None else _is_seen():
            delay = 0 if shown else 1
            text: dict[str, Any] = {"desc": "sweep", "unit": " points"}
            self._bar = _bar(total=size, initial=before, delay=delay, **text)

    def count(self, batches: int, batch_points: int) -> int:
        """How many of the `batches` left on each device to do before coming back."""
        if self._bar is None:
            return batches
        if self._pace is None:
            return max(1, batches // _FIRST_PARTS)
        return max(1, min(batches, int(self._pace * _TARGET / batch_points)))

    def done(self, points: int) -> None:
        """Takes note that `points` more points are finished."""
        if self._bar is not None:
            now = time.perf_counter()
            self._pace = points / max(now - self._last, 1e-6)
            self._last = now
            self._draw(lambda bar: bar.update(points))

    def failed(self, points: int) -> None:
        """Says that `points` points in all have failed so far."""
        if points:
            self._draw(lambda bar: bar.set_postfix(failed=points, refresh=False))

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self._draw(lambda bar: bar.close())

    def _draw(self, draw: Callable[[Any], object]) -> None:
        # A terminal may be closed while a sweep runs, and a notebook lose its front
        # end: the bar is then given up, and not the sweep.
        if self._bar is not None:
            try:
                draw(self._bar)
            except Exception:
                self._bar.disable = True
                self._bar = None


def _bar(**options: Any) -> Any:
    """A bar of widgets in a notebook that has them, and else of text, if it can be."""
    # Imported here, since it takes time and most sweeps are over in an instant.
    from tqdm import std

    with contextlib.suppress(Exception):
        if _in_notebook():
            from tqdm import notebook

            return _made(notebook.tqdm, options)
    with contextlib.suppress(Exception):
        return _made(std.tqdm, options)
    return None


def _made(tqdm: Any, options: dict[str, Any]) -> Any:
    bar = tqdm.__new__(tqdm)
    try:
        bar.__init__(**options)
    except Exception:
        # Without ipywidgets `tqdm.notebook` can be imported, and its constructor
        # raises. What it leaves behind would print a traceback when it is collected.
        bar.disable = True
        raise
    return bar


def _is_seen() -> bool:
    # `sys.stderr` may be None (a Windows program without a console), closed, or
    # somebody's own stand-in.
    with contextlib.suppress(Exception):
        if sys.stderr.isatty():
            return True
    return _in_notebook()


def _in_notebook() -> bool:
    # Colab, Spyder and others have shells of their own, derived from Jupyter's.
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return any(t.__name__ == "ZMQInteractiveShell" for t in type(shell).__mro__)
