"""Faults overnight: kills, Ctrl-C, full disks, the same sweep started twice."""

import contextlib
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax.random as jr
import numpy as np
import pytest
from support.processes import plain_flags
from support.stores import SECONDS, close, one_device, run_slow, same, stored, written

import eqx_pipe as ep

xarray = pytest.importorskip("xarray")
pytest.importorskip("zarr")

ROOT = Path(__file__).parents[2]
CHILD = """
import signal
import sys
# The children of a shell's background job ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
import jax
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
from support import stores

print("ready", flush=True)
sys.stdin.readline()
stores.run_slow(sys.argv[1])
print("finished", flush=True)
"""


def start(path):
    """Return a process that fills a store when it is told to."""
    env = os.environ | {
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}",
        "XLA_FLAGS": plain_flags(),
        "JAX_PLATFORMS": "cpu",
        # So long that a child is not finished before it is killed.
        SECONDS: "0.1",
    }
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, "-W", "ignore", "-c", CHILD, str(path)]
    # A session of its own, to end what it leaves behind too.
    pipes |= {"stderr": subprocess.PIPE, "start_new_session": True}
    return subprocess.Popen(command, env=env, **pipes)


def go(child):
    assert child.stdout.readline() == "ready\n"
    child.stdin.write("\n")
    child.stdin.flush()


def done(path):
    """Return the chunks that are finished, and when each was."""
    if not (path / "zarr.json").exists():
        return {}
    return written(path)


def until_some_are_done(path, more=1):
    before, limit = len(done(path)), time.monotonic() + 60
    while len(done(path)) < before + more:
        assert time.monotonic() < limit
        time.sleep(0.02)


def end(child, how):
    child.send_signal(how)
    out, err = child.communicate(timeout=60)
    return out, err


@pytest.fixture(scope="module")
def whole():
    """Return the result of an uninterrupted sweep."""
    result = run_slow(None, mesh=one_device())
    return result


def check(path, whole):
    """Raise unless a store goes on to the values of an uninterrupted sweep."""
    before = done(path)
    half = xarray.open_zarr(path).load()
    ok = half["status"].values == 1
    result = run_slow(path, mesh=one_device())
    close(result.values, whole.values)
    kept = result.to_xarray()["0"].values[ok]
    assert np.array_equal(half["0"].values[ok], kept)
    after = done(path)
    assert all(after[number] == when for number, when in before.items())
    assert result.ok.all()


@pytest.mark.slow
def test_killed_interrupted_and_started_twice(tmp_path, whole):
    path = tmp_path / "runs.zarr"
    first, second, third = (start(path) for _ in range(3))
    try:
        go(first)
        until_some_are_done(path)
        # Somebody starts the same again, and somebody looks at it.
        says = rf"being filled by process {first.pid} on .*Wait for it or stop it"
        with pytest.raises(ep.SweepError, match=says):
            run_slow(path, mesh=one_device())
        half = xarray.open_zarr(path).load()
        assert dict(half.sizes) == dict(whole.to_xarray().sizes)
        time.sleep(random.random() / 10)
        end(first, signal.SIGKILL)
        killed = done(path)
        assert len(killed) < len(stored(path).chunks)
        # The kill released the store; Ctrl-C finishes the chunk.
        go(second)
        until_some_are_done(path, 2)
        _, err = end(second, signal.SIGINT)
        assert "what is in flight will be finished" in err
        assert second.returncode != 0 and "KeyboardInterrupt" in err
        said = re.search(r"([\d,]+) of 240 points are finished and kept in `(.*)`", err)
        assert said and said[2] == str(path) and "The same call goes on" in err
        spans = [stored(path).chunks.span(number) for number in done(path)]
        assert int(said[1]) == sum(b - a for a, b in spans)
        assert all(done(path)[n] == when for n, when in killed.items())
        go(third)
        until_some_are_done(path, 1)
        time.sleep(random.random() / 10)
        end(third, signal.SIGKILL)
        check(path, whole)
    finally:
        for child in (first, second, third):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.communicate()


def test_a_disk_that_is_full(tmp_path):
    space = ep.Linspace(0, 1, 2**12)
    fn = lambda x, key: jr.bits(key, (4,)) + (x * 0).astype("uint32")  # noqa: E731
    path, asked = tmp_path / "runs.zarr", {"batch_size": 512, "mesh": one_device()}
    key = jr.key(0)
    ep.sweep(fn, space, key=key, store=path, shard=(0, 2), **asked)
    before = done(path)
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
    assert done(path) == before
    assert [p.name for p in tmp_path.iterdir()] == ["runs.zarr"]
    result = ep.sweep(fn, space, key=key, store=path, **asked)
    same(result.values, ep.sweep(fn, space, key=key, **asked).values)


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
