"""The laws that where numbers live does not change them."""

import dataclasses
import functools as ft
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from equinox.nn import State
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from ..._check import check_callable
from ..._errors import describe_value, type_error
from ..._sharding import RulesLike
from ..._stage import as_module
from ..._tree import as_arrays
from ..._types import Key, PyTree, StageLike
from ...sharding import parallelize
from .compare import Bound, Tolerance, agree, tolerance_of
from .law import check_laws, law, must_work
from .pure import over_batch
from .report import check
from .trial import Trial, evaluate


@law(
    "sharding",
    "an input spread over devices gives what the same input on one device gives.",
)
def sharding_law(
    trial: Trial, mesh: Mesh | None = None, unsharded: StageLike | None = None
) -> None:
    mesh = _all_devices() if mesh is None else mesh
    labels = (f"on {mesh.size} devices", "on one")
    if unsharded is None:
        plain, batch = trial.plain, trial.batch(mesh.size)
    else:
        plain, batch = dataclasses.replace(trial, stage=unsharded).plain, None
    if batch is None or not jtu.tree_leaves(batch[:2]):
        batch = (None, None, None)
    xs, keys, wanted = batch

    x, xs = _divided((trial.x, xs), mesh)
    with must_work(f"a jitted call {labels[0]}"):
        got, got_batch = _run(trial.stage, x, trial.state, trial.key, xs, keys)
    agree(got, plain, labels, trial.tolerance)
    if got_batch is not None:
        labels = (f"in a batch {labels[0]}", labels[1])
        agree(got_batch, wanted, labels, trial.tolerance)


@eqx.filter_jit  # in one program, which compiles faster than two
def _run(stage: Any, x: PyTree, state: Any, key: Any, xs: PyTree, keys: Any) -> Any:
    whole = evaluate(stage, x, state, key)
    if not jtu.tree_leaves((xs, keys)):
        return whole, None
    return whole, over_batch(stage, xs, state, keys)


def _all_devices() -> Mesh:
    devices = jax.local_devices()
    kinds = (jax.sharding.AxisType.Auto,)
    return jax.make_mesh((len(devices),), ("data",), axis_types=kinds, devices=devices)


def _divided(x: PyTree, mesh: Mesh) -> PyTree:
    """Each array over all devices along its first axis that divides, else copied."""

    def place(leaf: Any) -> Any:
        if not eqx.is_array(leaf):
            return leaf
        spec = [None] * leaf.ndim
        for axis, size in enumerate(leaf.shape):
            if size and size % mesh.size == 0:
                spec[axis] = tuple(mesh.axis_names)  # type: ignore
                break
        return jax.device_put(jnp.asarray(leaf), NamedSharding(mesh, P(*spec)))

    return jtu.tree_map(place, x)


@dataclasses.dataclass(frozen=True)
class _Parallel:
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

    @law("params", "`parallelize` places the parameters as they are.")
    def params_law(self) -> None:
        agree(self.placed, self.params, ("as placed", "as given"), self.tolerance)

    @law("values", "`parallelize(fun)` gives what `fun` gives.")
    def values_law(self) -> None:
        got = as_arrays(self.parallel(self.placed, self.batch))
        agree(got, self.plain, ("in parallel", "plain"), self.tolerance)


def check_sharding(
    stage: StageLike,
    x: PyTree,
    state: State | None = None,
    *,
    key: Key | None = None,
    rtol: Bound = None,
    atol: Bound = None,
    mesh: Mesh | None = None,
    unsharded: StageLike | None = None,
) -> None:
    """Checks that a stage gives the same for an input spread over devices.

    Each array of `x` is split along its first axis that divides by the number of
    devices; and a batch is split with an example for each. To have several devices on
    a CPU, set `jax.config.update("jax_num_cpu_devices", 8)` before JAX is first used.

    **Arguments:** those of `check_stage`, and

    - `mesh`: a `jax.sharding.Mesh`; by default one over all local devices. (Keyword
        only.)
    - `unsharded`: for a stage made by `eqx_pipe.sharding.shard_map` or another that
        computes in parts: a stage that computes the same on the whole. (Keyword only.)

    **Raises:** `AssertionError` if the law is broken.

    !!! example

        >>> import eqx_pipe.testing as ept, jax.numpy as jnp
        >>> ept.check_sharding(jnp.cumsum, jnp.ones(8))
    """
    __tracebackhide__ = True
    function = "testing.check_sharding"
    if mesh is not None and not isinstance(mesh, Mesh):
        raise type_error(
            function,
            f"`mesh` is {describe_value(mesh)}.",
            "Give a `jax.sharding.Mesh`, such as `jax.make_mesh((8,), ('data',))`.",
        )
    if unsharded is not None:
        check_callable(function, "unsharded", unsharded)
        unsharded = as_module(unsharded)
    options = {"mesh": mesh, "unsharded": unsharded}
    check(sharding_law, stage, x, state, key, rtol, atol, **options)


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
        ...     return jnp.mean((ep.sharding.constrain(x, "rows", None) @ w) ** 2)
        >>> rules = ep.sharding.AxisRules({"rows": "data"})
        >>> ept.check_parallelize(loss, jnp.ones(3), jnp.ones((8, 3)), rules=rules)
    """
    __tracebackhide__ = True
    function = "testing.check_parallelize"
    tolerance = tolerance_of(function, rtol, atol)
    check_callable(function, "fun", fun)
    if mesh is None:
        mesh = _all_devices()
    plain = as_arrays(fun(params, batch))
    parallel, init = parallelize(
        fun, init_params=lambda: params, initial_batch=batch, mesh=mesh, rules=rules
    )
    trial = _Parallel(parallel, init, params, batch, plain, tolerance)
    kind = f"a parallel function on {mesh.size} devices"
    check_laws("check_parallelize", kind, trial)
