"""Loaders and their cursors; sources."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import eqx_pipe as ep

from .common import key, mesh, ones, stateful


class Endless:
    def __getitem__(self, i):
        return i


def source(n=5):
    return ep.data.ArraySource(jnp.arange(n))


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


LOADER = [
    ("batch 0", lambda: load(batch_size=0), ValueError, "integer of at least 1"),
    ("batch 2.5", lambda: load(batch_size=2.5), TypeError, "integer of at least 1"),
    ("batch 6", lambda: load(batch_size=6, drop_remainder=True), ValueError, "most 5"),
    ("shuffle", lambda: load(shuffle="yes"), TypeError, "Give True or False"),
    ("drop", lambda: load(drop_remainder=1), TypeError, "Give True or False"),
    ("empty", lambda: load(np.zeros((0, 3))), ValueError, "Give one with records"),
    ("no length", lambda: load(Endless()), TypeError, "anything with `__len__`"),
    ("a stream", lambda: load(iter([1])), TypeError, "read them by number"),
    ("a dict", lambda: load({"a": ones(3)}), TypeError, r"`ArraySource\(tree\)`"),
    ("a tuple", lambda: load((ones(3), ones(3))), TypeError, r"`ArraySource\(tree\)`"),
    ("pipe 3", lambda: load(pipe=3), TypeError, "A stage is a callable"),
    ("stateful", lambda: load(pipe=stateful()[0]), ValueError, "in the training step"),
    ("sharding", lambda: load(sharding="x"), TypeError, "jax.sharding.NamedSharding"),
    (
        "2 by 4",
        lambda: load(batch_size=6, sharding=NamedSharding(mesh(), P("data"))),
        ValueError,
        "divides by 4, such as 4 or 8",
    ),
    (
        "another dtype",
        lambda: first_batch([1, 2.5]),
        ep.StructureError,
        "agree in structure, shapes and dtypes",
    ),
    ("texts", lambda: load(["a", "b"]), TypeError, "encode them as integers"),
    ("a text in it", lambda: load([{"name": "a"}]), TypeError, "`.name`.*Leave text"),
    ("empty records", lambda: load([{}]), TypeError, "pytree of numbers and arrays"),
    (
        "records that differ",
        lambda: first_batch([np.zeros(3), np.zeros(4)]),
        ep.StructureError,
        "Pad or cut them in the source",
    ),
    (
        "another structure",
        lambda: first_batch([{"x": 1}, {"y": 1}]),
        ep.StructureError,
        "agree in structure, shapes and dtypes",
    ),
    (
        "wide integers",
        lambda: first_batch(np.asarray([1, 2**40])),
        ValueError,
        "Switch `jax_enable_x64` on",
    ),
    (
        "a text made",
        lambda: first_batch(pipe=lambda r: {"r": r, "name": "a"}),
        ep.StructureError,
        "`.name`.*Leave the rest out",
    ),
    ("no key", lambda: load().init(None), TypeError, r"jax.random.key\(0\)"),
    ("key 3", lambda: load().init(3), TypeError, "Give one made by `jax.random.key"),
    ("rbg", lambda: load().init(jr.key(0, impl="rbg")), ValueError, "threefry2x32"),
    ("no cursor", lambda: load().next(3), TypeError, r"`loader.init\(jax.random.key"),
    (
        "another cursor",
        lambda: load(source(6)).next(load().init(key())),
        ValueError,
        r"or begin anew with `loader.init\(key\)`",
    ),
    (
        "position",
        lambda: ask_traced(lambda c: c.position),
        TypeError,
        "outside of `jit`",
    ),
    (
        "no text",
        lambda: ep.data.Cursor.from_json("no"),
        ValueError,
        "`to_json` returned",
    ),
    (
        "a carry",
        lambda: scan(lambda c, b: (ones(2), None)),
        ep.StructureError,
        "keeps ",
    ),
    ("no pair", lambda: scan(lambda c, b: c), TypeError, r"-> \(carry, output\)"),
    ("length -1", lambda: scan(max, length=-1), ValueError, "integer of at least 0"),
    ("host", lambda: scan(max, loader=load([1, 2])), TypeError, "Iterate over `epoch`"),
]

SOURCES = [
    (
        "nothing",
        lambda: ep.data.ArraySource({}),
        ep.StructureError,
        "leading axis counts",
    ),
    (
        "text",
        lambda: ep.data.ArraySource({"a": "b"}),
        TypeError,
        "encode text as integers",
    ),
    (
        "a number",
        lambda: ep.data.ArraySource([2.0]),
        ep.StructureError,
        "repeat a scalar for each",
    ),
    (
        "a scalar",
        lambda: ep.data.ArraySource([ones()]),
        ep.StructureError,
        "add it in `pipe`",
    ),
    (
        "two sizes",
        lambda: ep.data.ArraySource({"a": ones(3), "b": ones(4)}),
        ep.StructureError,
        "Cut or transpose those that do not fit",
    ),
    ("record 5", lambda: source()[5], IndexError, "an integer from -5 to 4"),
    ("mixture of 3", lambda: ep.data.mixture(3), TypeError, "Give a list of sources"),
    (
        "mixture of none",
        lambda: ep.data.mixture([]),
        TypeError,
        "Give a list of sources",
    ),
    (
        "weight 0",
        lambda: ep.data.mixture([source()], [0]),
        ValueError,
        "one positive number",
    ),
    (
        "weights",
        lambda: ep.data.mixture([source()], [1, 2]),
        ValueError,
        "number for each",
    ),
    (
        "until",
        lambda: ep.data.mixture([source()], until="x"),
        ValueError,
        "`first_exhausted`, `all_exhausted`",
    ),
    (
        "one empty",
        lambda: ep.data.mixture([source(), source(0)]),
        ValueError,
        "Leave it out",
    ),
    (
        "two forms",
        lambda: ep.data.mixture([source(), ep.data.ArraySource(ones(3))]),
        ep.StructureError,
        "Bring them into one form first",
    ),
    (
        "window 6",
        lambda: ep.data.windows(source(), 6),
        ValueError,
        "Give a smaller size",
    ),
    (
        "window 0",
        lambda: ep.data.windows(source(), 0),
        ValueError,
        "integer of at least 1",
    ),
    (
        "stride",
        lambda: ep.data.windows(source(), 2, 0.5),
        TypeError,
        "integer of at least 1",
    ),
    (
        "no loader",
        lambda: ep.reduce.reduce_batches(load(), ep.reduce.Mean()),
        TypeError,
        "Give an iterable of batches",
    ),
    (
        "no reducer",
        lambda: ep.reduce.reduce_batches(load().epoch(load().init(key())), jnp.mean),
        TypeError,
        "or a pytree of reducers",
    ),
    (
        "one for all",
        lambda: (
            lambda x: ep.reduce.reduce_batches(x.epoch(x.init(key())), ep.reduce.Mean())
        )(load(batch_pipe=jnp.sum)),
        ep.StructureError,
        "let it return one entry for each record",
    ),
]
