"""A call of a sweep: its arguments after all checks that need no trace."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Unpack

import jax
from jax.sharding import Mesh

from .._errors import nearest, type_error, value_error
from .._reduce import ReduceLike, ReducerTree, as_reducers
from .._spaces import Space, SpaceLike, as_space, by_cell, cells_of
from .._types import Device, Key, PyTree
from .._vmap import local_devices
from .call import key_parameter
from .options import (
    CHECKS,
    Costs,
    Executor,
    Resume,
    SweeperOptions,
    SweepOptions,
    check_fn,
)
from .results.output_coords import KnownCoords
from .store import check_zarr


@dataclasses.dataclass(frozen=True)
class Request:
    """A call of `sweep` after all checks that need no trace.

    `function` is the public function that was called, for messages. `devices` are the
    devices of this process to use; `reduce` is the user's argument and `reducers` the
    same as one reducer. The other fields are the options.

    If some dims are reduced, `space` has the other dims, with a point for each cell,
    and `inner` is the space of all points, cell by cell.

    `search` are the settings of the search that a round belongs to, as texts: its store
    records them, and does not grow.
    """

    function: str
    fn: Callable[..., PyTree]
    space: Space
    devices: tuple[Device, ...]
    key: Key | None = None
    batch_size: int | Literal["auto", "tune"] = "auto"
    mesh: Mesh | None = None
    reduce: ReduceLike | None = None
    on_error: Literal["raise", "mark"] = "raise"
    order_by: Costs | None = None
    store: Path | None = None
    shard: tuple[int, int] | None = None
    executor: Executor | None = None
    resume: Resume | None = None
    progress: bool | None = None
    count_steps: bool = False
    output_coords: KnownCoords = dataclasses.field(default_factory=dict)
    reducers: ReducerTree | None = None
    inner: Space | None = None
    search: Mapping[str, str] | None = None

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
        return jax.config.jax_disable_jit  # pyright: ignore[reportAttributeAccessIssue]


_NEVER_NONE = ("batch_size", "on_error", "count_steps")


def request_of(
    function: str,
    fn: Callable[..., PyTree],
    space: SpaceLike,
    **options: Unpack[SweepOptions],
) -> Request:
    """Return a call of the public `function` after all checks that need no trace."""
    check_fn(function, fn)
    space = as_space(function, space)
    if space.size >= 2**63:
        wrong, cure = f"the space has {space.size} points.", "Sweep over a slice of it."
        raise value_error(function, wrong, cure)
    own = SweeperOptions if function == "sweeper" else SweepOptions
    for name in options.keys() - own.__optional_keys__:
        wrong = f"it takes no argument {name!r}."
        raise type_error(function, wrong, nearest(name, sorted(own.__optional_keys__)))
    given: dict[str, Any] = {
        name: CHECKS[name](function, value) if name in CHECKS else value
        for name, value in options.items()
        if value is not None or name in _NEVER_NONE
    }
    request = Request(
        function,
        fn,
        space,
        local_devices(function, given.get("mesh")),
        reducers=as_reducers(function, given["reduce"]) if "reduce" in given else None,
        **given,
    )
    check_together(request)
    if request.store is not None:
        check_zarr(function)
    return request.at(space, request.key)


_BY_HAND = "That is the plain loop, for debugging: leave it out."
_COUNTED = (
    "Steps are counted where values are kept in memory: count them on a part of the "
    "space, `ep.sweep(fn, space[:1000], count_steps=True)`."
)

_REQUIRE_STORE = {
    "shard": "Give all processes the same path, `store='runs.zarr'`: they fill it "
    "together. For a share alone sweep over a slice of the space.",
    "resume": "Give the path of the store.",
}
"""The options that require a store, each with a fix."""

_NOT = " does not support "

_APART = {
    f"`store`{_NOT}`reduce` for an empty space": "Leave `store` out: there is no state "
    "to keep.",
    f"`resume='failed'`{_NOT}`reduce`": "A block of points is reduced as a whole: give "
    "another path for a fixed function, or keep the values and reduce them afterwards.",
    f"`batch_size='tune'`{_NOT}`executor`": "Tune on a worker of that kind, "
    "`ep.sweep(fn, space[:n], batch_size='tune').batch_size`, and give that number.",
    f"`executor`{_NOT}`mesh`": "Leave `mesh` out: each worker uses all of its own "
    "devices.",
    f"`count_steps`{_NOT}`store`": _COUNTED,
    f"`count_steps`{_NOT}`reduce`": _COUNTED,
    f"`count_steps`{_NOT}`executor`": _COUNTED,
    f"`count_steps`{_NOT}`jax.disable_jit()`": _BY_HAND,
    f"`store`{_NOT}`jax.disable_jit()`": _BY_HAND,
    f"`reduce`{_NOT}`jax.disable_jit()`": _BY_HAND,
    f"`executor`{_NOT}`jax.disable_jit()`": _BY_HAND,
}
"""The pairs of options that exclude each other, each with a fix."""


def check_together(request: Request) -> None:
    """Raise a `ValueError` for options that exclude each other."""
    reducers = request.reducers
    names = ("store", "executor", "mesh", "count_steps")
    used = {
        **{f"`{name}`": getattr(request, name) for name in names},
        "`reduce`": reducers,
        "`reduce` for an empty space": reducers and request.space.size == 0,
        "`resume='failed'`": request.resume == "failed",
        "`batch_size='tune'`": request.batch_size == "tune",
        "`jax.disable_jit()`": request.by_hand,
    }
    for name, cure in _REQUIRE_STORE.items():
        if getattr(request, name) and not request.store:
            raise value_error(request.function, f"`{name}` requires `store`.", cure)
    for wrong, cure in _APART.items():
        if all(used[name] for name in wrong.split(_NOT)):
            raise value_error(request.function, f"{wrong}.", cure)
