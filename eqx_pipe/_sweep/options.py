"""The options of a sweep: their types, and a check for each.

`sweep` lists its options in its signature; `plan`, `sweeper` and searches take them
through the `TypedDict`s here. A new option needs a line in the signature of `sweep`, a
line in a `TypedDict`, a field of `Request` with its default, and perhaps a check.
"""

import operator
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import (
    Any,
    Literal,
    Protocol,
    SupportsIndex,
    TypeAlias,
    TypedDict,
    runtime_checkable,
)

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, ArrayLike

from .._check import check_bool, check_choice, check_int
from .._errors import describe_value, nearest, type_error, value_error
from .._files import as_path
from .._keys import check_draws, check_key
from .._reduce import ReduceLike
from .._types import Key, PyTree
from .results.output_coords import OutputCoords, as_output_coords

BatchSize: TypeAlias = SupportsIndex | Literal["auto", "tune"]
"""The number of points vectorised at once, or the way in which it is chosen."""

Costs: TypeAlias = (
    Callable[[PyTree], ArrayLike] | Sequence[ArrayLike] | Array | np.ndarray
)
"""The cost of each point, as a function of the point or as an array."""

Resume: TypeAlias = Literal["force", "failed"]
"""The values of `resume=` for a store that another function filled."""

Shard: TypeAlias = Sequence[SupportsIndex]
"""`(index, count)`: the share `index` of `count` shares."""


@runtime_checkable
class Executor(Protocol):
    """An executor, whose `submit` returns an object with `done()` and `result()`."""

    def submit(self, fn: Callable[..., object], /, *args: object) -> object:
        """Submit a call of `fn(*args)`, and return its future."""
        ...


class SweeperOptions(TypedDict, total=False):
    """The options of `sweeper`, a subset of the options of `sweep`."""

    key: Key | None
    batch_size: BatchSize
    mesh: Mesh | None
    reduce: ReduceLike | None
    on_error: Literal["raise", "mark"]


class SweepOptions(SweeperOptions, total=False):
    """The options of `sweep` and `plan`."""

    order_by: Costs | None
    store: str | os.PathLike[str] | None
    shard: Shard | None
    executor: Executor | None
    resume: Resume | None
    progress: bool | None
    count_steps: bool
    output_coords: OutputCoords | None


def check_fn(function: str, fn: object) -> None:
    """Raise a `TypeError` unless `fn` can be called."""
    if not callable(fn):
        raise type_error(
            function,
            f"`fn` is {describe_value(fn)}, which cannot be called.",
            "The first argument is the function of a point, the second the space.",
        )


def fn_name(fn: Any) -> str:
    """Return a readable name of a function, or of its class."""
    while hasattr(fn, "func"):  # a `functools.partial`
        fn = fn.func
    return str(getattr(fn, "__qualname__", None) or type(fn).__name__)


def check_sweep_key(function: str, key: Any) -> Key | None:
    """Raise unless `key` is a key with the same draws alone and under `vmap`."""
    if key is not None:
        check_key(function, key)
        check_draws(function, "`key` is", key)
    return key


def _as_batch_size(function: str, size: Any) -> int | str:
    """Return the batch size as an integer or a word; only sweeps support `"tune"`."""
    words = ("auto", "tune") if function in ("sweep", "plan") else ("auto",)
    if not isinstance(size, str):
        check_int(function, "batch_size", size, 1)
        return operator.index(size)
    if size not in words:
        wrong = f"`batch_size` is {describe_value(size)}."
        raise value_error(
            function, wrong, nearest(size, [*words, "a positive integer"])
        )
    return size


def _one_of(name: str, *choices: str) -> Callable[[str, Any], str]:
    """Return the check of an option with a few values."""

    def check(function: str, value: Any) -> str:
        check_choice(function, name, value, choices)
        return value

    return check


def _bool(name: str) -> Callable[[str, Any], bool]:
    """Return the check of an option that is true or false."""

    def check(function: str, value: Any) -> bool:
        check_bool(function, name, value)
        return bool(value)

    return check


def _as_store(function: str, path: object) -> Path:
    return as_path(function, path, "store")


def _as_shard(function: str, shard: Any) -> tuple[int, int]:
    cure = "Give two integers, `(index, count)`, with 0 <= index < count."
    try:
        index, count = map(operator.index, shard)
    except (TypeError, ValueError):
        wrong = f"`shard` is {describe_value(shard)}."
        raise type_error(function, wrong, cure) from None
    if bool in map(type, shard):
        raise type_error(function, f"`shard` is {shard}.", cure)
    if not 0 <= index < count:
        cure += " The first of four processes is (0, 4), the last (3, 4)."
        raise value_error(function, f"`shard` is ({index}, {count}).", cure)
    return index, count


def _check_executor(function: str, executor: Any) -> Executor:
    """Raise unless `executor` has a method `submit`."""
    if isinstance(executor, type) or not callable(getattr(executor, "submit", None)):
        raise type_error(
            function,
            f"`executor` is {describe_value(executor)}.",
            "Give an object with a method `submit(fn, *args)`: a "
            "`concurrent.futures.ProcessPoolExecutor(mp_context=multiprocessing."
            "get_context('spawn'))`, or Dask's `client.get_executor()`.",
        )
    # The pools of the standard library expose their start method in advance.
    context = getattr(executor, "_mp_context", None)
    method = getattr(context, "get_start_method", None)
    if callable(method) and method() == "fork":
        raise value_error(
            function,
            "`executor` makes its workers by `fork`, and a forked JAX hangs.",
            "Give `ProcessPoolExecutor(mp_context=multiprocessing.get_context("
            "'spawn'))`, under `if __name__ == '__main__':` in a script.",
        )
    return executor


CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "key": check_sweep_key,
    "batch_size": _as_batch_size,
    "on_error": _one_of("on_error", "raise", "mark"),
    "store": _as_store,
    "shard": _as_shard,
    "executor": _check_executor,
    "resume": _one_of("resume", "force", "failed"),
    "progress": _bool("progress"),
    "count_steps": _bool("count_steps"),
    "output_coords": as_output_coords,
}
"""The check of each option, which returns the value for `Request`.

Other options are checked together, or after tracing.
"""
