"""Points that fail, and batches that do not fit into memory.

The range of points that a kernel computes is data. So a program that failed for many
points is called for half of them, and so on, without another compilation. The memory
that a batch needs is known only by trying: other programs use the device too, and CPUs
do not report their memory.
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
"""Some rows, as a NumPy index."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The outcome of some rows: which are `ok`, and the errors of points.

    Rows that are `missing` were not computed before Ctrl-C; they are not `ok` either.
    `failed` is the number of failed points in all rows.
    """

    ok: Bool[np.ndarray, " rows"]
    errors: Errors = dataclasses.field(default_factory=dict)
    missing: Bool[np.ndarray, " rows"] | None = None
    failed: int = 0


def in_order(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict on consecutive rows, from the verdicts on parts."""
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
    """Return several mappings of errors as one, each text once."""
    found: dict[str, list[np.ndarray]] = {}
    for some in errors:
        for text, points in some.items():
            found.setdefault(text, []).append(points)
    return {text: np.concatenate(points) for text, points in found.items()}


@dataclasses.dataclass
class Failures:
    """The failed points of some rows, which are marked if `isolated`, or else raise.

    There are `size` rows, whose leaves are `values`. `function` is the public function
    that was called, for messages; `number` returns the user's index of the point of a
    row.
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
        """The verdict on the rows; without failures it takes no memory."""
        ok = self._ok
        if ok is None:
            ok = np.broadcast_to(np.True_, (self.size,))
        return Verdict(ok, joined(self._errors), self._missing, self.count)

    def mark(self, place: Place, text: str) -> None:
        """Record that some rows failed, and clear them."""
        rows = np.arange(self.size)[place]
        self.count += len(rows)
        self._clear(rows)
        self._errors.append({text: rows})

    def skip(self, place: Place) -> None:
        """Record that some rows are not computed, and clear them."""
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
        `rows(first, last)` returns their rows.

        Raises a `SweepError` that names the first failed point, or a
        `FloatingPointError` under `jax_debug_nans`, unless failures are isolated.
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
    """Return the error for a function that fails non-deterministically."""
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
    error: Exception | None = None,
) -> list[tuple[int, Exception]]:
    """Return the points that fail by themselves, of `points` that failed together.

    `error` is the error of a single point, if it is known.
    """
    if points == 1:
        error = compute(first, 1) if error is None else error
        return [] if error is None else [(first, error)]
    half = points // 2
    begin, left = first + half, points - half
    before, after = compute(first, half), None
    found = [] if before is None else search(compute, first, half, only_first, before)
    if found and only_first:
        return found
    if before is not None:  # otherwise it is the second half that fails
        after = compute(begin, left)
        if after is None:
            return found
    return found + search(compute, begin, left, only_first, after)


def clear(values: Sequence[np.ndarray], place: Place) -> None:
    """Write NaN, or 0 if the dtype has no NaN, into rows without a result."""
    for leaf in values:
        leaf[place] = nothing(leaf.dtype)


def nothing(dtype: Any) -> Any:
    """Return the value for a missing result: NaN, or 0 if the dtype has no NaN."""
    return np.nan if jnp.issubdtype(dtype, np.inexact) else 0


def error_text(error: BaseException) -> str:
    """Return the type of an error and its message, in one line."""
    line = reason(error)
    # JAX's message includes the type of an error in a callback.
    text = line if _RAISED.match(line) else f"{type(error).__name__}: {line}"
    return text.lstrip("_")


def reason(error: BaseException | None) -> str:
    """Return the line of JAX's long message that names the original error."""
    lines = str(error).splitlines() or [type(error).__name__]
    raised = [line for line in lines if _RAISED.match(line)]
    return (raised[-1] if raised else lines[0]).rstrip(".")


# The messages of devices and compilers; errors of callbacks begin differently.
_OUT_OF_MEMORY = re.compile(
    r"RESOURCE_EXHAUSTED|[^\n]*out of memory (allocating|while)", re.I
)


class TooLarge(Exception):
    """The error for a batch size for which there is not enough memory."""

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
        """Return `batch_size`, or the largest size that may fit."""
        return batch_size if self._most is None else min(batch_size, self._most)

    def note(self, too_large: int, then: int) -> None:
        """Record that a size did not fit, and the size to continue with."""
        with self._lock:  # threads may share points
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
    """Return the error for a size that the user has `chosen`, or that is 1."""
    points = "1 point" if error.batch_size == 1 else f"{error.batch_size} points"
    cure = 'Leave `batch_size` out: "auto" halves it until batches fit.'
    if not chosen:
        cure = (
            "Let `fn` hold less at a time, or give fewer devices that share the memory "
            "as `mesh=`."
        )
    what = f"there is not enough memory for a batch of {points} on each device: "
    return SweepError(message(function, f"{what}{reason(error.__cause__)}.", cure))
