"""Failures: of points, which are found by halves, of NaN, and of too little memory."""

import contextlib
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._errors import SweepError, message
from .._kernel import STOPPED, watched


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the tracebacks that JAX logs for callbacks that raise, as expected."""
    logger = logging.getLogger("jax._src.callback")

    # Each sweep has its own filter.
    def others(record: logging.LogRecord) -> bool:
        return "callback failed" not in record.getMessage()

    logger.addFilter(others)
    try:
        yield
    finally:
        logger.removeFilter(others)


def check_finite(outputs: Sequence[Any], infs: bool = True) -> None:
    """Raise a `FloatingPointError` under `jax_debug_nans`, `jax_debug_infs`.

    JAX checks the outputs of a program that was compiled ahead of time at its first
    call only. `outputs` are arrays on devices, which are checked separately; without
    `infs`, inf is allowed.
    """
    config: Any = jax.config
    nans = config.jax_debug_nans
    infs = infs and config.jax_debug_infs
    if not (nans or infs):
        return
    for leaf in outputs:
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            continue
        for shard in leaf.addressable_shards:
            data = np.asarray(shard.data)
            if nans and np.any(np.isnan(data)):
                raise FloatingPointError("nan")
            if infs and np.any(np.isinf(data)):
                raise FloatingPointError("inf")


def as_nonfinite(error: Exception) -> FloatingPointError:
    """Return the error about NaN or inf; raise any other error."""
    if isinstance(error, FloatingPointError):
        return error
    # JAX raises this internal error, which `jit` would translate.
    if type(error).__name__ == "InternalFloatingPointError":
        return FloatingPointError(error.args[-1] if error.args else "nan")
    raise error


_RAISED = re.compile(r"[\w.]*(Error|Exception)\w*: ")


def failed_point(function: str, i: int, error: Exception) -> Exception:
    """Return the error that names the first point that failed."""
    see = f"Call `fn(space.point({i}))`"
    if isinstance(error, FloatingPointError):
        return FloatingPointError(
            message(
                function,
                f"the output at point {i} is {error}, for which JAX raises "
                "(`jax_debug_nans` or `jax_debug_infs` is on).",
                f"{see}, which stops where it arises.",
            )
        )
    wrong = f"`fn` failed at point {i}: {reason(error)}."
    cure = f'`{function}(..., on_error="mark")`'
    cure = f"{see} to see it, or keep the other points by {cure}."
    return SweepError(message(function, wrong, cure), [i])


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
    assert points > 0
    if points == 1:
        error = compute(first, 1) if error is None else error
        return [] if error is None else [(first, error)]
    half = points // 2
    begin, left = first + half, points - half
    before, after = compute(first, half), None
    failed = [] if before is None else search(compute, first, half, only_first, before)
    if failed and only_first:
        return failed
    if before is not None:  # otherwise it is the second half that fails
        after = compute(begin, left)
        if after is None:
            return failed
    return failed + search(compute, begin, left, only_first, after)


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


class Stopped(SweepError):
    """The error for a call whose kernels a signal stopped."""

    def __init__(self, function: str) -> None:
        wrong = "a signal stopped its kernels."
        super().__init__(message(function, wrong, "Call it again."))


def is_stopped(error: Exception) -> bool:
    """Return whether an error was raised because a signal stopped a kernel."""
    # Some ways raise errors of kernels as a `ValueError`.
    return isinstance(error, Stopped) or STOPPED in str(error)


@contextlib.contextmanager
def stoppable(function: str, has_kernels: bool) -> Iterator[None]:
    """Run kernels, and raise a `Stopped` if a signal stops them, or has before."""
    with watched() as this_call:
        if has_kernels and this_call.stopped:
            raise Stopped(function)
        try:
            yield
        except Exception as error:
            if is_stopped(error):
                raise Stopped(function) from error
            raise


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


def nothing(dtype: Any) -> Any:
    """Return the value for a missing result: NaN, or 0 if the dtype has no NaN."""
    return np.nan if jnp.issubdtype(dtype, np.inexact) else 0
