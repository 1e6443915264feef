"""The law that where numbers live does not change them."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from equinox.nn import State
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from ..._check import check_callable
from ..._errors import describe_value, type_error
from ..._stage import as_module
from ..._types import Key, PyTree, StageLike
from .compare import Bound, Finding, Tolerance, compare, raised
from .law import Law
from .report import check
from .trial import Trial, evaluate
from .vmap import examples, over_batch


def find(
    trial: Trial,
    tolerance: Tolerance,
    mesh: Mesh | None = None,
    unsharded: StageLike | None = None,
) -> Finding | None:
    """What `check_sharding` finds."""
    mesh = _all_devices() if mesh is None else mesh
    labels = (f"on {mesh.size} devices", "on one")
    if unsharded is None:
        plain, batch = trial.plain, examples(trial, mesh.size)
    else:
        plain, batch = dataclasses.replace(trial, stage=unsharded).plain, None
    if batch is None or not jtu.tree_leaves(batch[:2]):
        batch = (None, None, None)
    xs, keys, wanted = batch

    x, xs = _divided((trial.x, xs), mesh)
    try:
        got, got_batch = _run(trial.stage, x, trial.state, trial.key, xs, keys)
    except Exception as error:
        return raised(error, f"a jitted call {labels[0]}")
    found = compare(got, plain, tolerance, labels)
    if found or got_batch is None:
        return found
    return compare(got_batch, wanted, tolerance, (f"in a batch {labels[0]}", labels[1]))


@eqx.filter_jit  # in one program, which compiles faster than two
def _run(stage: Any, x: PyTree, state: Any, key: Any, xs: PyTree, keys: Any) -> Any:
    whole = evaluate(stage, x, state, key)
    if not jtu.tree_leaves((xs, keys)):
        return whole, None
    return whole, over_batch(stage, xs, state, keys)


def _all_devices() -> Mesh:
    return Mesh(np.array(jax.local_devices()), ("devices",))


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


LAW = Law(
    "sharding",
    "an input spread over devices gives what the same input on one device gives.",
    find,
)


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
    - `unsharded`: for a stage made by `eqx_pipe.sharded` or another that computes in
        parts: a stage that computes the same on the whole. (Keyword only.)

    **Raises:** `AssertionError` if the law is broken.
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
    check(LAW, stage, x, state, key, rtol, atol, **options)
