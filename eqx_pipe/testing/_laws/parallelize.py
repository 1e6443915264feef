"""The law that `parallelize` changes where numbers live and nothing else."""

from typing import Any

import jax
import jax.tree_util as jtu

from ..._check import check_callable
from ..._sharding.parallelize import parallelize
from ..._tree import as_arrays
from .compare import Finding, compare, raised, tolerance_of
from .report import broken

_RULE = "`parallelize(fun)` gives what `fun` gives."


def check_parallelize(
    fun: Any,
    params: Any,
    batch: Any,
    *,
    mesh: Any = None,
    rules: Any = None,
    rtol: Any = None,
    atol: Any = None,
) -> None:
    """Checks that a function made parallel by its annotations computes the same.

    **Arguments:**

    - `fun`: a function `fun(params, batch)`, with or without `constrain` in it.
    - `params`, `batch`: its arguments.
    - `mesh`, `rules`: as in `parallelize`. By default a mesh over all local devices,
      with one axis, `data`. (Keyword only.)
    - `rtol`, `atol`: as in `check_stage`. (Keyword only.)

    **Raises:** `AssertionError` if the law is broken.

    !!! example

        >>> import eqx_pipe as ep, eqx_pipe.testing as ept, jax, jax.numpy as jnp
        >>> def loss(w, x):
        ...     return jnp.mean((ep.constrain(x, "rows", None) @ w) ** 2)
        >>> rules = ep.AxisRules({"rows": "data"})
        >>> ept.check_parallelize(loss, jnp.ones(3), jnp.ones((8, 3)), rules=rules)
    """
    __tracebackhide__ = True
    function = "testing.check_parallelize"
    tolerance = tolerance_of(function, rtol, atol)
    check_callable(function, "fun", fun)
    if mesh is None:
        mesh = jax.make_mesh(
            (len(jax.local_devices()),),
            ("data",),
            axis_types=(jax.sharding.AxisType.Auto,),
            devices=jax.local_devices(),
        )
    plain = as_arrays(fun(params, batch))
    parallel, init = parallelize(
        fun, init_params=lambda: params, initial_batch=batch, mesh=mesh, rules=rules
    )
    finding: Finding | None = None
    try:
        placed = init()
        got = as_arrays(parallel(placed, batch))
    except Exception as error:
        finding = raised(error, f"the parallel function on {mesh.size} devices")
    else:
        ways = ("in parallel", "plain")
        finding = compare(got, plain, tolerance, ways)
        if finding is None:
            same = jtu.tree_map(lambda v: v, placed)
            finding = compare(same, params, tolerance, ("as placed", "as given"))
    if finding:
        raise broken("check_parallelize", _RULE, "", finding)
