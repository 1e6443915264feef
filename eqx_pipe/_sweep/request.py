"""A call of `sweep`, with every argument checked: what is wanted, not how."""

import dataclasses
import operator
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, Protocol, SupportsIndex, TypeAlias, runtime_checkable

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, ArrayLike

from .._check import check_choice, check_int
from .._errors import describe_value, nearest, type_error, value_error
from .._files import as_path
from .._keys import check_key
from .._reduce import ReduceLike, ReducerTree, as_reducers
from .._spaces import Space, SpaceLike, as_space, by_cell, cells_of
from .._store.store import check_zarr
from .._types import Device, Key, ProgressLike, PyTree
from .._vmap import local_devices
from .results.output_coords import KnownCoords, OutputCoords, as_output_coords
from .tracing.call import check_fn, check_sweep_key

BatchSize: TypeAlias = SupportsIndex | Literal["auto", "tune"]
"""How many points are vectorised at once, or a word for how that is chosen."""

Costs: TypeAlias = (
    Callable[[PyTree], ArrayLike] | Sequence[ArrayLike] | Array | np.ndarray
)
"""What a point costs, as a function of it or as a number for each."""

Resume: TypeAlias = Literal["force", "failed"]
"""The values of `resume=` for a store that another function filled."""

Shard: TypeAlias = Sequence[SupportsIndex]
"""`(index, count)`: which of how many shares."""


@runtime_checkable
class Executor(Protocol):
    """What computes elsewhere; what it gives has a method `result()`."""

    def submit(self, fn: Callable[..., object], /, *args: object) -> object:
        """Has `fn(*args)` called, and gives what will have its result."""
        ...


@dataclasses.dataclass(frozen=True)
class Request:
    """What a sweep was asked for; every argument of `sweep` has been checked.

    `devices` are those of this process that may be used; `reduce` is what the user gave
    and `reducers` what it stands for. A `shard` is that of the user, or `None`.
    `function` is the public function that was called, for messages.

    Where some dims are reduced, `space` has the others, a point for each cell, and
    `inner` is the space of all points, cell by cell.
    """

    fn: Callable[..., PyTree]
    space: Space
    key: Key | None
    batch_size: int | Literal["auto", "tune"]
    mesh: Mesh | None
    devices: tuple[Device, ...]
    order_by: Costs | None
    reduce: ReduceLike | None
    reducers: ReducerTree | None
    store: Path | None
    shard: tuple[int, int] | None
    executor: Executor | None
    trusting: bool
    repairing: bool
    isolated: bool
    progress: ProgressLike
    counting: bool
    function: str
    output_coords: KnownCoords
    inner: Space | None = None

    @property
    def whole(self) -> Space:
        """The space of all points at which the function is computed."""
        return self.space if self.inner is None else self.inner

    def at(self, space: Space, key: Key | None) -> "Request":
        """The same of another space of all points, and with another key."""
        over = None if self.reducers is None else self.reducers.over
        if over is None:
            return dataclasses.replace(self, space=space, key=key)
        cells = cells_of(self.function, space, over)
        inner = by_cell(space, over)
        return dataclasses.replace(self, space=cells, key=key, inner=inner)

    @property
    def by_hand(self) -> bool:
        """Whether it is the plain loop, since JAX is told not to compile."""
        return jax.config.jax_disable_jit  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def processes(self) -> int:
        """How many processes fill the store together."""
        return 1 if self.shard is None else self.shard[1]


def checked(
    fn: Callable[..., PyTree],
    space: SpaceLike,
    *,
    key: Key | None,
    batch_size: BatchSize,
    mesh: Mesh | None,
    order_by: Costs | None = None,
    reduce: ReduceLike | None = None,
    store: object = None,
    shard: Shard | None = None,
    executor: Executor | None = None,
    resume: Resume | None = None,
    on_error: Literal["raise", "mark"],
    progress: ProgressLike,
    count_steps: bool = False,
    output_coords: OutputCoords | None = None,
    function: str = "sweep",
) -> Request:
    """The arguments of `sweep` after all checks that need no tracing."""
    check_fn(function, fn)
    space = as_space(function, space)
    _check_size(function, space.size)
    check_key(function, key)
    check_sweep_key(function, key)
    words = ("auto", "tune") if function in ("sweep", "plan") else ("auto",)
    check_batch_size(function, batch_size, words)
    check_choice(function, "on_error", on_error, ("raise", "mark"))
    if resume is not None:
        check_choice(function, "resume", resume, ("force", "failed"))
    check_progress(function, progress)
    if not isinstance(count_steps, bool):
        raise type_error(
            function,
            f"`count_steps` is {describe_value(count_steps)}.",
            "Give True or False.",
        )
    request = Request(
        fn=fn,
        space=space,
        key=key,
        batch_size=_as_batch_size(batch_size),
        mesh=mesh,
        devices=local_devices(function, mesh),
        order_by=order_by,
        reduce=reduce,
        reducers=None if reduce is None else as_reducers(function, reduce),
        store=None if store is None else as_path("sweep", store, "store"),
        shard=None if shard is None else _as_shard(shard),
        executor=executor,
        trusting=resume is not None,
        repairing=resume == "failed",
        isolated=on_error == "mark",
        progress=progress,
        counting=count_steps,
        function=function,
        output_coords=as_output_coords(output_coords),
    )
    if executor is not None:
        _check_executor(executor)
    _check_together(request)
    request = request.at(space, key)
    if request.store is not None:
        check_zarr("sweep")
    return request


