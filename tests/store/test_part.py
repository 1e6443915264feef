"""Processes that fill one store together: shares that cover it, and no one's twice."""

import threading

import jax.numpy as jnp
import numpy as np
import pytest
from support.stores import FUNCTIONS, KEY, close, one_device, plain, some_space, stored

import eqx_pipe as ep

xarray = pytest.importorskip("xarray")
pytest.importorskip("zarr")


@pytest.mark.parametrize(
    ("which", "size", "batch_size"),
    [(2, 3, 2), pytest.param(3, 4, 3, marks=pytest.mark.slow)],
)
def test_parts_together_are_the_whole(tmp_path, which, size, batch_size):
    fn, space = FUNCTIONS[which % 4], some_space(which)
    asked = {"key": KEY, "batch_size": batch_size, "mesh": one_device()}
    whole = ep.sweep(fn, space, **asked)
    path, done = tmp_path / "runs.zarr", 0
    for rank in reversed(range(size)):
        part = ep.sweep(fn, space, store=path, shard=(rank, size), **asked)
        share = int(part.ok.sum()) - done
        done += share
        # Fair: no share is more than a chunk larger than another.
        assert abs(share - space.size / size) <= stored(path).chunks.points
        status = part.to_xarray()["status"].values.ravel()
        assert np.array_equal(status == 1, part.ok)
        assert np.array_equal(status == 0, ~part.ok)
    assert done == space.size
    close(part.values, whole.values)
    assert ep.sweep(fn, space, store=path, key=KEY).ok.all()


def test_a_part_leaves_the_others_missing(tmp_path):
    space, path = ep.Linspace(0, 1, 12), tmp_path / "runs.zarr"
    asked = {"store": path, "batch_size": 2, "mesh": one_device()}
    part = ep.sweep(lambda x: (x + 1, x > 2), space, shard=(1, 3), **asked)
    there = np.isin(np.arange(12) // 2 % 3, 1)
    assert np.array_equal(part.ok, there)
    assert np.array_equal(np.isnan(part.values[0]), ~there)
    assert not part.values[1][...].any()
    assert part.best("0").index == 2
    whole = ep.sweep(lambda x: (x + 1, x > 2), space, **asked)
    assert whole.ok.all() and whole.best("0").index == 0


def test_a_few_points_are_shared_out_too(tmp_path):
    space = ep.Space([ep.Linspace(0, 1, 2), ep.Linspace(0, 1, 3)])
    for rank in range(6):
        part = ep.sweep(plain, space, store=tmp_path / "r", shard=(rank, 6))
        assert part.ok.sum() == rank + 1
    assert ep.sweep(plain, space, store=tmp_path / "r", shard=(6, 7)).ok.all()


def test_parts_that_begin_together_make_one_store(tmp_path):
    space, asked = some_space(0), {"batch_size": 1, "mesh": one_device()}
    results, errors = {}, []

    def one(rank):
        try:
            part = (rank, 4)
            where = {"store": tmp_path / "r", "shard": part}
            results[rank] = ep.sweep(plain, space, **where, **asked)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    whole = ep.sweep(plain, space, store=tmp_path / "r")
    assert whole.ok.all() and whole.batch_size == 1
    close(whole.values, ep.sweep(plain, space, **asked).values)
    assert [path.name for path in tmp_path.iterdir()] == ["r"]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("part", "kind"),
    [
        (3, TypeError),
        ((0, 1, 2), TypeError),
        ((0.0, 2), TypeError),
        ((True, 2), TypeError),
        ((2, 2), ValueError),
        ((-1, 2), ValueError),
        ((0, 0), ValueError),
    ],
)
def test_wrong_parts(part, kind, tmp_path):
    with pytest.raises(kind, match=r"0 <= index < count"):
        ep.sweep(jnp.sin, ep.Linspace(0, 1, 3), store=tmp_path / "r", shard=part)
    assert not list(tmp_path.iterdir())


def test_a_part_of_no_store_is_refused():
    with pytest.raises(ValueError, match="`shard` requires `store`.*same path"):
        ep.sweep(jnp.sin, ep.Linspace(0, 1, 3), shard=(0, 2))
