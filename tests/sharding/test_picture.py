"""`sharding_info(...).plot()`: what each device has, against the arrays' own shards."""

import jax
import jax.numpy as jnp
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import eqx_pipe as ep

matplotlib.use("agg")


@pytest.fixture
def tree():
    mesh = jax.make_mesh(
        (4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2
    )
    specs = {
        "batch": (P("data"), (8, 4)),
        "both": (P("data", "model"), (8, 4)),
        "flat": (P(("model", "data")), (16,)),
        "last": (P(None, "model"), (4, 8)),
        "whole": (P(), (3, 3)),
    }
    placed = {
        name: ep.shard(np.ones(shape, np.float32), mesh, spec)
        for name, (spec, shape) in specs.items()
    }
    return placed | {"host": np.ones(3), "struct": jax.ShapeDtypeStruct((2,), float)}


def boxes(collection):
    """The corners of each rectangle of a collection."""
    return [np.asarray(path.get_extents()) for path in collection.get_paths()]


def test_each_cell_has_the_part_that_its_device_has(tree):
    ax = ep.sharding_info(tree).plot()
    names = [text.get_text() for text in ax.get_yticklabels()]
    assert names[0] == "batch  float32[8,4]" and len(names) == 7
    assert {text.get_text() for text in ax.texts} == {"host", "unknown"}
    pairs = list(zip(ax.collections[::2], ax.collections[1::2], strict=True))
    assert len(pairs) == 5
    for (wholes, filled), x in zip(pairs, list(tree.values()), strict=False):
        shards = sorted(x.addressable_shards, key=lambda shard: shard.device.id)
        every = zip(shards, boxes(wholes), boxes(filled), strict=True)
        for shard, (low, high), (start, stop) in every:
            share = np.prod((stop - start) / (high - low))
            assert share == pytest.approx(shard.data.size / x.size)
            down = (start - low)[1] / (high - low)[1]
            assert down == pytest.approx((shard.index[0].start or 0) / x.shape[0])
        colours = [tuple(colour) for colour in filled.get_facecolor()]
        parts = [str(shard.index) for shard in shards]
        assert len(set(zip(colours, parts, strict=True))) == len(set(parts))
        assert len(set(colours)) == len(set(parts))
    plt.close(ax.figure)


def test_it_is_drawn_where_it_is_wanted(unchecked):
    _, ax = plt.subplots()
    assert ep.sharding_info({}).plot(ax=ax) is ax
    abstract = jax.sharding.AbstractMesh((2,), ("data",))
    sharding = jax.sharding.NamedSharding(abstract, P("data"))
    struct = jax.ShapeDtypeStruct((4,), jnp.float32, sharding=sharding)
    ep.sharding_info(struct).plot(ax=ax)
    assert ax.texts[0].get_text() == "on devices not known"
    plt.close(ax.figure)
    with pytest.raises(TypeError, match="or leave it out"):
        ep.sharding_info({}).plot(ax=3)  # pyright: ignore
    with pytest.raises(ValueError, match="201 arrays.*Ask for a part of the pytree"):
        ep.sharding_info([np.ones(1)] * 201).plot()
