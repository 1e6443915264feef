"""The same sweep by several libraries, each as its users would write it.

A side is a function `(case, setting) -> run`, where `run()` computes the sweep and
gives its values as NumPy arrays. What can be made once and used again (a jitted
function, an executor, a grid) is made before.
"""

import functools
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import eqx_pipe as ep


class Case(NamedTuple):
    """A function, its axes (`(lo, hi, n)` or an array), the point made of their values.

    Names of axes are in alphabetical order, since tvboptim sorts them.
    """

    name: str
    fn: Callable[[Any], Any]
    axes: dict[str, Any]
    place: Callable[[dict[str, Any]], Any] = lambda leaves: leaves

    def values(self):
        return {
            k: jnp.asarray(v) if _is_data(v) else jnp.linspace(*v, dtype=jnp.float32)
            for k, v in self.axes.items()
        }

    def size(self):
        return int(np.prod([len(v) for v in self.values().values()]))

    def grid(self):
        """The values of every point, one array an axis."""
        arrays = jnp.meshgrid(*self.values().values(), indexing="ij")
        return {k: v.reshape(-1) for k, v in zip(self.axes, arrays, strict=True)}

    def of(self, leaves):
        return self.fn(self.place(leaves))


def on_host(values):
    return jax.tree.map(np.asarray, values)


def _is_data(axis):
    return not isinstance(axis, tuple)


def ours(case, batch_size):
    leaves = {
        k: ep.Values(v) if _is_data(v) else ep.Linspace(*v)
        for k, v in case.axes.items()
    }
    space = ep.Space(case.place(leaves))
    return lambda: ep.sweep(case.fn, space, batch_size=batch_size).values


def ours_jitted(case, batch_size):
    """As `ours`, with a function that need not be traced again."""
    return ours(case._replace(fn=jax.jit(case.fn)), batch_size)


def by_shard_map(case, batch_size):
    """Every device maps over its share of the grid, a batch at a time."""
    devices = jax.devices()
    mesh = jax.make_mesh((len(devices),), ("i",), (AxisType.Auto,), devices=devices)
    grid = jax.device_put(case.grid(), NamedSharding(mesh, P("i")))
    mapped = jax.shard_map(
        lambda g: jax.lax.map(case.of, g, batch_size=batch_size),
        mesh=mesh,
        in_specs=P("i"),
        out_specs=P("i"),
        check_vma=False,
    )
    run = jax.jit(mapped)
    return lambda: on_host(run(grid))


def by_lax_map(case, batch_size):
    grid = case.grid()
    run = jax.jit(lambda g: jax.lax.map(case.of, g, batch_size=batch_size))
    return lambda: on_host(run(grid))


def by_vmap(case, _):
    grid, run = case.grid(), jax.jit(jax.vmap(case.of))
    return lambda: on_host(run(grid))


def by_tvboptim(case, n_vmap):
    """`n_vmap=None`: as it comes, else with one share of the points per device."""
    from tvboptim.execution import ParallelExecution
    from tvboptim.types.spaces import DataAxis, GridAxis, Space

    leaves = {
        k: DataAxis(jnp.asarray(v)) if _is_data(v) else GridAxis(*v)
        for k, v in case.axes.items()
    }
    space = Space(case.place(leaves), mode="product")
    if n_vmap is None:
        return lambda: on_host(ParallelExecution(case.fn, space).run().results)
    # One executor for all runs: a new one compiles again.
    devices = jax.device_count()
    executor = ParallelExecution(case.fn, space, n_vmap=n_vmap, n_pmap=devices)
    return lambda: on_host(executor.run().results)


def by_joblib(case, setting):
    """A piece of the grid for each worker at a time; workers keep what they compiled.

    Threads have a device each; processes look the case up by its name.
    """
    import joblib

    kind, batch_size = setting
    workers = jax.device_count()
    if kind == "processes":
        parallel = joblib.Parallel(n_jobs=workers, backend="loky")
        jobs = [
            joblib.delayed(remote)(case.name, batch_size, (i, workers))
            for i in range(workers)
        ]
        return lambda: _joined(parallel(jobs))
    run = jax.jit(lambda g: jax.lax.map(case.of, g, batch_size=batch_size))
    pieces = [
        jax.device_put(_piece(case, (i, workers)), device)
        for i, device in enumerate(jax.devices())
    ]
    parallel = joblib.Parallel(n_jobs=workers, backend="threading")
    jobs = [joblib.delayed(lambda g: jax.block_until_ready(run(g)))(g) for g in pieces]
    return lambda: _joined(parallel(jobs))


def remote(name, batch_size, share):
    """What a process of joblib does."""
    return _compiled(name, batch_size, share)()


@functools.cache
def _compiled(name, batch_size, share):
    from peer_cases import CASES

    case = CASES[name]()
    grid = _piece(case, share)
    run = jax.jit(lambda g: jax.lax.map(case.of, g, batch_size=batch_size))
    return lambda: on_host(run(grid))


def _piece(case, share):
    """A part of the grid: the i-th of so many."""
    i, of = share
    return {k: np.array_split(np.asarray(v), of)[i] for k, v in case.grid().items()}


def _joined(parts):
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


SIZES = os.environ.get("SIZES", "8,64,512,1024,4096,16384,all")


def settings(case, chosen):
    """The batch sizes to try, up to all points of a device."""
    most = -(-case.size() // jax.device_count())
    sizes = {most if s == "all" else int(s) for s in SIZES.split(",")}
    return sorted(s for s in sizes if s <= most)


SIDES: dict[str, tuple[Callable[..., Any], Callable[[Case, Any], list[Any]]]] = {
    "sweep": (ours, lambda case, chosen: ["auto"]),
    "tvboptim, best": (by_tvboptim, settings),
    "sweep, same": (ours, lambda case, chosen: [chosen["tvboptim, best"]]),
    "sweep, jitted": (ours_jitted, lambda case, chosen: [chosen["tvboptim, best"]]),
    "shard_map, best": (by_shard_map, settings),
    "lax.map": (by_lax_map, lambda case, chosen: [chosen["shard_map, best"]]),
    "joblib": (
        by_joblib,
        lambda case, chosen: [
            (kind, chosen["shard_map, best"]) for kind in ("threads", "processes")
        ],
    ),
    "vmap": (by_vmap, lambda case, chosen: [None]),
    "tvboptim, default": (by_tvboptim, lambda case, chosen: [None]),
}
"""How each is run, and the settings to try, given those chosen for sides above it."""
