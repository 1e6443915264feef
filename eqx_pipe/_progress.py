"""The progress bar, and how often a sweep returns to the host to update it."""

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

# The seconds between two updates of the bar, and the number of parts of a sweep until
# its pace is known. (The host updates the bar: `io_callback` fails in a `vmap` of a
# `cond`.)
_TARGET = 0.25
_FIRST_PARTS = 32

_now = time.perf_counter

# In a log file, where a bar would be thousands of lines, it is one line a minute.
# `miniters` disables updates by tqdm's thread, and at `position` 0 tqdm does not move
# the cursor.
_LINES = {
    "bar_format": "{desc}: {percentage:.0f}%, {n:,} of {total:,}{unit} in {elapsed}, "
    "{rate_noinv_fmt}, {remaining} left{postfix}",
    "mininterval": 60.0,
    "miniters": 1,
    "position": 0,
}


class Watched(NamedTuple):
    """The output whose best value is shown: its name, its leaf index and the mode."""

    name: str
    leaf: int
    mode: Literal["min", "max"]


def is_shown(progress: ProgressLike) -> bool | None:
    """Return whether to show a bar; `None` if that depends on the terminal."""
    return True if isinstance(progress, str | tuple) else progress


def watched(function: str, outputs: PyTree, progress: ProgressLike) -> Watched | None:
    """Return the output whose best value is shown; `outputs` are those of one point."""
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
    """A progress bar over points, and the pace of its updates.

    `shown=None` shows it in a terminal or a notebook, once the work has taken a second.
    With `shown=True` it is one line a minute elsewhere. A bar that is opened inside
    another one is below it, and disappears at its end. `before` points were finished by
    an earlier run: they count as done, but not for the rate. The work ends early once
    `stopping()` is true; `paced` work returns to the host to check this, even without a
    bar.
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
        """Return how many of a device's `batches` to run before the next update."""
        self._across = batch_points
        if self._bar is None and not self.paced:
            return batches
        if self._pace is None:
            return max(1, batches // _FIRST_PARTS)
        return max(1, min(batches, int(self._pace * _TARGET / batch_points)))

    def begin(self) -> None:
        """Start the clock; until now a program was compiled."""
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
        """Set the watched output, if it was not known when the bar was created."""
        self._watched = watched

    def failed(self, points: int) -> None:
        """Show the total number of failed points."""
        if points:
            self._postfix(failed=points)

    def saw(self, values: Sequence[np.ndarray], rows: slice | np.ndarray) -> None:
        """Record some rows of outputs; failed points are NaN."""
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
        # If a terminal is closed while a sweep runs, or a notebook loses its front end,
        # the bar is dropped, but the sweep continues.
        if self._bar is not None:
            try:
                draw(self._bar)
            except Exception:
                self._bar.disable = True
                self._bar = None
                _unlock()


def _bar(**options: Any) -> Any:
    """Return a tqdm bar, with widgets in a notebook; `None` if none can be drawn."""
    # Imported here, since the import takes time and most sweeps are short.
    from tqdm import std

    kinds = [std.tqdm]
    # Below another bar, such as that of a search in rounds, it disappears at its end.
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
            # A partly initialised bar would print a traceback when it is collected.
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
        sys.stderr.flush()  # raises if `sys.stderr` is None


def _unlock() -> None:
    """Release the lock of tqdm, which a bar holds after an error in drawing.

    (`tqdm.refresh` has no `finally`.) Bars in other threads, such as those of
    `datasets`, would wait for ever. Releasing a lock of another thread raises.
    """
    from tqdm import std

    with contextlib.suppress(RuntimeError, AssertionError, ValueError):
        while True:  # until this thread no longer holds the lock
            std.tqdm.get_lock().release()


def _is_seen() -> bool:
    # `sys.stderr` may be None (a Windows program without a console), closed, or
    # replaced.
    with contextlib.suppress(Exception):
        if sys.stderr.isatty():
            return True
    return _in_notebook()


def _in_notebook() -> bool:
    # Colab, Spyder and others have their own shells, derived from Jupyter's.
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return any(t.__name__ == "ZMQInteractiveShell" for t in type(shell).__mro__)
