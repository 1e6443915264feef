"""The laws that a sweep is what it is defined as."""

import dataclasses
import functools as ft
from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import Mesh

from ..._spaces import Space, as_space
from ..._sweep.run import sweep
from ..._sweep.tracing.call import call, check_fn, check_sweep_key
from ..._tree import as_arrays
from ..._types import Key, PyTree
from .compare import Bound, Tolerance, agree, tolerance_of
from .law import check_laws, law, must_work
from .trial import stack

_FUNCTION = "testing.check_sweep"


@dataclasses.dataclass(frozen=True)
class _Trial:
    """A function with a space, and the plain loop over its points."""

    fn: Callable[..., PyTree]
    space: Space
    key: Key | None
    tolerance: Tolerance

    def at(self, i: int) -> PyTree:
        key = self.space.point_key(i, key=self.key)
        return as_arrays(call(_FUNCTION, self.fn, self.space.point(i), key))

    @ft.cached_property
    def plain(self) -> list[PyTree]:
        return [self.at(i) for i in range(self.space.size)]

    @law("pure", "`fn` depends on the point and the key alone.")
    def pure_law(self) -> None:
        agree(self.at(0), self.plain[0], ("the second time", "the first time"))

    @law("values", "it gives `fn` at one point after the other, however it runs.")
    def values_law(self) -> None:
        wanted, n = stack(self.plain), self.space.size
        alone = Mesh(np.array(jax.local_devices()[:1]), ("points",))
        sizes = sorted({1, min(3, n), n})
        for size, mesh in [*((size, alone) for size in sizes), (n, None)]:
            devices = "all devices" if mesh is None else "one device"
            how = f"swept in batches of {size} on {devices}"
            options = {"key": self.key, "batch_size": size, "mesh": mesh}
            with must_work(f"`fn` {how}"):
                result = sweep(self.fn, self.space, **options, progress=False)
            got = as_arrays(result.values)
            agree(got, wanted, (how, "in the loop"), self.tolerance)


def check_sweep(
    fn: Callable[..., PyTree],
    space: PyTree,
    *,
    key: Key | None = None,
    rtol: Bound = None,
    atol: Bound = None,
) -> None:
    """Checks that sweeping a function gives what a loop over the points gives.

    Batch sizes of one, of some and of all points, one device and all devices are
    compared with the plain loop. A function whose lanes look at each other, or that is
    not pure, breaks this.

    **Arguments:**

    - `fn`: a function of a point, or of a point and `key=`.
    - `space`: a `Space`, or a bare pytree with axes; a few points suffice.
    - `key`: as in `sweep`. (Keyword only.)
    - `rtol`, `atol`: as in `check_stage`. (Keyword only.)

    **Raises:** `AssertionError` if the law is broken.

    !!! example

        >>> import eqx_pipe as ep, eqx_pipe.testing as ept
        >>> ept.check_sweep(lambda p: p["a"] ** 2, {"a": ep.Linspace(0, 1, 3)})
    """
    __tracebackhide__ = True
    tolerance = tolerance_of(_FUNCTION, rtol, atol)
    space = as_space(_FUNCTION, space)
    check_fn(_FUNCTION, fn)
    check_sweep_key(_FUNCTION, key)

    trial = _Trial(fn, space, key, tolerance)
    len(trial.plain)  # What `fn` itself raises is raised as it is.
    check_laws("check_sweep", "a sweep", trial)
