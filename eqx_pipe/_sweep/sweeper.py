"""`sweeper` traces and compiles a sweep once, to call it with many spaces."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any, Unpack

import jax
import jax.random as jr
import jax.tree_util as jtu

from .._cache import LRUCache
from .._keys import check_mapped_key
from .._results import SweepResult
from .._run import fn_name, key_parameter, no_mesh
from .._spaces import Space, SpaceLike, as_space
from .._store import Files
from .._tree import Same, can_be_traced
from .._types import Key, PyTree
from .._vmap import warn_if_cores_idle
from .plan import Plan, plan_of
from .request import Request, SweeperOptions, request_of
from .sweep import complete, plain_sweep
from .trace.kept import guard_of, schema

# Each schema of a space keeps a trace and its programs.
_FORMS = 32


class Sweeper:
    """A sweep that is traced and compiled once, and called with spaces.

    It is created by `eqx_pipe.sweeper`, which describes it.
    """

    def __init__(self, request: Request):
        self._request = request
        self._plans = LRUCache(_FORMS)
        self._last: tuple[Any, ...] = None, None, None
        if not request.by_hand:
            with no_mesh("sweeper"):
                self._planned(request)

    def __call__(self, space: SpaceLike, *, key: Key | None = None) -> SweepResult:
        """Compute the function at every point of a space.

        **Arguments:**

        - `space`: as in `sweep`. From one call to the next, the values of axes and of
          arrays may change; any other difference is traced and compiled again.
        - `key`: as in `sweep`; by default the `key` of the sweeper. (Keyword only.)

        **Returns:** a `SweepResult`, as `sweep`.

        **Raises:** as `sweep`.
        """
        space = as_space("sweeper", space)
        check_mapped_key("sweeper", key)
        return self.run(space, self._request.key if key is None else key)

    def run(
        self, space: Space, key: Key | None, store: Files | None = None
    ) -> SweepResult:
        """Return the result for a space; a search passes a store for each round."""
        started, request = time.time(), self._request.at(space, key)
        with no_mesh("sweeper"):
            if request.by_hand:
                return plain_sweep(request, started)
            if store is not None:
                request = dataclasses.replace(request, store=store)
            return complete(self._planned(request), started)

    def outputs(self, space: Space, key: Key | None) -> PyTree:
        """Return the shapes and dtypes of the output at one point."""
        return self._planned(self._request.at(space, key)).points.outputs

    def __repr__(self) -> str:
        return f"Sweeper({fn_name(self._request.fn)}, {self._request.whole!r})"

    def _planned(self, request: Request) -> Plan:
        """Return the plan of a request, traced if its schema is new."""
        arrays = jtu.tree_leaves((request.whole, request.key))
        place = schema(arrays, request.whole, request.key)
        guard = guard_of(None, request.whole, arrays)
        if guard is None:
            self._last = None, None, None
            return plan_of(request).at(request)
        traced = self._plans.setdefault(place, [])
        plan = next((plan for was, plan in traced if was == guard), None)
        if plan is None:
            plan = plan_of(request)
            traced[_FORMS - 1 :], traced[:0] = [], [(guard, plan)]
        # The arrays of the last call are on the devices.
        base, was, last = self._last
        if base is plan and was == Same(*arrays):
            return last.with_request(request)
        last = plan.at(request)
        # An array of NumPy may change in place.
        fixed = all(isinstance(x, jax.Array) for x in arrays if can_be_traced(x))
        self._last = (plan, Same(*arrays), last) if fixed else (None, None, None)
        return last


def _needs_key(fn: Callable[..., Any]) -> bool:
    parameter = key_parameter(fn)
    return parameter is not None and parameter.default is parameter.empty


def sweeper(
    fn: Callable[..., PyTree], space: SpaceLike, **options: Unpack[SweeperOptions]
) -> Sweeper:
    """Trace and check a sweep once, to call it with many spaces of the same structure.

    Use it for rounds of a search, optimisation loops and dashboards: `sweep` looks for
    changes of `fn` in each call, and traces some functions again.

    Values that `fn` closes over are read when it is traced, that is, by this call: to
    change a value from one call to the next, put it into the space. An array in the
    space is passed in at each call; a different Python or NumPy number, structure,
    shape, dtype or number of points is traced and compiled at its first use.

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
        >>> run = ep.sweeper(lambda p: (p["x"] - 2) ** 2, {"x": ep.Linspace(0, 1, 5)})
        >>> for end in (2, 3, 4):  # traced and compiled once
        ...     best = run({"x": ep.Linspace(0, end, 5)}).best()
        >>> best.index, best.value
        (2, 0.0)
    """
    request = request_of("sweeper", fn, space, **options)
    request = dataclasses.replace(request, progress=False)
    # A trace needs a key; each call may pass its own.
    if request.key is None and _needs_key(fn):
        request = dataclasses.replace(request, key=jr.key(0))
    warn_if_cores_idle(request.devices, request.mesh)
    return Sweeper(request)
