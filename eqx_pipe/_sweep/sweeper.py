"""`sweeper`: a sweep that is traced once and called with spaces of one structure."""

import copy
import dataclasses
import time
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, TypeVar, Unpack

import equinox as eqx
import jax.random as jr
import jax.tree_util as jtu
import numpy as np

from .._cache import LRUCache
from .._spaces import Space, SpaceLike, Values, as_space, is_axis
from .._tree import as_hashable, can_be_traced, is_key_array
from .._types import Key, PyTree
from .._vmap import warn_if_cores_idle
from .call import key_parameter
from .compute.trace import no_mesh, settings
from .options import SweeperOptions, check_sweep_key, fn_name
from .plain_sweep import plain_sweep
from .plan import Plan, plan_of
from .request import Request, request_of
from .results.result import SweepResult
from .sweep import complete

# Each schema of a space keeps a trace and its programs.
_FORMS = 32
_SHORTEST = 16  # the minimum length to which a table is padded

_Module = TypeVar("_Module", bound=eqx.Module)


class Sweeper:
    """A sweep that is traced and compiled once, and called with spaces.

    It is created by `eqx_pipe.sweeper`, which describes it.
    """

    def __init__(self, request: Request):
        self._request = request
        self._plans = LRUCache(_FORMS)
        if not request.by_hand:
            with no_mesh("sweeper"):
                self._planned(_filled(request), request.key)

    def __call__(self, space: SpaceLike, *, key: Key | None = None) -> SweepResult:
        """Compute the function at every point of a space.

        **Arguments:**

        - `space`: as in `sweep`. From one call to the next, the values of axes and of
          arrays and the length of a table may change; any other difference is traced
          and compiled again.
        - `key`: as in `sweep`; by default the `key` of the sweeper. (Keyword only.)

        **Returns:** a `SweepResult`, as `sweep`.

        **Raises:** as `sweep`.
        """
        space = as_space("sweeper", space)
        check_sweep_key("sweeper", key)
        return self.run(space, self._request.key if key is None else key)

    def run(
        self, space: Space, key: Key | None, store: Path | None = None
    ) -> SweepResult:
        """Return the result for a space; a search passes a store for each round."""
        started = time.time()
        request = self._request.at(space, key)
        with no_mesh("sweeper"):
            if request.by_hand:
                return plain_sweep(request, started)
            filled = _filled(request)
            plan = self._planned(filled, key).at(request, filled)
            if store is not None:
                request = dataclasses.replace(plan.request, store=store)
                plan = dataclasses.replace(plan, request=request)
            return complete(plan, started)

    def outputs(self, space: Space, key: Key | None) -> PyTree:
        """Return the shapes and dtypes of the output at one point."""
        return self._planned(_filled(self._request.at(space, key)), key).points.outputs

    def __repr__(self) -> str:
        return f"Sweeper({fn_name(self._request.fn)}, {self._request.whole!r})"

    def _planned(self, space: Space, key: Key | None) -> Plan:
        """Return the plan for spaces of this schema, traced if it is new."""
        schema = _schema(space, key)
        plan = self._plans.get(schema)
        if plan is None:
            request = self._request.at(space, key)
            plan = plan_of(request)
            self._plans.put(schema, plan)
        return plan


