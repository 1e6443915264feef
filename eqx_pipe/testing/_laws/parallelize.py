"""The law that `parallelize` changes where numbers live and nothing else."""

import dataclasses
import functools as ft
from collections.abc import Callable

import jax
from jax.sharding import Mesh

from ..._check import check_callable
from ..._sharding.parallelize import parallelize
from ..._sharding.rules import RulesLike
from ..._tree import as_arrays
from ..._types import PyTree
from .compare import Bound, Finding, Tolerance, compare, tolerance_of
from .law import Law, check_laws


@dataclasses.dataclass(frozen=True)
class _Trial:
    """A function made parallel, its arguments, and what it gives plainly."""

    parallel: Callable[[PyTree, PyTree], PyTree]
    init: Callable[[], PyTree]
    params: PyTree
    batch: PyTree
    plain: PyTree
    tolerance: Tolerance

    @ft.cached_property
    def placed(self) -> PyTree:
        return self.init()

    def find_other_params(self) -> Finding | None:
        labels = ("as placed", "as given")
        return compare(self.placed, self.params, self.tolerance, labels)

    def find_other_values(self) -> Finding | None:
        got = as_arrays(self.parallel(self.placed, self.batch))
        return compare(got, self.plain, self.tolerance, ("in parallel", "plain"))


_LAWS = (
    Law(
        "params",
        "`parallelize` places the parameters as they are.",
        _Trial.find_other_params,
    ),
    Law(
        "values", "`parallelize(fun)` gives what `fun` gives.", _Trial.find_other_values
    ),
)


def check_parallelize(
    fun: Callable[[PyTree, PyTree], PyTree],
    params: PyTree,
    batch: PyTree,
    *,
    mesh: Mesh | None = None,
    rules: RulesLike | None = None,
    rtol: Bound = None,
    atol: Bound = None,
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
    trial = _Trial(parallel, init, params, batch, plain, tolerance)
    kind = f"a parallel function on {mesh.size} devices"
    check_laws("check_parallelize", kind, _LAWS, trial)
