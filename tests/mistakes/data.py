"""Loaders and their cursors; sources."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import eqx_pipe as ep
from eqx_pipe.data import ArraySource

from .common import key, mesh, ones, stateful


class Huge:
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        return 0


class Endless:
    def __getitem__(self, i):
        return i


def source(n=5):
    return ArraySource(jnp.arange(n))


def load(data=None, **settings):
    data = source() if data is None else data
    return ep.data.Loader(data, **({"batch_size": 2, "shuffle": False} | settings))


def first_batch(*args, **settings):
    loader = load(*args, **settings)
    return loader.next(loader.init(key()))


def scan(step, carry=0.0, length=1, loader=None):
    loader = load() if loader is None else loader
    return loader.scan(step, carry, loader.init(key()), length)


def ask_traced(ask):
    cursor = jax.tree.map(jnp.asarray, load().init(key()))
    return eqx.filter_jit(ask)(cursor)


LOADER = {
    ValueError: {
        "most 5": lambda: load(batch_size=6, drop_remainder=True),
        r"records or more.*2\^62.*`__len__` return": lambda: load(Huge(2**63)),
        "4611686018427387905 records": lambda: load(Huge(2**62 + 1)),
        "Give one with records": lambda: load(np.zeros((0, 3))),
        "in the training step": lambda: load(pipe=stateful()[0]),
        "such as 4 or 8": lambda: load(
            batch_size=6, sharding=NamedSharding(mesh(), P("data"))
        ),
        r"`y`: axis 1 has size 3.*`model`.*2 or 4.*the sizes": lambda: load(
            {"x": np.zeros((8, 4)), "y": np.zeros((8, 3))},
            batch_size=4,
            sharding=NamedSharding(mesh(), P("data", "model")),
        ),
        r"axis 0 has size 3.*`data`": lambda: load(
            source(8),
            batch_size=4,
            batch_pipe=lambda x: x[:3],
            sharding=NamedSharding(mesh(), P("data")),
        ),
        "Switch `jax_enable_x64` on": lambda: first_batch(np.asarray([1, 2**40])),
        r"again with `loader.init": lambda: load(source(6)).next(load().init(key())),
    },
    TypeError: {
        "anything with `__len__`": lambda: load(Endless()),
        r"Give `ArraySource\(tree\)`": lambda: load({"a": ones(3)}),
        r"tuple.*`ArraySource\(tree\)`": lambda: load((ones(3), ones(3))),
        "encode them as integers": lambda: load(["a", "b"]),
        "`.name`.*Leave text": lambda: load([{"name": "a"}]),
        "pytree of numbers and arrays": lambda: load([{}]),
        r"jax.random.key\(seed": lambda: load().init(None),
        "outside of `jit`": lambda: ask_traced(lambda c: c.position),
        r"-> \(carry, output\)": lambda: scan(lambda c, b: c),
        "Iterate over `epoch`": lambda: scan(max, loader=load([1, 2])),
    },
    ep.StructureError: {
        "structure, shapes and dtypes": lambda: first_batch([1, 2.5]),
        "Pad or cut them": lambda: first_batch([np.zeros(3), np.zeros(4)]),
        "0 of the source and record 1 differ.*same structure": lambda: first_batch(
            [{"x": 1}, {"y": 1}]
        ),
        "`.name`.*Leave": lambda: first_batch(pipe=lambda r: {"r": r, "name": "a"}),
        "what it got.*Keep the structure": lambda: scan(lambda c, b: (ones(2), None)),
    },
}

SOURCES = {
    ep.StructureError: {
        "leading axis counts": lambda: ArraySource({}),
        "repeat a scalar for each": lambda: ArraySource([2.0]),
        "add it in `pipe`": lambda: ArraySource([ones()]),
        "Cut or transpose": lambda: ArraySource({"a": ones(3), "b": ones(4)}),
    },
    TypeError: {
        "encode text as integers": lambda: ArraySource({"a": "b"}),
    },
    ValueError: {
        "9223372036854775808 records": lambda: load(Huge(2**63)),
    },
}
