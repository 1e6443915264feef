"""Points that fail: found by halving, without compiling again, and marked.

How many points a kernel computes, and from where on, is data. So the program that
failed for many points is asked for half of them, and so on.
"""

import contextlib
import dataclasses
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Bool, Int64

from ..._errors import SweepError, message
from ..._tree import is_key_array
from ..._types import PyTree

_RAISED = re.compile(r"[\w.]*(Error|Exception)\w*: ")
_CALLBACKS = "jax._src.callback"

Errors: TypeAlias = Mapping[str, Int64[np.ndarray, " _failed"]]
"""What was raised, as a line of text, and at which points of the space."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What became of some rows: in which nothing failed, and the errors of points.

    Rows that are `missing` were not computed, since Ctrl-C came before; they are not
    `ok` either. `failed` counts the points of all rows that failed.
    """

    ok: Bool[np.ndarray, " rows"]
    errors: Errors = dataclasses.field(default_factory=dict)
    missing: Bool[np.ndarray, " rows"] | None = None
    failed: int = 0


def in_order(verdicts: Sequence[Verdict]) -> Verdict:
    """What became of rows, from that of some and of those behind them."""
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
    """All of some errors, each text once."""
    found: dict[str, list[np.ndarray]] = {}
    for some in errors:
        for text, points in some.items():
            found.setdefault(text, []).append(points)
    return {text: np.concatenate(points) for text, points in found.items()}


@dataclasses.dataclass
class Failures:
    """What a sweep does about points that fail: `ok` marks them if `isolated`.

    `function` is the public function that was called, for messages, and `base` the
    index in the space of the first of the points.; `number` gives the index
    by which users know a point.
    """

    function: str
    isolated: bool
    points: int
    base: int = 0
    number: Callable[[int], int] = int
    count: int = 0
    """How many points have failed so far."""
    _marks: Bool[np.ndarray, " points"] | None = None
    _missing: Bool[np.ndarray, " points"] | None = None
    _errors: list[Errors] = dataclasses.field(default_factory=list)

    @property
    def ok(self) -> Bool[np.ndarray, " points"]:
        """Which points have not failed; it takes no memory as long as none has."""
        if self._marks is None:
            return np.broadcast_to(np.True_, (self.points,))
        return self._marks

    @property
    def verdict(self) -> Verdict:
        """What became of the points."""
        return Verdict(self.ok, joined(self._errors), self._missing, self.count)

    def mark(self, index: Int64[np.ndarray, " failed"], error: str) -> None:
        """Notes that some points have failed, by their index in the space."""
        if self._marks is None:
            self._marks = np.ones(self.points, bool)
        self.count += int(np.sum(self._marks[index - self.base]))
        self._marks[index - self.base] = False
        self._errors.append({error: index})

    def skip(self, place: Any, values: Sequence[np.ndarray]) -> None:
        """Notes that the points at a place, a slice or indices, are not computed."""
        if self._marks is None:
            self._marks = np.ones(self.points, bool)
        if self._missing is None:
            self._missing = np.zeros(self.points, bool)
        self._marks[place], self._missing[place] = False, True
        clear(values, place)

    def found(
        self,
        compute: Callable[[int, int], Exception | None],
        index: Callable[[int, int], np.ndarray],
        first: int,
        points: int,
        values: Sequence[np.ndarray],
    ) -> None:
        """Deals with the failure of `points` points from `first` on.

        `compute(first, points)` computes some of them and gives the error or `None`;
        `index(first, last)` are their indices in the space.

        Raises a `SweepError` that names the first point that fails, or a
        `FloatingPointError` under `jax_debug_nans`, unless failing points are isolated.
        """
        lone = search(compute, first, points, only_first=not self.isolated)
        if self.isolated:
            for at, error in lone:
                place = index(at, at + 1)
                self.mark(place, error_text(error))
                clear(values, place - self.base)
            return
        if not lone:
            raise SweepError(
                message(
                    self.function,
                    f"`fn` failed among {points} points, and for none of them when "
                    "they were computed again.",
                    "Look for what differs from one run to the next.",
                )
            )
        at, error = lone[0]
        i = self.number(int(index(at, at + 1)[0]))
        if isinstance(error, FloatingPointError):
            raise FloatingPointError(
                message(
                    self.function,
                    f"the output at point {i} is {error}, and JAX is set to refuse "
                    "that (`jax_debug_nans` or `jax_debug_infs`).",
                    f"Call `fn(space.point({i}))`, which stops where it arises.",
                )
            )
        raise SweepError(
            message(
                self.function,
                f"`fn` failed at point {i}: {reason(error)}.",
                f"Call `fn(space.point({i}))` to see it, or keep the other points by "
                f'`{self.function}(..., on_error="mark")`.',
            ),
            [i],
        ) from error


def search(
    compute: Callable[[int, int], Exception | None],
    first: int,
    points: int,
    only_first: bool,
) -> list[tuple[int, Exception]]:
    """The points that fail by themselves, of `points` that failed together."""
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


def some_output(output: Callable[[], PyTree]) -> PyTree:
    """An output, of no meaning, of a function of which no output could be computed."""
    structs = jax.eval_shape(output)
    return jtu.tree_map(lambda leaf: jnp.empty(leaf.shape, leaf.dtype), structs)


def nothing_like(leaf: Any) -> Any:
    """What stands where there is no result: NaN, or 0 where there is none."""
    if is_key_array(leaf):
        data = jr.key_data(leaf)
        return jr.wrap_key_data(jnp.zeros_like(data), impl=jr.key_impl(leaf))
    return jnp.full_like(leaf, _nothing(leaf.dtype))


def clear(values: Sequence[np.ndarray], place: Any) -> None:
    """Puts there what stands where there is no result."""
    for leaf in values:
        leaf[place] = _nothing(leaf.dtype)


def _nothing(dtype: Any) -> Any:
    return np.nan if jnp.issubdtype(dtype, np.inexact) else 0


def error_text(error: BaseException) -> str:
    """The kind of an error and what it says, in a line."""
    said = reason(error)
    # Of what a callback raised JAX says the kind itself.
    text = said if _RAISED.match(said) else f"{type(error).__name__}: {said}"
    return text.lstrip("_")


def reason(error: BaseException | None) -> str:
    """The line of JAX's long message that says what was raised."""
    lines = str(error).splitlines() or [type(error).__name__]
    raised = [line for line in lines if _RAISED.match(line)]
    return (raised[-1] if raised else lines[0]).rstrip(".")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """JAX logs a traceback for every callback that raises; here they are expected."""
    logger, others = logging.getLogger(_CALLBACKS), _Others()
    logger.addFilter(others)
    try:
        yield
    finally:
        logger.removeFilter(others)


class _Others(logging.Filter):
    """Drops what JAX logs of a callback that raised. Each sweep has its own."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "callback failed" not in record.getMessage()


# JAX looks at the outputs of a program that was compiled ahead of time at its first
# call only, so a sweep looks itself.


def check_finite(outputs: Sequence[Any], infs: bool = True) -> None:
    """Raises a `FloatingPointError` under `jax_debug_nans`, `jax_debug_infs`.

    `outputs` are arrays on devices, each of which is looked at by itself; `infs` says
    that an inf is not what some of them begin with.
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
    """The error about NaN or inf; raises what is none."""
    if isinstance(error, FloatingPointError):
        return error
    # What JAX raises by itself, and `jit` would translate.
    if type(error).__name__ == "InternalFloatingPointError":
        return FloatingPointError(error.args[-1] if error.args else "nan")
    raise error
