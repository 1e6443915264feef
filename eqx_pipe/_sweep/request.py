"""A call of a sweep: its options, and the checks of each and of all together.

`sweep` lists its options in its signature; `plan`, `sweeper` and searches take them
through the `TypedDict`s here. A new option needs a line in the signature of `sweep`, a
line in a `TypedDict`, a field of `Request` with its default, and perhaps a check.
"""

import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import (
    Any,
    Literal,
    Protocol,
    SupportsFloat,
    SupportsIndex,
    TypeAlias,
    TypedDict,
    Unpack,
    runtime_checkable,
)

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, ArrayLike

from .._check import check_bool, check_choice, check_int, check_is
from .._errors import describe_value, nearest, type_error, value_error
from .._keys import check_mapped_key
from .._reduce import ReduceLike, ReducerTree, as_reducers
from .._results import NamedDims, OutputCoords, as_output_coords
from .._run import key_parameter
from .._spaces import Space, SpaceLike, as_space, by_cell, cells_of
from .._store import Files, StoreLike, as_files, check_zarr
from .._types import Device, Key, PyTree
from .._vmap import local_devices
from .shard_env import shard_of_environment

BatchSize: TypeAlias = SupportsIndex | Literal["auto"]
"""The number of points vectorised at once, or the way in which it is chosen."""

Costs: TypeAlias = (
    Callable[[PyTree], ArrayLike] | Sequence[ArrayLike] | Array | np.ndarray
)
"""The cost of each point, as a function of the point or as an array."""

Resume: TypeAlias = Literal["force", "failed"]
"""The values of `resume=` for a store that another function filled."""

Shard: TypeAlias = Sequence[SupportsIndex] | Literal["auto"]
"""`(index, count)`: the share `index` of `count` shares, or that of the launcher."""


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
    store: StoreLike | None
    shard: Shard | None
    executor: Executor | None
    timeout: float | None
    resume: Resume | None
    progress: bool | None
    count_steps: bool
    output_coords: OutputCoords | None


FN_FIRST = "The first argument is the function of a point, the second the space."


def _as_batch_size(function: str, size: Any) -> int | str:
    """Return the batch size as an integer, or `"auto"`."""
    if not isinstance(size, str):
        check_int(function, "batch_size", size, 1)
        return operator.index(size)
    if size != "auto":
        wrong = f"`batch_size` is {describe_value(size)}."
        raise value_error(function, wrong, "Give `auto`, or a positive integer.")
    return size


def _as_shard(function: str, shard: Any) -> tuple[int, int]:
    if isinstance(shard, str) and shard == "auto":
        return shard_of_environment(function)
    pair: Any = shard
    cure = "Give two integers, `(index, count)`, with 0 <= index < count, or 'auto'."
    try:
        index, count = map(operator.index, pair)
    except (TypeError, ValueError):
        wrong = f"`shard` is {describe_value(shard)}."
        raise type_error(function, wrong, cure) from None
    if bool in map(type, pair):
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


def _as_seconds(function: str, timeout: Any) -> float:
    real = isinstance(timeout, SupportsFloat) and not isinstance(timeout, bool | str)
    if not (real and float(timeout) > 0):
        wrong = f"`timeout` is {describe_value(timeout)}."
        raise value_error(function, wrong, "Give a positive number of seconds.")
    return float(timeout)


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "key": check_mapped_key,
    "batch_size": _as_batch_size,
    "store": as_files,
    "shard": _as_shard,
    "executor": _check_executor,
    "timeout": _as_seconds,
    "output_coords": as_output_coords,
}
"""The checks of options, which return the value for `Request`.

Other options are checked together, or after tracing.
"""

_CHOICES = {"on_error": ("raise", "mark"), "resume": ("force", "failed")}
_NEVER_NONE = ("batch_size", "on_error", "count_steps")


def _checked(function: str, name: str, value: Any) -> Any:
    """Return the value of an option; raise if it is not valid by itself."""
    if name in _CHOICES:
        check_choice(function, name, value, _CHOICES[name])
    if name in ("progress", "count_steps"):
        check_bool(function, name, value)
        return bool(value)
    return _CHECKS[name](function, value) if name in _CHECKS else value


