"""Processes that are killed while their store grows: nothing that was there is lost."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.helpers import THOROUGH
from support.processes import plain_flags
from support.stores import (
    SECONDS,
    WEIGHT,
    close,
    growing_space,
    one_device,
    run_slow,
    slow,
)

import eqx_pipe as ep

xarray = pytest.importorskip("xarray")
pytest.importorskip("zarr")

ROOT = Path(__file__).parents[2]
KILLS = 30 if THOROUGH else 3
CHILD = """
import sys
import jax
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
import eqx_pipe._sweep.sinks.store_sink as opened
from support import stores

def said(*args, grow=opened.grow):
    print("growing", flush=True)
    grow(*args)

opened.grow = said
print("ready", flush=True)
sizes = map(int, sys.stdin.readline().split())
stores.run_slow(sys.argv[1], stores.growing_space(*sizes))
print("finished", flush=True)
"""


def start(path):
    """A process that has a store grow once it is told how far."""
    env = os.environ | {
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}",
        "XLA_FLAGS": plain_flags(),
        "JAX_PLATFORMS": "cpu",
    }
    command = [sys.executable, "-W", "ignore", "-c", CHILD, str(path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=env, **pipes)


def points_of(path):
    """The points that have a value, as others see it, each of which is right."""
    data = xarray.open_zarr(path).load()
    n, x = data["n"].values, data["x"].values
    ok = data["status"].values == 1
    right = np.sin(x)[:, None, None] * np.asarray(WEIGHT)
    assert np.allclose(
        data["0"].values[ok], np.broadcast_to(right, data["0"].shape)[ok]
    )
    return {(int(n[i]), float(x[j])) for i, j in np.argwhere(ok)}


@pytest.mark.slow
def test_kills_while_a_store_grows_lose_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv(SECONDS, "0.01")
    path, sizes, growing = tmp_path / "runs.zarr", [3, 9], 0
    run_slow(path, growing_space(*sizes))
    had, child = points_of(path), start(path)
    for kill in range(KILLS):
        # Behind the last rows, whose files stay; now and then all values are copied.
        sizes = [sizes[0] + 1, sizes[1] * 2 - 1 if kill % 8 == 1 else sizes[1]]
        after = start(path)
        assert child.stdout.readline() == "ready\n"
        print(*sizes, file=child.stdin, flush=True)
        assert child.stdout.readline() == "growing\n"
        try:
            child.wait(random.random() ** 2 * 0.5)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
        said, _ = child.communicate()
        growing += "finished" not in said
        now = points_of(path)
        assert had <= now
        had, child = now, after
    child.kill()
    child.communicate()
    assert growing > KILLS / 2
    result = run_slow(path, growing_space(*sizes))
    close(
        result.values,
        ep.sweep(slow, growing_space(*sizes), batch_size=4, mesh=one_device()).values,
    )
    assert len(points_of(path)) == sizes[0] * sizes[1]
