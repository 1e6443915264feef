"""The progress bar, and the interval at which a sweep returns to the host."""

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np

from ._errors import nearest, value_error
from ._tree import leaves_with_names
from ._types import ProgressLike, PyTree

# Seconds between two updates of the bar, and the number of parts of a sweep until its
# speed is known. (The host updates the bar: `io_callback` fails in a `vmap` of a
# `cond`.)
_TARGET = 0.25
_FIRST_PARTS = 32

_now = time.perf_counter

# A log file, where a bar would be thousands of lines, gets a line each minute. With
# `miniters`, tqdm's thread does not update it, and at `position` 0 it moves no cursor.
_LINES = {
    "bar_format": "{desc}: {percentage:.0f}%, {n:,} of {total:,}{unit} in {elapsed}, "
    "{rate_noinv_fmt}, {remaining} left{postfix}",
    "mininterval": 60.0,
    "miniters": 1,
    "position": 0,
}


class Watched(NamedTuple):
    """An output whose best value so far is shown: its name, index and mode."""

    name: str
    leaf: int
    mode: Literal["min", "max"]


def is_shown(progress: ProgressLike) -> bool | None:
    """Return whether to show a bar; `None` if it depends on the terminal."""
    return True if isinstance(progress, str | tuple) else progress


def watched(function: str, outputs: PyTree, progress: ProgressLike) -> Watched | None:
    """Return the output whose best is shown, among the `outputs` at one point."""
    if not isinstance(progress, str | tuple):
        return None
    name, mode = (progress, "min") if isinstance(progress, str) else progress
    named = [(n or "value", x) for n, x in leaves_with_names(outputs)]
    fit = [n for n, x in named if not x.shape and jnp.issubdtype(x.dtype, jnp.floating)]
    if name in fit:
        return Watched(name, [n for n, _ in named].index(name), mode)
    raise value_error(
        function,
        f"`progress` names {name!r}, which is not a scalar floating-point output.",
        f"{nearest(name, fit)}"
        if fit
        else "Give True: `fn` returns no scalar floating-point number.",
    )


class Progress:
    """A bar over the points, and the interval at which it should be updated.

    `shown=None` shows it in a terminal or a notebook, and only once the work has taken
    a second. Elsewhere it prints a line now and then. A bar that is opened while
    another is open appears below it and is removed at the end. `before` points were
    finished by an earlier run: they count as done, but not for the rate. The
    computation ends early once `stopping()` is true; `paced` work returns to the host
    to check this even without a bar.
    """

    def __init__(
        self,
        shown: bool | None,
        size: int,
        before: int = 0,
        stopping: Callable[[], bool] = bool,
        watched: Watched | None = None,
        title: str = "sweep",
        unit: str = "points",
        paced: bool = False,
    ):
        self.stopping = stopping
        self.seconds = 0.0
        """The seconds per batch on each device, if there is a bar or it is `paced`."""
        self.paced, self._across = paced, 1
        self._last = _now()
        self._pace: float | None = None
        self._bar = None
        self._watched, self._best = watched, None
        self._said: dict[str, Any] = {}
        if shown if shown is not None else _is_seen():
            delay = 0 if shown else 1
            text: dict[str, Any] = {"desc": title, "unit": f" {unit}"}
            self._bar = _bar(total=size, initial=before, delay=delay, **text)

    def count(self, batches: int, batch_points: int) -> int:
        """Return how many of a device's `batches` to compute in the next call."""
        self._across = batch_points
        if self._bar is None and not self.paced:
            return batches
        if self._pace is None:
            return max(1, batches // _FIRST_PARTS)
        return max(1, min(batches, int(self._pace * _TARGET / batch_points)))

    def begin(self) -> None:
        """Start the clock, after the program is compiled."""
        self._last = _now()

    def done(self, points: int) -> None:
        """Record that `points` more points are finished."""
        if self._bar is None and not self.paced:
            return
        now = _now()
        spent = max(now - self._last, 1e-6)
        self._pace = points / spent
        self.seconds = spent / max(1, -(-points // self._across))
        self._last = now
        self._draw(lambda bar: bar.update(points))

    def watch(self, watched: Watched | None) -> None:
        """Set the watched output, if it was unknown when the bar was created."""
        self._watched = watched

    def failed(self, points: int) -> None:
        """Show that a total of `points` points have failed so far."""
        if points:
            self._postfix(failed=points)

    def saw(self, values: Sequence[np.ndarray], rows: slice | np.ndarray) -> None:
        """Update the best value by rows of outputs, in which failed points are NaN."""
        if self._bar is None or self._watched is None:
            return
        name, leaf, mode = self._watched
        found = values[leaf][rows]
        found = found[np.isfinite(found)]
        if found.size:
            best = getattr(found, mode)()
            if self._best is not None:
                best = getattr(np, f"{mode}imum")(best, self._best)
            self._best = best
            self._postfix(**{name: f"{best:.5g}"})

    def _postfix(self, **said: Any) -> None:
        self._said |= said
        self._draw(lambda bar: bar.set_postfix(self._said, refresh=False))

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self._draw(lambda bar: bar.close())

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
    """Return a bar of tqdm, with widgets in a notebook; `None` if drawing fails."""
    # Import here, since it takes time and most sweeps are short.
    from tqdm import std

    kinds = [std.tqdm]
    # A bar below another, such as the bar of a search in rounds, disappears at the end.
    options["leave"] = not getattr(std.tqdm, "_instances", ())
    if _in_notebook():
        from tqdm import auto

        kinds.insert(0, auto.tqdm)
    elif not _is_seen():
        options |= {"file": _Log(), **_LINES}
    for kind in kinds:
        bar = kind.__new__(kind)
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
    # `sys.stderr` may be None (a Windows program without a console), closed, or a
    # replacement.
    with contextlib.suppress(Exception):
        if sys.stderr.isatty():
            return True
    return _in_notebook()


def _in_notebook() -> bool:
    # Colab, Spyder and others derive their own shells from Jupyter's.
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return any(t.__name__ == "ZMQInteractiveShell" for t in type(shell).__mro__)
