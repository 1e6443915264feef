"""Sharding in a run of two processes, each with its own part of the data."""

import pytest
from support.processes import run_processes

SCRIPT = """
import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import AxisType, PartitionSpec as P
import eqx_pipe as ep


def fails(words, *args):
    try:
        ep.sharding.shard(*args)
    except ValueError as error:
        assert words in str(error), error
    else:
        raise AssertionError("nothing was raised")


def make(key):
    return eqx.nn.Linear(4, 8, key=key)


parts = [np.arange(8, dtype=np.float32).reshape(4, 2) + 100 * r for r in range(2)]
for kind in (AxisType.Auto, AxisType.Explicit):
    mesh = jax.make_mesh((4,), ("data",), axis_types=(kind,))
    assert mesh.size == 4 and len(mesh.local_devices) == 2
    tree = {"x": parts[rank], "w": np.ones((2, 3), np.float32), "name": "train"}
    placed = ep.sharding.shard(tree, mesh, {"x": P("data"), "w": None, "name": None})
    assert placed["x"].shape == (8, 2) and placed["w"].shape == (2, 3)
    assert placed["name"] == "train"
    assert np.array_equal(process_allgather(placed["x"], tiled=True), np.vstack(parts))
    # A global array is not somebody's part: it is placed anew as a whole.
    whole = ep.sharding.shard(placed["x"], mesh, None)
    assert np.array_equal(np.asarray(whole), np.vstack(parts))
    keys = ep.sharding.shard(jr.split(jr.key(rank), 2), mesh, P("data"))
    assert keys.shape == (4,) and jnp.issubdtype(keys.dtype, jax.dtypes.prng_key)

    inside = jax.jit(lambda x: ep.sharding.shard(2 * x, mesh, P("data")))(placed["x"])
    assert inside.shape == (8, 2)
    total = jax.jit(lambda x, w: jnp.sum(x @ w))(placed["x"], placed["w"])
    assert float(total) == 3 * np.vstack(parts).sum()

    model = ep.sharding.init_sharded(make, jr.key(0), mesh, P("data"))
    assert model.weight.addressable_shards[0].data.shape == (2, 4)
    gathered = process_allgather(model.weight, tiled=True)
    # Drawn by another program, which may round otherwise.
    np.testing.assert_allclose(gathered, make(jr.key(0)).weight, rtol=2e-5, atol=2e-6)

    fails("`data` of size 2 in this process", parts[rank][:3], mesh, P("data"))
"""


@pytest.mark.slow
def test_each_process_brings_its_part():
    run_processes(SCRIPT)
