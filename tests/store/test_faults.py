"""Faults of the disk, and the same sweep started twice."""

import concurrent.futures as cf
import os
import resource

import jax.numpy as jnp
import jax.random as jr
import pytest
from support.stores import close, one_device, same, written

import eqx_pipe as ep

xarray = pytest.importorskip("xarray")
pytest.importorskip("zarr")
pytest.importorskip("cloudpickle")


class Looks:
    """An executor that does the work at once, after it has called a function."""

    def __init__(self, look):
        self.look = look

    def submit(self, fn, *args):
        self.look()
        future = cf.Future()
        future.set_result(fn(*args))
        return future


def test_the_same_sweep_started_twice(tmp_path):
    """Somebody starts the same sweep again, and somebody looks at its store."""
    space, path, looked = ep.Linspace(0, 1, 6), tmp_path / "runs.zarr", []
    asked = {"store": path, "batch_size": 2, "mesh": one_device()}

    def look():
        says = rf"being filled by process {os.getpid()} on .*Wait for it or stop it"
        with pytest.raises(ep.SweepError, match=says):
            ep.sweep(jnp.sin, space, **asked)
        looked.append(int(xarray.open_zarr(path).load()["status"].sum()))

    asked_there = {"store": path, "batch_size": 2, "executor": Looks(look)}
    result = ep.sweep(jnp.sin, space, **asked_there)
    close(result.values, ep.sweep(jnp.sin, space).values)
    assert looked and looked == sorted(looked)


def test_a_disk_that_is_full(tmp_path):
    space = ep.Linspace(0, 1, 2**12)
    fn = lambda x, key: jr.bits(key, (4,)) + (x * 0).astype("uint32")  # noqa: E731
    path, asked = tmp_path / "runs.zarr", {"batch_size": 512, "mesh": one_device()}
    key = jr.key(0)
    ep.sweep(fn, space, key=key, store=path, shard=(0, 2), **asked)
    before = written(path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, limits[1]))
    try:
        says = "could not take a chunk: .*File too large.*can be written to"
        with pytest.raises(ep.SweepError, match=says):
            ep.sweep(fn, space, key=key, store=path, **asked)
        with pytest.raises(ep.SweepError, match="could not be made: .*File too large"):
            ep.sweep(fn, space, key=key, store=tmp_path / "other.zarr", **asked)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert written(path) == before
    expected = ep.sweep(fn, space, key=key, **asked).values
    for again in (path, tmp_path / "other.zarr"):
        same(ep.sweep(fn, space, key=key, store=again, **asked).values, expected)


@pytest.mark.parametrize("where", ["/sys/runs.zarr", "file/runs.zarr", "locked/r.zarr"])
def test_a_folder_that_cannot_be_written_to(tmp_path, where):
    if where.startswith("/sys") and not os.path.isdir("/sys/kernel"):
        pytest.skip("no folder here that nobody can write to")
    if where.startswith("locked") and os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(ep.SweepError, match="could not be made: .*can be written to"):
        ep.sweep(lambda x: x, ep.Linspace(0, 1, 3), store=tmp_path / where)
