"""The same sweep by several libraries, each as its users would write it.

`make(case, setting)` gives a function that computes the sweep and gives its values as
NumPy arrays. What can be made once and used again (a jitted function, an executor, a
grid) is made before.
"""

import contextlib
import io
import tempfile
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
            k: jnp.linspace(*v, dtype=jnp.float32) if _is_range(v) else jnp.asarray(v)
            for k, v in self.axes.items()
        }

    def size(self):
        return int(np.prod([len(v) for v in self.values().values()]))

    def grid(self):
        """Return the values of every point, one array for each axis."""
        arrays = jnp.meshgrid(*self.values().values(), indexing="ij")
        return {k: v.reshape(-1) for k, v in zip(self.axes, arrays, strict=True)}

    def of(self, leaves):
        return self.fn(self.place(leaves))

    def space(self):
        axes = self.axes.items()
        leaves = {k: ep.Linspace(*v) if _is_range(v) else ep.Values(v) for k, v in axes}
        return ep.Space(self.place(leaves))

    def mapped(self, batch_size):
        return lambda grid: jax.lax.map(self.of, grid, batch_size=batch_size)


def on_host(values):
    return jax.tree.map(np.asarray, values)


def _is_range(axis):
    return isinstance(axis, tuple)


def ours(case, batch_size):
    space = case.space()
    return lambda: ep.sweep(case.fn, space, batch_size=batch_size).values


def ours_jitted(case, batch_size):
    """As `ours`, with a function that need not be traced again."""
    return ours(case._replace(fn=jax.jit(case.fn)), batch_size)


def ours_again(case, batch_size):
    """By a sweeper, which has traced the function once."""
    space = case.space()
    run = ep.sweeper(case.fn, space, batch_size=batch_size)
    return lambda: run(space).values


def by_shard_map(case, batch_size):
    """Every device maps over its share of the grid, a batch at a time."""
    devices = jax.devices()
    mesh = jax.make_mesh((len(devices),), ("i",), (AxisType.Auto,), devices=devices)
    grid = jax.device_put(case.grid(), NamedSharding(mesh, P("i")))
    mapped = jax.shard_map(
        case.mapped(batch_size),
        mesh=mesh,
        in_specs=P("i"),
        out_specs=P("i"),
        check_vma=False,
    )
    run = jax.jit(mapped)
    return lambda: on_host(run(grid))


def on_grid(program):
    """Make a side whose program takes a grid that was made before."""

    def make(case, setting):
        grid, run = case.grid(), program(case, setting)
        return lambda: on_host(run(grid))

    return make


by_vmap = on_grid(lambda case, _: jax.jit(jax.vmap(case.of)))


@on_grid
def by_parajax(case, _):
    """All points of a device at once, by `pmap`."""
    import parajax

    return parajax.parallelize(jax.vmap(case.of))


def by_tvboptim(case, n_vmap):
    """`n_vmap=None`: as it comes, else with one share of the points per device."""
    from tvboptim.execution import ParallelExecution
    from tvboptim.types.spaces import DataAxis, GridAxis, Space

    leaves = {
        k: GridAxis(*v) if _is_range(v) else DataAxis(jnp.asarray(v))
        for k, v in case.axes.items()
    }
    space = Space(case.place(leaves), mode="product")
    if n_vmap is None:
        return lambda: on_host(ParallelExecution(case.fn, space).run().results)
    # One executor for all runs: a new one compiles again.
    devices = jax.device_count()
    executor = ParallelExecution(case.fn, space, n_vmap=n_vmap, n_pmap=devices)
    return lambda: on_host(executor.run().results)


def by_joblib(case, batch_size):
    """Give a piece of the grid to each thread, which has a device of its own."""
    import joblib

    workers, grid = jax.device_count(), on_host(case.grid())
    run = jax.jit(case.mapped(batch_size))
    pieces = [
        jax.device_put({k: np.array_split(v, workers)[i] for k, v in grid.items()}, d)
        for i, d in enumerate(jax.devices())
    ]
    parallel = joblib.Parallel(n_jobs=workers, backend="threading")
    jobs = [joblib.delayed(lambda g: jax.block_until_ready(run(g)))(g) for g in pieces]
    return lambda: jax.tree.map(lambda *x: np.concatenate(x), *parallel(jobs))


# What has no program for many points: the function is jitted, and called for each, or
# for each batch.


def by_jax_grid_search(case, batch_size):
    """Write each batch into a file, and read them all at the end."""
    from jax_grid_search import DistributedGridSearch

    fn, axes = jax.jit(lambda **p: {"value": case.of(p)}), case.values()

    def run():
        with (
            tempfile.TemporaryDirectory() as folder,
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            search = DistributedGridSearch(
                fn,
                axes,
                batch_size=batch_size,
                progress_bar=False,
                log_every=0,
                result_dir=folder,
            )
            search.run()
            found = search.stack_results(folder)
        # Sorted by value: put back into the order of the grid.
        order = np.lexsort([np.asarray(found[k]) for k in reversed(axes)])
        return np.asarray(found["value"])[order]

    return run


def by_xyzpy(case, _):
    import xyzpy

    fn, combos = jax.jit(lambda **p: case.of(p)), on_host(case.values())

    def run():
        found = xyzpy.combo_runner(lambda **p: float(fn(**p)), combos, verbosity=0)
        return np.asarray(found).reshape(-1)

    return run


def by_xsweep(case, _):
    import xarray
    import xsweep

    fn, axes = jax.jit(lambda **p: case.of(p)), on_host(case.values())
    space = xarray.Dataset({k: (k, v) for k, v in axes.items()})
    contract = f"loop({', '.join(axes)}) -> value()"
    swept = xsweep.sweep(contract)(lambda **p: float(fn(**p)))
    return lambda: swept(space)["value"].values.reshape(-1)


def sizes_tried(case, sizes, _):
    """Batch sizes, up to all points of a device."""
    most = -(-case.size() // jax.device_count())
    return sorted({min(most, most if s == "all" else int(s)) for s in sizes})


def like(*others):
    """Try the settings that were chosen for earlier sides."""
    return lambda case, sizes, chosen: [chosen[o] for o in others if o in chosen][:1]


def fixed(*settings):
    return lambda case, sizes, chosen: list(settings)


class Side(NamedTuple):
    make: Callable[[Case, Any], Callable[[], Any]]
    settings: Callable[..., list[Any]]
    """Those to try, given the case, batch sizes, and those chosen for sides above."""
    package: str | None = None
    most: float = float("inf")
    """For how many points at most: the others would take all day."""


SIDES = {
    "sweep": Side(ours, fixed("auto")),
    "tvboptim": Side(by_tvboptim, sizes_tried, "tvboptim"),
    "shard_map": Side(by_shard_map, sizes_tried),
    "sweep, same": Side(ours, like("tvboptim", "shard_map")),
    "sweep, jitted": Side(ours_jitted, like("tvboptim", "shard_map")),
    "sweeper": Side(ours_again, like("tvboptim", "shard_map")),
    "joblib": Side(by_joblib, like("shard_map"), "joblib"),
    "vmap": Side(by_vmap, fixed(None)),
    "tvboptim, default": Side(by_tvboptim, fixed(None), "tvboptim"),
    "parajax": Side(by_parajax, fixed(None), "parajax"),
    "jax-grid-search": Side(by_jax_grid_search, fixed(1024), "jax_grid_search", 1000),
    "xyzpy": Side(by_xyzpy, fixed(None), "xyzpy", 1000),
    "xsweep": Side(by_xsweep, fixed(None), "xsweep", 1000),
}
"""The sides; those with settings to try run with the best of them."""
