"""Processes that grow one store at once; a store whose folder alone can be written."""

import collections
import errno
import functools as ft
import os
import threading

import jax
import numpy as np
import pytest
from support.stores import one_device

import eqx_pipe as ep

pytest.importorskip("xarray")
pytest.importorskip("zarr")

SMALL, WIDE = 6, 9
INSERTED = (7.0, 0.0, 1.0, 2.0)


def space(n, b=(0.0, 1.0, 2.0)):
    return {"a": ep.Values(np.arange(n, dtype=np.float32)), "b": ep.Values(b)}


class Noted:
    """A function that notes the points that it computes."""

    def __init__(self):
        self.seen = collections.Counter()

    def _note(self, x):
        self.seen.update(np.ravel(x).tolist())
        return x

    def __call__(self, p):
        x = 10 * p["a"] + p["b"]
        return jax.pure_callback(self._note, x, x, vmap_method="expand_dims")


def swept(fn, points, path, **asked):
    asked = {"batch_size": 1, "mesh": one_device()} | asked
    if path is not None:  # the callback of `Noted` writes into what it holds
        asked["resume"] = "force"
    return ep.sweep(fn, points, store=path, **asked)


def check(result, points):
    """Raise unless each point of a space has its own value."""
    points = ep.Space(points)
    expected = [10 * p["a"] + p["b"] for p in map(points.point, range(points.size))]
    assert result.ok.all() and np.array_equal(result.values[:], expected)


def at_once(*calls):
    """Run calls in threads that begin together; return what they return or raise."""
    barrier, found = threading.Barrier(len(calls)), [None] * len(calls)

    def run(k, call):
        barrier.wait()
        try:
            found[k] = call()
        except (ep.SweepError, ep.StructureError) as error:
            found[k] = error

    threads = [threading.Thread(target=run, args=x) for x in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


GROWTHS = {
    "appended": [(space(WIDE), {}), (space(WIDE), {})],
    "moved": [(space(SMALL, INSERTED), {}), (space(SMALL, INSERTED), {})],
    "shards": [(space(WIDE), {"shard": (k, 2)}) for k in (0, 1)],
    "two sizes": [(space(WIDE), {}), (space(WIDE + 3), {})],
    "two ways": [(space(WIDE), {}), (space(WIDE, INSERTED), {})],
}


@pytest.mark.parametrize("which", GROWTHS)
def test_sweeps_that_grow_one_store_at_once_leave_one_whole_store(tmp_path, which):
    """One of them grows it; the other waits, joins it, or is refused."""
    path, calls = tmp_path / "r", GROWTHS[which]
    swept(Noted(), space(SMALL), path)
    fn = Noted()
    found = at_once(
        *(ft.partial(swept, fn, points, path, **asked) for points, asked in calls)
    )
    told = [error for error in found if isinstance(error, Exception)]
    assert len(told) < len(calls) and all(str(path) in str(error) for error in told)
    assert not told or which != "shards"
    for error in told:
        assert any(
            says in str(error)
            for says in ("is being filled by", "different sweep", "has grown")
        ), error
    largest = calls[-1][0]
    for _ in range(2):  # the call after a growth removes what is not valid any more
        check(swept(fn, largest, path), largest)
    check(ep.SweepResult.load(path), largest)
    assert set(fn.seen.values()) <= {1}, "points were computed twice"
    assert not [p for p in path.rglob("*") if p.name == ".growing"]


def forbid(monkeypatch, number, is_forbidden):
    """Let the system refuse to change the entries of folders that are forbidden."""

    def refuse(module, name):
        usual = getattr(module, name)

        def call(*places, **asked):
            for place in places:
                if isinstance(place, str | os.PathLike) and is_forbidden(f"{place}"):
                    if name == "mkdir" and os.path.isdir(place):
                        break  # as the system does, which looks for the folder first
                    raise OSError(number, os.strerror(number), f"{place}")
            return usual(*places, **asked)

        monkeypatch.setattr(module, name, call)

    for name in ("mkdir", "rmdir", "unlink", "rename", "replace", "link", "symlink"):
        refuse(os, name)


WHERE = {
    "a parent that cannot be written to": (
        errno.EACCES,
        lambda path: lambda place: os.path.dirname(place) == f"{path.parent}",
    ),
    "a mount point": (errno.EBUSY, lambda path: lambda place: place == f"{path}"),
}


@pytest.mark.parametrize("where", WHERE)
def test_only_the_folder_of_a_store_is_written_to(tmp_path, monkeypatch, where):
    path, (number, forbidden) = tmp_path / "runs.zarr", WHERE[where]
    path.mkdir()
    forbid(monkeypatch, number, forbidden(path))
    if number == errno.EACCES:
        tmp_path.chmod(0o500)  # root may write anywhere: for others
        with pytest.raises(ep.SweepError, match="could not be made: .*be written to"):
            swept(Noted(), space(SMALL), tmp_path / "other")
    fn = Noted()
    with pytest.raises(ValueError, match="the name of an array"):
        swept(lambda p: {"a/b": fn(p)}, space(SMALL), path)
    swept(fn, space(SMALL), path, shard=(0, 2))
    for points in (
        space(SMALL),
        space(WIDE),
        space(WIDE, INSERTED),
        space(WIDE + 3, INSERTED),
    ):
        check(swept(fn, points, path), points)
    assert set(fn.seen.values()) == {1}
    swept(Noted(), space(SMALL), None).save(path, overwrite=True)
    check(ep.SweepResult.load(path), space(SMALL))
    assert [p.name for p in tmp_path.iterdir()] == ["runs.zarr"]
    tmp_path.chmod(0o700)
