"""All ways to run a sweep. Each gives the values, keys and failed points of the others.

A way is a function `way(fn, space, folder, **asked)` that returns a `SweepResult`;
`folder` is an empty folder for stores. A new engine or setting is one more entry.
"""

import concurrent.futures as cf
import functools as ft
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
import pytest
from support.executors import Plain
from support.sweeps import WEIGHT, make_mesh

import eqx_pipe as ep
from eqx_pipe._sweep.program import layout

KEY = jr.key(3)


def _setting(num_devices=None, **settings):
    """Return the way of an ordinary call with some settings."""

    def way(fn, space, folder, **asked):
        mesh = None if num_devices is None else make_mesh(num_devices)
        return ep.sweep(fn, space, mesh=mesh, **settings, **asked)

    return way


def _other_order(fn, space, folder, **asked):
    costs = np.random.default_rng(0).permutation(space.size)
    return ep.sweep(fn, space, order_by=costs, batch_size=2, mesh=make_mesh(2), **asked)


def _other_order_in_a_store(fn, space, folder, **asked):
    return _stored(fn, space, folder, order_by=np.cos(np.arange(space.size)), **asked)


def _stored(fn, space, folder, **asked):
    return ep.sweep(
        fn, space, store=folder / "runs", batch_size=2, mesh=make_mesh(1), **asked
    )


def _resumed(fn, space, folder, **asked):
    """Fill one share of a store, and the rest by a call without a share."""
    _stored(fn, space, folder, shard=(1, 2), **asked)
    return _stored(fn, space, folder, **asked)


def _shared(fn, space, folder, **asked):
    """Fill a store by three processes, the last of which sees the whole."""
    for index in (2, 0, 1):
        result = _stored(fn, space, folder, shard=(index, 3), **asked)
    return result


def _grown(fn, space, folder, **asked):
    """Fill a store with some of the points, and let it grow to all of them."""
    some = list(range(space.size))
    _stored(fn, space[some[::3]], folder, **asked)
    return _stored(fn, space[some], folder, **asked)


def _loaded(fn, space, folder, **asked):
    ep.sweep(fn, space, **asked).save(folder / "saved.zarr")
    return ep.SweepResult.load(folder / "saved.zarr")


def _loaded_store(fn, space, folder, **asked):
    _stored(fn, space, folder, **asked)
    return ep.SweepResult.load(folder / "runs")


def _by_threads(fn, space, folder, **asked):
    with cf.ThreadPoolExecutor(2) as pool:
        return ep.sweep(fn, space, executor=pool, batch_size=2, **asked)


def _by_an_executor_into_a_store(fn, space, folder, **asked):
    where = {"store": folder / "runs", "executor": Plain()}
    return ep.sweep(fn, space, batch_size=3, **where, **asked)


def _swept_again(fn, space, folder, key=None, **asked):
    """Make a sweeper with another key, and call it for the second time."""
    run = ep.sweeper(fn, space, key=jr.key(99), batch_size=2, **asked)
    run(space)
    return run(space, key=key)


def _many_calls(fn, space, folder, **asked):
    """Call the program for a few points at a time, as a sweep of many points does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "CHUNK_BYTES", 100)
        return ep.sweep(fn, space, batch_size=1, mesh=make_mesh(2), **asked)


def _plain_loop(fn, space, folder, **asked):
    with jax.disable_jit():
        return ep.sweep(fn, space, **asked)


WAYS: dict[str, Callable[..., ep.SweepResult]] = {
    "all devices": _setting(),
    "one device": _setting(1, batch_size=3),
    "two devices, single points": _setting(2, batch_size=1),
    "eight devices, explicit axes": _setting(8, batch_size=2),
    "one batch": _setting(1, batch_size=64),
    "many calls": _many_calls,
    "another order": _other_order,
    "a store": _stored,
    "a store, another order": _other_order_in_a_store,
    "a store, resumed": _resumed,
    "a store, in shards": _shared,
    "a store, grown": _grown,
    "a store, loaded": _loaded_store,
    "saved and loaded": _loaded,
    "threads": _by_threads,
    "an executor and a store": _by_an_executor_into_a_store,
    "a sweeper": _swept_again,
    "a plain loop": _plain_loop,
}


SPACES = {
    "a product": lambda: ep.Space({"b": ep.Linspace(0, 1, 4), "a": ep.Values([1, 2])}),
    "a zip": lambda: ep.Space(
        [ep.Linspace(0, 1, 4), ep.Geomspace(1, 9, 4), "x"], "zip"
    ),
    "keys": lambda: ep.Space({"k": ep.Values(jr.split(KEY, 5)), "w": WEIGHT}),
    "a part": lambda: ep.Space([ep.Linspace(0, 1, 7), ep.Values(np.eye(3))])[18:1:-3],
    "static values": lambda: ep.Space(
        {"w": ep.Static(["a", "bb"]), "x": ep.Linspace(0, 1, 3), "m": WEIGHT}
    ),
    "draws": lambda: ep.Space(
        {"s": ep.Seeds(2), "x": ep.Random(jr.normal, 3)}, key=jr.key(5)
    ),
    "one point": lambda: ep.Space(ep.Linspace(0, 2, 1)),
}


def by_hand(fn, space, key):
    """Evaluate a function at the points of a space, one after the other."""
    wants_key = "key" in fn.__code__.co_varnames[: fn.__code__.co_argcount]
    call = eqx.filter_jit(fn)

    def at(i):
        own = {"key": space.point_key(i, key=key)} if wants_key else {}
        return call(space.point(i), **own)

    rows = [at(i) for i in range(space.size)]
    return jtu.tree_map(_stacked, *rows)


def _stacked(*leaves):
    if eqx.is_array(leaves[0]) and jax.dtypes.issubdtype(
        leaves[0].dtype, jax.dtypes.prng_key
    ):
        return jr.wrap_key_data(np.stack([jr.key_data(x) for x in leaves]))
    return np.asarray(jnp.stack([jnp.asarray(x) for x in leaves]))


@ft.cache
def expected(fn, name):
    """Return the values of a function at the points of a space of `SPACES`."""
    return by_hand(fn, SPACES[name](), KEY)
