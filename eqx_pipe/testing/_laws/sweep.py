"""The law that a sweep is what it is defined as."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from ..._spaces.space import as_space
from ..._sweep.run import sweep
from ..._sweep.tracing.call import call, check_fn, check_sweep_key
from ..._tree import as_arrays
from .compare import compare, raised, same_bits, tolerance_of
from .report import broken
from .vmap import stack

_RULE = "a sweep is `fn` at one point after the other, however it runs."


def check_sweep(
    fn: Any, space: Any, *, key: Any = None, rtol: Any = None, atol: Any = None
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
    function = "testing.check_sweep"
    tolerance = tolerance_of(function, rtol, atol)
    space = as_space(function, space)
    check_fn(function, fn)
    check_sweep_key(function, key)

    def one(i: int) -> Any:
        own = space.point_key(i, key=key)
        return as_arrays(call(function, fn, space.point(i), own))

    plain = [one(i) for i in range(space.size)]
    again = same_bits(one(0), plain[0], ("the second time", "the first time"))
    if again:
        raise broken("check_sweep", _RULE, "point 0", again)
    wanted = stack(plain)
    alone = Mesh(np.array(jax.local_devices()[:1]), ("points",))
    sizes = sorted({1, min(3, space.size), space.size})
    for size, mesh in [*((n, alone) for n in sizes), (sizes[-1], None)]:
        devices = "all devices" if mesh is None else "one device"
        where = f"batch size {size}, {devices}"
        try:
            result = sweep(
                fn, space, key=key, batch_size=size, mesh=mesh, progress=False
            )
        except Exception as error:
            found = raised(error, "`sweep`")
        else:
            ways = ("swept", "in the loop")
            found = compare(as_arrays(result.values), wanted, tolerance, ways)
        if found:
            raise broken("check_sweep", _RULE, where, found)
