"""The chunks into which a grid is divided, as `plan` describes them."""

import jax.numpy as jnp
import numpy as np
import pytest
from support.stores import one_device

import eqx_pipe as ep

pytest.importorskip("xarray")
pytest.importorskip("zarr")


@pytest.fixture
def planned(tmp_path):
    """Return a function from lengths of dims to the number and size of chunks."""

    def plan(lengths, batch_size, floats=1, **asked):
        space = [ep.Linspace(0, 1, n) for n in lengths]
        asked |= {"store": tmp_path / "r", "mesh": one_device()}
        fn = lambda p: jnp.zeros(floats)  # noqa: E731
        found = ep.plan(fn, space, batch_size=batch_size, **asked)
        return found.chunks, found.chunk_points

    return plan


@pytest.mark.parametrize(
    "lengths",
    [(1000, 1000), (100_000, 3), (10**6,), (7, 100_003), (2, 2, 9, 5000)],
)
def test_chunks_are_few_and_full(planned, lengths):
    chunks, points = planned(lengths, 256)
    assert 128 <= chunks <= 512
    rounds = -(-points // 256) * chunks
    assert rounds * 256 <= 1.1 * np.prod(lengths)


def test_what_is_computed_at_once_decides_and_what_fits_in_memory(planned):
    assert planned((1000,), 400)[0] <= 3
    # 64 MiB have room for 256 points.
    assert planned((10**5, 10), 100, floats=2**16)[1] <= 400
    # Of those that are as good, the nearest to a 256th.
    assert abs(planned((10**6,), 1)[1] - 3907) < 40
    assert planned((4,), 4)[0] == 1  # to fill four lanes
    # But each process gets a share, also where a whole row would do.
    assert planned((4,), 4, shard=(0, 2))[0] == 2
    assert planned((1, 2), 2, shard=(0, 2))[0] == 2
