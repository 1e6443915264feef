"""Points that fail, and batches that do not fit into memory.

How many points a kernel computes, and from where on, is data. So the program that
failed for many points is asked for half of them, and so on, without compiling again.
What a batch needs is known only when it is tried: other programs use the device too,
and CPUs do not report how much memory they have.
"""

import contextlib
import dataclasses
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int64

from ..._errors import SweepError, message

_RAISED = re.compile(r"[\w.]*(Error|Exception)\w*: ")

Errors: TypeAlias = Mapping[str, Int64[np.ndarray, " _failed"]]
"""The points at which each error was raised, by its text."""

Place: TypeAlias = slice | np.ndarray
"""Some rows, as an index of NumPy."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The outcome of some rows: those in which nothing failed, and errors of points.

    Rows that are `missing` were not computed, since Ctrl-C came before; they are not
    `ok` either. `failed` counts the points of all rows that failed.
    """

    ok: Bool[np.ndarray, " rows"]
    errors: Errors = dataclasses.field(default_factory=dict)
    missing: Bool[np.ndarray, " rows"] | None = None
    failed: int = 0


def in_order(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict on rows that follow one another, from those on parts."""
    if len(verdicts) == 1:
        return verdicts[0]
    missing = None
    if any(verdict.missing is not None for verdict in verdicts):
        missing = np.concatenate(
            [np.zeros_like(v.ok) if v.missing is None else v.missing for v in verdicts]
        )
    # An empty part of a space has no rows, and so no verdicts.
    ok = np.concatenate([np.zeros(0, bool), *(verdict.ok for verdict in verdicts)])
    errors = joined([verdict.errors for verdict in verdicts])
    return Verdict(ok, errors, missing, sum(verdict.failed for verdict in verdicts))


def joined(errors: Sequence[Errors]) -> Errors:
    """Return all of some errors, each text once."""
    found: dict[str, list[np.ndarray]] = {}
    for some in errors:
        for text, points in some.items():
            found.setdefault(text, []).append(points)
    return {text: np.concatenate(points) for text, points in found.items()}


@dataclasses.dataclass
class Failures:
    """The points of some rows that fail: marked if `isolated`, or else raised.

    There are `size` rows, whose leaves are `values`. `function` is the public function
    that was called, for messages; `number` gives the index by which users know the
    point of a row.
    """

    function: str
    isolated: bool
    size: int
    values: list[np.ndarray]
    number: Callable[[int], int] = int
    count: int = 0
    """The number of points that have failed so far."""
    _ok: Bool[np.ndarray, " rows"] | None = None
    _missing: Bool[np.ndarray, " rows"] | None = None
    _errors: list[Errors] = dataclasses.field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        """The outcome of the rows; without failures it takes no memory."""
        ok = self._ok
        if ok is None:
            ok = np.broadcast_to(np.True_, (self.size,))
        return Verdict(ok, joined(self._errors), self._missing, self.count)

    def mark(self, place: Place, text: str) -> None:
        """Note that some rows failed, and clear them."""
        rows = np.arange(self.size)[place]
        self.count += len(rows)
        self._clear(rows)
        self._errors.append({text: rows})

    def skip(self, place: Place) -> None:
        """Note that some rows are not computed, and clear them."""
        if self._missing is None:
            self._missing = np.zeros(self.size, bool)
        self._missing[place] = True
        self._clear(place)

    def _clear(self, place: Place) -> None:
        if self._ok is None:
            self._ok = np.ones(self.size, bool)
        self._ok[place] = False
        clear(self.values, place)

    def found(
        self,
        compute: Callable[[int, int], Exception | None],
        rows: Callable[[int, int], Place],
        first: int,
        points: int,
    ) -> None:
        """Find which of `points` points from `first` on failed.

        `compute(first, points)` computes some of them and returns the error or `None`;
        `rows(first, last)` are the rows of some.

        Raises a `SweepError` that names the first point that fails, or a
        `FloatingPointError` under `jax_debug_nans`, unless failing points are isolated.
        """
        lone = search(compute, first, points, only_first=not self.isolated)
        if self.isolated:
            for at, error in lone:
                self.mark(rows(at, at + 1), error_text(error))
            return
        if not lone:
            raise differs(self.function, points)
        at, error = lone[0]
        place = rows(at, at + 1)
        row = place.start if isinstance(place, slice) else place[0]
        raise self._named(self.number(int(row)), error) from error

    def _named(self, i: int, error: Exception) -> Exception:
        """Return the error for a point that fails."""
        see = f"Call `fn(space.point({i}))`"
        if isinstance(error, FloatingPointError):
            return FloatingPointError(
                message(
                    self.function,
                    f"the output at point {i} is {error}, for which JAX raises "
                    "(`jax_debug_nans` or `jax_debug_infs` is on).",
                    f"{see}, which stops where it arises.",
                )
            )
        wrong = f"`fn` failed at point {i}: {reason(error)}."
        cure = f'`{self.function}(..., on_error="mark")`'
        cure = f"{see} to see it, or keep the other points by {cure}."
        return SweepError(message(self.function, wrong, cure), [i])


def differs(function: str, points: int) -> SweepError:
    """Return the error for a function that fails in some runs alone."""
    return SweepError(
        message(
            function,
            f"`fn` failed in a batch of {points} points, but no point failed when it "
            "was computed alone: `fn` is non-deterministic.",
            "Look for callbacks, global state, or what else differs between runs.",
        )
    )


def search(
    compute: Callable[[int, int], Exception | None],
    first: int,
    points: int,
    only_first: bool,
) -> list[tuple[int, Exception]]:
    """Return the points that fail by themselves, of `points` that failed together."""
    lone: list[tuple[int, Exception]] = []
    # What is left to look at, the next on top, and whether it is known to fail.
    left = [(first, points, True)]
    while left:
        first, points, known = left.pop()
        if not known or points == 1:
            error = compute(first, points)
            if error is None:
                # Of two halves of what failed, the other one is to blame.
                if left and left[-1][0] == first + points and not known:
                    left[-1] = (*left[-1][:2], True)
                continue
            if points == 1:
                lone.append((first, error))
                if only_first:
                    break
                continue
        half = points // 2
        left.append((first + half, points - half, False))
        left.append((first, half, False))
    return lone


def clear(values: Sequence[np.ndarray], place: Place) -> None:
    """Put NaN, or 0 where there is none, into rows that have no result."""
    for leaf in values:
        leaf[place] = nothing(leaf.dtype)


def nothing(dtype: Any) -> Any:
    """Return what stands where there is no result: NaN, or 0 where there is none."""
    return np.nan if jnp.issubdtype(dtype, np.inexact) else 0


def error_text(error: BaseException) -> str:
    """Return the kind of an error and its message, in a line."""
    line = reason(error)
    # JAX itself names the type of what a callback raised.
    text = line if _RAISED.match(line) else f"{type(error).__name__}: {line}"
    return text.lstrip("_")


def reason(error: BaseException | None) -> str:
    """Return the line of JAX's long message that names what was raised."""
    lines = str(error).splitlines() or [type(error).__name__]
    raised = [line for line in lines if _RAISED.match(line)]
    return (raised[-1] if raised else lines[0]).rstrip(".")


# In the words of devices and compilers. An error of a callback begins otherwise.
_OUT_OF_MEMORY = re.compile(
    r"RESOURCE_EXHAUSTED|[^\n]*out of memory (allocating|while)", re.I
)


class TooLarge(Exception):
    """A batch size for which there is not enough memory."""

    def __init__(self, batch_size: int):
        super().__init__(batch_size)
        self.batch_size = batch_size


class Fit:
    """The batch sizes for which there was not enough memory.

    It is shared by all copies of some points, so that none of them tries a size again.
    """

    def __init__(self) -> None:
        self.halved: list[int] = []
        self._most: int | None = None
        self._lock = threading.Lock()

    def fitting(self, batch_size: int) -> int:
        """Return a batch size, or the largest that may fit."""
        return batch_size if self._most is None else min(batch_size, self._most)

    def note(self, too_large: int, then: int) -> None:
        """Note that a size did not fit, and with which one to go on."""
        with self._lock:  # threads that share points may come here together
            if self.fitting(too_large) == too_large:
                self.halved.append(too_large)
                self._most = then


@contextlib.contextmanager
def noting(batch_size: int) -> Iterator[None]:
    """Raise a `TooLarge` in place of JAX's error about too little memory."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if _OUT_OF_MEMORY.match(str(error)):
            raise TooLarge(batch_size) from error
        raise


def does_not_fit(function: str, error: TooLarge, chosen: bool) -> SweepError:
    """Return the error for a size that was `chosen` by the user, or is 1."""
    points = "1 point" if error.batch_size == 1 else f"{error.batch_size} points"
    cure = 'Leave `batch_size` out: "auto" halves it until batches fit.'
    if not chosen:
        cure = (
            "Let `fn` hold less at a time, or give fewer devices that share the memory "
            "as `mesh=`."
        )
    what = f"there is not enough memory for a batch of {points} on each device: "
    return SweepError(message(function, f"{what}{reason(error.__cause__)}.", cure))
