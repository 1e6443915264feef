"""Searches whose processes are killed: they end as if they had not been.

The profile `thorough` kills 30, with methods of other packages too.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from support.helpers import THOROUGH
from support.processes import plain_flags
from support.searches import run
from support.stores import SECONDS

pytest.importorskip("zarr")

ROOT = Path(__file__).parents[2]
CHILD = """
import sys
import jax
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
from support import searches
print("ready", flush=True)
sys.stdin.readline()
searches.run(sys.argv[1], sys.argv[2])
print("finished", flush=True)
"""


def start(kind, folder):
    """Start a process that will search once it is told to."""
    env = os.environ | {
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}",
        "XLA_FLAGS": plain_flags(),
        "JAX_PLATFORMS": "cpu",
        SECONDS: "0.05",
    }
    command = [sys.executable, "-W", "ignore", "-c", CHILD, kind, str(folder)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=env, **pipes)


def stores(folder):
    return sorted(Path(folder).glob("*.zarr"))


def whole_stores(folder):
    """Return when each round before the last one was written."""
    chunks = (file for path in stores(folder)[:-1] for file in path.glob("**/c.*"))
    return {file: file.stat().st_mtime_ns for file in chunks if file.is_file()}


def wait_for_stores(child, folder, count):
    limit = time.monotonic() + 300
    while child.poll() is None and len(stores(folder)) < count:
        assert time.monotonic() < limit
        time.sleep(0.002)


def kill_until_finished(kind, folder, most, more=0):
    """Kills processes that search in one folder; gives how many were killed.

    Each is killed when there are some `more` rounds, or in the middle of the next.
    """
    for kills in range(most):
        count = len(stores(folder))
        child, kept = start(kind, folder), whole_stores(folder)
        try:
            assert child.stdout.readline() == "ready\n"
            child.stdin.write("\n")
            child.stdin.flush()
            wait_for_stores(child, folder, count + random.randint(more, 2))
            time.sleep(random.random() / 2)
        finally:
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(signal.SIGKILL)
            out, _ = child.communicate()
        assert all(file.stat().st_mtime_ns == then for file, then in kept.items())
        if "finished" in out:
            return kills
    return most


def check(kind, folder, whole):
    """Check that a search goes on to the end of one that was not killed."""
    kept = whole_stores(folder)
    for found, wanted in zip(run(kind, folder), whole, strict=True):
        # To rounding: some was computed by a process with another number of devices.
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)
    assert all(file.stat().st_mtime_ns == then for file, then in kept.items())
    asked = Path(f"{folder}.asked").read_text().splitlines()
    assert len(set(asked)) == 6 and len(asked) > 6


SEARCHES = {"own": 2}
"""The number of kills for each kind of search; `thorough` tries all kinds."""

if THOROUGH:
    SEARCHES = dict.fromkeys(("own", "seeds", "refine", "evolution", "optuna"), 6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SEARCHES)
def test_kills_change_nothing(tmp_path, kind):
    whole, kills, number = run(kind, tmp_path / "whole"), 0, 0
    while kills < SEARCHES[kind] and number < 12:
        folder = tmp_path / f"killed{number}"
        most = min(3, SEARCHES[kind] - kills)
        kills += kill_until_finished(kind, folder, most, more=0 if THOROUGH else 1)
        check(kind, folder, whole)
        number += 1