def _filled(request: Request) -> Space:
    """Return a table padded to a power of two, so that few lengths are compiled.

    Padding is never computed. Other spaces are returned unchanged, and also tables of a
    reduction, whose blocks depend on the number of points, or of a store, whose layout
    does.
    """
    space = request.whole
    axes = jtu.tree_leaves(space.tree, is_leaf=is_axis)
    axes = [axis for axis in axes if is_axis(axis)]
    kept = request.store is not None or request.reducers is not None
    if kept or space.geometry.is_part:
        return space
    if any(type(axis) is not Values or is_key_array(axis.values) for axis in axes):
        return space
    if len(axes) > 1 and len(space.geometry.grid_dims) > 1:
        return space
    length = max(_SHORTEST, 1 << (len(axes[0]) - 1).bit_length())
    if length == len(axes[0]):
        return space

    def fill(leaf: Any) -> Any:
        if not isinstance(leaf, Values):
            return leaf
        # On the host, since JAX would compile an operation for each length.
        values = np.asarray(leaf.values)
        rows = np.broadcast_to(values[-1:], (length - len(values), *values.shape[1:]))
        return _with(leaf, "values", np.concatenate([values, rows]))

    tree = jtu.tree_map(fill, space.tree, is_leaf=is_axis)
    return _with(space, "tree", tree)


def _with(module: _Module, name: str, value: Any) -> _Module:
    """Return a module with one field replaced, ten times as fast as `eqx.tree_at`."""
    other = copy.copy(module)
    object.__setattr__(other, name, value)
    return other


def _schema(space: Space, key: Key | None) -> Hashable:
    """Return everything that a trace depends on, without the values of arrays."""
    leaves, structure = jtu.tree_flatten((space, key))
    schemas = tuple(map(_leaf_schema, leaves))
    # The selected points determine which of them share a program.
    rows = None if space.rows is None else np.asarray(space.rows).tobytes()
    return structure, schemas, rows, tuple(settings().values())


def _leaf_schema(leaf: Any) -> Hashable:
    if can_be_traced(leaf):
        return leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False)
    if isinstance(leaf, np.generic):
        return type(leaf), leaf.tobytes()
    return as_hashable(leaf)


def _needs_key(fn: Callable[..., Any]) -> bool:
    parameter = key_parameter(fn)
    return parameter is not None and parameter.default is parameter.empty


def sweeper(
    fn: Callable[..., PyTree],
    space: SpaceLike,
    **options: Unpack[SweeperOptions],
) -> Sweeper:
    """Trace and check a sweep once, to call it with many spaces of the same structure.

    Use it for rounds of a search, optimisation loops and dashboards, where `sweep`
    would trace `fn` in each call.

    Values that `fn` closes over are read when it is traced, that is, by this call: to
    change a value from one call to the next, put it into the space. An array in the
    space is passed in at each call; a different Python or NumPy number, structure,
    shape or dtype is traced and compiled at its first use.

    Tables (spaces with one dim whose axes are all `Values`) are padded to powers of two
    in length, so few lengths are compiled; the padding is never computed.

    **Arguments:**

    - `fn`: as in `sweep`.
    - `space`: one of the spaces, or another space of the same structure.
    - `options`: `batch_size`, `mesh`, `reduce` and `on_error` as in `sweep`; `key` is
      the default key of calls. If `fn` needs a key and there is no default, keys of the
      kind of `jax.random.key(0)` are expected. (Keyword only.)

    **Returns:** a `Sweeper`, which is called as `run(space, key=...)` and returns a
    `SweepResult`.

    **Raises:** as `sweep`; errors of `fn` while it is traced are raised by this call.

    **Laws:** `sweeper(fn, space, **options)(other, key=key)` has the values of
    `sweep(fn, other, key=key, **options)`, to rounding.

    !!! example

        >>> import eqx_pipe as ep
        >>> run = ep.sweeper(lambda p: (p["x"] - 2.0) ** 2, {"x": ep.Values([0.0])})
        >>> for n in (3, 5, 9):  # traced and compiled once
        ...     best = run({"x": ep.Values([k / (n - 1) * 4 for k in range(n)])}).best()
        >>> best.index, best.value
        (4, 0.0)
    """
    request = request_of("sweeper", fn, space, **options)
    request = dataclasses.replace(request, progress=False)
    # A trace needs a key; each call may pass its own.
    if request.key is None and _needs_key(fn):
        request = dataclasses.replace(request, key=jr.key(0))
    warn_if_cores_idle(request.devices, request.mesh)
    return Sweeper(request)
