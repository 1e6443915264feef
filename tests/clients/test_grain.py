"""Records of Grain fed by a loader."""

import grain
import jax
import jax.numpy as jnp
import numpy as np

import eqx_pipe as ep


def test_records_of_grain():
    records = [{"x": np.full(3, i, np.float32), "y": np.int32(i)} for i in range(10)]
    source = grain.MapDataset.source(records).map(
        lambda record: {**record, "x": record["x"] * 2}
    )
    loader = ep.data.Loader(
        source, ep.at("x", jnp.sqrt), batch_size=4, shuffle=False, drop_remainder=False
    )
    batches = list(loader.epoch(loader.init(jax.random.key(0))))
    expected = list(source.batch(4))
    assert [len(batch["y"]) for batch in batches] == [4, 4, 2]
    for ours, theirs in zip(batches, expected, strict=True):
        np.testing.assert_array_equal(ours["y"], theirs["y"])
        np.testing.assert_allclose(ours["x"], np.sqrt(theirs["x"]), rtol=1e-6)
