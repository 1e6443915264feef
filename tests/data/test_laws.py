"""Every loader keeps the laws of the kit, whatever it reads and however it is set."""

import equinox as eqx
import hypothesis as hp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.helpers import few, numbers, slow_unless
from support.pipelines import pipelines
from support.strategies import keys, structs

import eqx_pipe as ep
import eqx_pipe.testing as ept


def tree(size):
    x = np.arange(2 * size, dtype=np.float32).reshape(size, 2)
    return {"x": x, "i": np.arange(size, dtype=np.int32)}


def records(size):
    whole = tree(size)
    return [jax.tree.map(lambda leaf, i=i: leaf[i], whole) for i in range(size)]


class Lazy:
    """A source of one's own on the host."""

    def __len__(self):
        return 7

    def __getitem__(self, i):
        return {"x": np.full(2, i, np.float32), "i": np.int32(i)}


SOURCES = {
    "arrays": lambda: ep.data.ArraySource(tree(7)),
    "one record": lambda: ep.data.ArraySource(tree(1)),
    "own": Lazy,
    "list": lambda: records(8),
}


def noisy(record, *, key):
    return {"x": record["x"] + jr.normal(key, record["x"].shape), "i": record["i"]}


def sometimes(record, *, key):
    flip = ep.at("x", ep.cond(lambda x: x.sum() > 4, jnp.negative))
    return ep.chain(flip, noisy)(record, key=key)


def shifted(batch, *, key):
    return {"x": batch["x"] + jr.normal(key), "i": batch["i"]}


PIPES = [eqx.nn.Identity(), noisy, sometimes, ep.at("x", jnp.tanh)]
BATCH_PIPES = [eqx.nn.Identity(), shifted]


@pytest.mark.parametrize("name", slow_unless({"own", "arrays"}, SOURCES))
def test_a_loader_of_each_source_keeps_every_law(name):
    source = SOURCES[name]()
    ept.check_loader(ep.data.Loader(source, noisy, batch_size=min(3, len(source))))


@few
@hp.given(st.data())
def test_every_loader_keeps_every_law(data):
    source = SOURCES[data.draw(st.sampled_from(list(SOURCES)), label="source")]()
    sizes = [size for size in (1, 2, 4) if size <= len(source)]
    batch_size = data.draw(st.sampled_from(sizes), label="batch size")
    batch_pipe = data.draw(st.sampled_from(BATCH_PIPES), label="batch pipe")
    loader = ep.data.Loader(
        source,
        data.draw(st.sampled_from(PIPES), label="pipe"),
        batch_pipe=batch_pipe,
        batch_size=batch_size,
        shuffle=data.draw(st.booleans(), label="shuffle"),
        drop_remainder=data.draw(st.booleans(), label="drop remainder"),
    )
    # All records of a batch share the draw of `shifted`.
    skip = ("draws",) if batch_pipe is shifted else ()
    ept.check_loader(loader, key=data.draw(keys(), label="key"), skip=skip)


@pytest.mark.slow
@few
@hp.given(st.data())
def test_a_drawn_pipeline_in_a_loader_keeps_every_law(data):
    struct = data.draw(structs(), label="struct")
    pipe = data.draw(pipelines(struct, max_depth=2), label="pipe")
    key = data.draw(keys(), label="key")
    records = jax.tree.map(lambda v: jnp.stack([v, v + 1, v - 1]), numbers(struct))
    ept.check_loader(
        ep.data.Loader(ep.data.ArraySource(records), pipe, batch_size=2), key=key
    )


@pytest.mark.slow
def test_a_sharded_loader_keeps_every_law():
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, P("data"))
    ept.check_loader(
        ep.data.Loader(
            ep.data.ArraySource(tree(9)),
            noisy,
            batch_size=4,
            sharding=sharding,
            drop_remainder=True,
        )
    )
