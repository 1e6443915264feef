"""The progress bar, and how often a sweep comes back to the host to move it."""

import sys
import time
from typing import Any

from ..._errors import describe_value, message

_TARGET = 0.25
_FIRST_PARTS = 32


class Progress:
    """A bar over the points, and the pace at which it should move.

    `shown=None` shows it in a terminal or a notebook, and only once the work has taken
    a second. `before` points were finished by an earlier run: they count as done, but
    not for the rate.
    """

    def __init__(self, shown: Any, size: int, before: int = 0):
        if shown is not None and not isinstance(shown, bool):
            raise TypeError(
                message(
                    "sweep",
                    f"`progress` is {describe_value(shown)}.",
                    "Give True, False, or None for a bar where somebody can see it.",
                )
            )
        notebook = _in_notebook()
        active = shown if shown is not None else notebook or sys.stderr.isatty()
        self._last = time.perf_counter()
        self._pace: float | None = None
        self._bar = None
        if active:
            # Imported here, since it takes time and most sweeps are over in an instant.
            from tqdm import TqdmWarning, std

            tqdm: Any = std.tqdm
            if notebook:
                try:
                    from tqdm.notebook import tqdm
                except (ImportError, TqdmWarning):
                    pass
            delay = 0 if shown else 1
            self._bar = tqdm(
                total=size,
                initial=before,
                desc="sweep",
                unit=" points",
                delay=delay,
            )

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
            self._bar.update(points)

    def failed(self, points: int) -> None:
        """Says that `points` points in all have failed so far."""
        if self._bar is not None and points:
            self._bar.set_postfix(failed=points, refresh=False)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return type(shell).__name__ == "ZMQInteractiveShell"
