"""Batches that do not fit into memory: told from other errors, and made smaller.

What a batch needs is known only when it is tried: other programs use the device too,
and CPUs do not say how much memory they have.
"""

import contextlib
import re
import threading
from collections.abc import Iterator

import jax

from ..._errors import SweepError, message
from .failure import reason

# As devices and compilers say it. What a callback raises has another first line.
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