def check_batch_size(
    function: str, batch_size: BatchSize | None, words: Sequence[str]
) -> None:
    """Raises unless `batch_size` is a positive integer, or one of some words.

    Where there are none it may be `None`.
    """
    if batch_size is None and not words:
        return
    if isinstance(batch_size, str):
        if batch_size in words:
            return
        raise value_error(
            function,
            f"`batch_size` is {describe_value(batch_size)}.",
            nearest(batch_size, [*(words or ["None"]), "a positive integer"]),
        )
    check_int(function, "batch_size", batch_size, 1)


def _as_batch_size(batch_size: BatchSize) -> int | Literal["auto", "tune"]:
    if isinstance(batch_size, str):
        return batch_size
    return operator.index(batch_size)


def _check_size(function: str, size: int) -> None:
    if size >= 2**63:
        raise value_error(
            function,
            f"the space has {size} points.",
            "Sweep over a slice of it: `space[a:b]`.",
        )


def check_progress(function: str, progress: object) -> None:
    """Raises unless it says whether there is a bar, or names an output."""
    pair = progress if isinstance(progress, tuple) else (progress, "min")
    names = len(pair) == 2 and isinstance(pair[0], str) and pair[1] in ("min", "max")
    if progress is not None and not isinstance(progress, bool) and not names:
        raise type_error(
            function,
            f"`progress` is {describe_value(progress)}.",
            "Give True, False, or None for a bar where somebody can see it; or the "
            'path of an output, `"loss"` or `("score", "max")`, for the best so far.',
        )


def _check_together(request: Request) -> None:
    """Raises a `ValueError` for arguments that do not go together."""
    trusting, executor = request.trusting, request.executor
    if request.shard is not None and request.store is None:
        _refuse(
            "`shard` is given without `store`.",
            "Give all processes the same path, `store='runs.zarr'`: they fill it "
            "together. For a share alone sweep over a slice of the space.",
        )
    stores = request.store is not None and request.reduce is not None
    if stores and request.space.size == 0:
        _refuse(
            "`store` and `reduce` are given for a space that is empty.",
            "Leave `store` out: there is no state that could be kept.",
        )
    if request.reducers is not None and isinstance(request.progress, str | tuple):
        _refuse(
            "`progress` names an output, and `reduce` keeps none.",
            "Pass `progress=True`; `reduce=ep.reduce.ArgMin()` returns the best point.",
        )
    over = None if request.reducers is None else request.reducers.over
    if request.output_coords and request.reduce is not None and over is None:
        _refuse(
            "`output_coords` is given, and `reduce` keeps no values at points.",
            'Leave it out, or name the reduced dims: `ep.reduce.Mean(over="seed")`.',
        )
    if trusting and request.store is None:
        _refuse("`resume` is given without `store`.", "Give the path of the store.")
    if request.repairing and request.reduce is not None:
        _refuse(
            "`resume` is 'failed' together with `reduce`.",
            "A block of points is reduced as a whole: give another path for a mended "
            "function, or keep the values and reduce them afterwards.",
        )
    if executor is not None and request.batch_size == "tune":
        _refuse(
            "`batch_size` is 'tune' together with `executor`.",
            "Tune on a worker of that kind, `ep.sweep(fn, space[:n], "
            "batch_size='tune').batch_size`, and give the number here.",
        )
    if executor is not None and request.mesh is not None:
        _refuse(
            "`mesh` together with `executor`.",
            "Leave `mesh` out: each worker uses all of its own devices.",
        )
    elsewhere = {"store": request.store, "reduce": request.reduce, "executor": executor}
    for name, other in elsewhere.items():
        if request.counting and other is not None:
            _refuse(
                f"`count_steps` together with `{name}`.",
                "Steps are counted where values are kept in memory: count them on a "
                "part of the space, `ep.sweep(fn, space[:1000], count_steps=True)`.",
            )
    compiled = {"store": request.store, "executor": executor}
    compiled["count_steps"] = request.counting or None
    for name, other in compiled.items():
        if request.by_hand and other is not None:
            _refuse(
                f"`{name}` under `jax.disable_jit()`, which is the plain loop.",
                f"Leave `{name}` out to debug.",
            )


def _check_executor(executor: object) -> None:
    """Raises unless work can be submitted to `executor`."""
    if isinstance(executor, type) or not callable(getattr(executor, "submit", None)):
        raise type_error(
            "sweep",
            f"`executor` is {describe_value(executor)}.",
            "Give something with a method `submit(fn, *args)`: a "
            "`concurrent.futures.ProcessPoolExecutor(mp_context=multiprocessing."
            "get_context('spawn'))`, or Dask's `client.get_executor()`.",
        )
    # The pools of the standard library say so before anything is submitted.
    context = getattr(executor, "_mp_context", None)
    method = getattr(context, "get_start_method", None)
    if callable(method) and method() == "fork":
        _refuse(
            "`executor` makes its workers by `fork`, and a forked JAX hangs.",
            "Give `ProcessPoolExecutor(mp_context=multiprocessing.get_context("
            "'spawn'))`, under `if __name__ == '__main__':` in a script.",
        )


def _as_shard(shard: Shard) -> tuple[int, int]:
    try:
        index, count = shard
        if isinstance(index, bool) or isinstance(count, bool):
            raise TypeError
        index, count = operator.index(index), operator.index(count)
    except (TypeError, ValueError):
        raise type_error(
            "sweep",
            f"`shard` is {describe_value(shard)}.",
            "Give two integers, `(index, count)`, with 0 <= index < count.",
        ) from None
    if not 0 <= index < count:
        _refuse(
            f"`shard` is ({index}, {count}).",
            "Give `(index, count)` with 0 <= index < count: the first of four "
            "processes is (0, 4), the last (3, 4).",
        )
    return index, count


def _refuse(wrong: str, cure: str) -> None:
    raise value_error("sweep", wrong, cure)