@dataclasses.dataclass(frozen=True)
class Request:
    """A call of `sweep` after all checks that need no trace.

    `function` is the public function that was called, for messages. `devices` are the
    devices of this process to use; `reduce` is the user's argument and `reducers` the
    same as one reducer. The other fields are the options.

    If some dims are reduced, `space` has the other dims, with a point for each cell,
    and `inner` is the space of all points, cell by cell.

    `search` are the settings of the search that a round belongs to, as texts: its store
    records them, and does not grow. `goal` has what a search or a training is for, such
    as `by` and `mode`: numbers and texts for the attributes of its results and stores.
    """

    function: str
    fn: Callable[..., PyTree]
    space: Space
    devices: tuple[Device, ...]
    key: Key | None = None
    batch_size: int | Literal["auto"] = "auto"
    mesh: Mesh | None = None
    reduce: ReduceLike | None = None
    on_error: Literal["raise", "mark"] = "raise"
    order_by: Costs | None = None
    store: Files | None = None
    shard: tuple[int, int] | None = None
    executor: Executor | None = None
    timeout: float | None = None
    resume: Resume | None = None
    progress: bool | None = None
    count_steps: bool = False
    output_coords: NamedDims = dataclasses.field(default_factory=dict)
    reducers: ReducerTree | None = None
    inner: Space | None = None
    search: Mapping[str, str] | None = None
    goal: Mapping[str, int | str] = dataclasses.field(default_factory=dict)

    @property
    def whole(self) -> Space:
        """The space of all points at which the function is computed."""
        return self.space if self.inner is None else self.inner

    def at(self, space: Space, key: Key | None) -> "Request":
        """Return the request for another space of all points and another key."""
        if key is not None and key_parameter(self.fn) is None:
            key = None  # the values do not depend on it
        over = None if self.reducers is None else self.reducers.over
        if over is None:
            return dataclasses.replace(self, space=space, key=key)
        cells = cells_of(self.function, space, over)
        inner = by_cell(space, over)
        return dataclasses.replace(self, space=cells, key=key, inner=inner)

    @property
    def isolated(self) -> bool:
        """True if failed points are marked and do not end the sweep."""
        return self.on_error == "mark"

    @property
    def by_hand(self) -> bool:
        """True if JAX must not compile, so that the sweep is a plain loop."""
        off = jax.config.jax_disable_jit  # pyright: ignore[reportAttributeAccessIssue]
        return off and self.space.size > 0


def request_of(
    function: str,
    fn: Callable[..., PyTree],
    space: SpaceLike,
    **options: Unpack[SweepOptions],
) -> Request:
    """Return a call of the public `function` after all checks that need no trace."""
    check_is(function, "fn", fn, Callable, FN_FIRST)
    space = as_space(function, space)
    if space.size >= 2**63:
        wrong, cure = f"the space has {space.size} points.", "Sweep over a slice of it."
        raise value_error(function, wrong, cure)
    kind = SweeperOptions if function == "sweeper" else SweepOptions
    names = sorted(kind.__optional_keys__)
    for name in options.keys() - names:
        wrong = f"it takes no argument {name!r}."
        raise type_error(function, wrong, nearest(name, names))
    checked: dict[str, Any] = {
        name: _checked(function, name, value)
        for name, value in options.items()
        if value is not None or name in _NEVER_NONE
    }
    reduce = checked.get("reduce")
    devices = local_devices(function, options.get("mesh"))
    reducers = None if reduce is None else as_reducers(function, reduce)
    request = Request(function, fn, space, devices, reducers=reducers, **checked)
    check_together(request)
    if request.store is not None:
        check_zarr(function)
    return request.at(space, request.key)


_COUNTED = (
    "Steps are counted where values are kept in memory: count them on a part of the "
    "space, `ep.sweep(fn, space[:1000], count_steps=True)`."
)

_REQUIRED = (
    (
        "shard",
        "store",
        "Give all processes the same path, `store='runs.zarr'`: they fill it "
        "together. For a share alone sweep over a slice of the space.",
    ),
    ("resume", "store", "Give the path of the store."),
    ("timeout", "executor", "Leave `timeout` out."),
)
"""Options, those that each requires, and a fix."""

_EXCLUSIVE = (
    (
        "`store`",
        ("`reduce` for an empty space",),
        "Leave `store` out: there is no state to keep.",
    ),
    (
        "`resume='failed'`",
        ("`reduce`",),
        "A block of points is reduced as a whole: give another path for a fixed "
        "function, or keep the values and reduce them afterwards.",
    ),
    (
        "`mesh`",
        ("`executor`",),
        "Leave `mesh` out: each worker uses all of its own devices.",
    ),
    ("`count_steps`", ("`store`", "`reduce`", "`executor`"), _COUNTED),
    (
        "`jax.disable_jit()`",
        ("`count_steps`", "`store`", "`reduce`", "`executor`", "`on_error='mark'`"),
        "That is the plain loop, for debugging: leave it out.",
    ),
)
"""Options, those that each excludes, and a fix."""


def check_together(request: Request) -> None:
    """Raise a `ValueError` for options that exclude each other."""
    reducers = request.reducers
    names = ("store", "executor", "mesh", "shard", "count_steps")
    used = {
        **{f"`{name}`": getattr(request, name) for name in names},
        "`reduce`": reducers,
        "`reduce` for an empty space": reducers and request.space.size == 0,
        "`resume='failed'`": request.resume == "failed",
        "`on_error='mark'`": request.isolated,
        "`jax.disable_jit()`": request.by_hand,
    }
    for name, other, cure in _REQUIRED:
        if getattr(request, name) and not getattr(request, other):
            raise value_error(request.function, f"`{name}` requires `{other}`.", cure)
    for name, others, cure in _EXCLUSIVE:
        for other in others:
            if used[name] and used[other]:
                wrong = f"{name} does not support {other}."
                raise value_error(request.function, wrong, cure)
