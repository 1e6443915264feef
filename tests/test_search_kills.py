"""Searches whose processes are killed: they end as if they had not been.

`HYPOTHESIS_PROFILE=thorough` kills 30, with methods of other packages too.
"""

import contextlib
import functools
import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from processes import plain_flags
from stores import SECONDS, one_device

import eqx_pipe as ep
import eqx_pipe.search as eps

pytest.importorskip("zarr")

THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
ROOT = Path(__file__).parents[1]
CHILD = """
import sys
import jax
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
import test_search_kills as kills
print("ready", flush=True)
sys.stdin.readline()
kills.run(sys.argv[1], sys.argv[2])
print("finished", flush=True)
"""

SPACE = {"x": ep.Linspace(-1.0, 1.0, 2), "y": ep.Linspace(0.0, 3.0, 2)}
GIVEN = {"key": jr.key(5), "batch_size": 2}


def _wait(x):
    time.sleep(float(os.environ.get(SECONDS, "0")))
    return x


def valley(p):
    x = jax.pure_callback(_wait, p["x"], p["x"], vmap_method="expand_dims")
    return (x - 0.3) ** 2 + jnp.abs(p["y"] - x)


class Wandering:
    """Draws around the best of the last round."""

    def init(self, space, key):
        return {"space": space, "key": key, "centre": np.full(2, 0.5), "u": None}

    def ask(self, state, n):
        here, then = jr.split(state["key"])
        u = state["centre"] + np.asarray(jr.uniform(here, (n, 2)) - 0.5) / 3
        u = np.clip(u, 0, 1)
        return state["space"].from_unit(u), {**state, "key": then, "u": u}

    def tell(self, state, result):
        return {**state, "centre": state["u"][result.best().index]}


class Logged:
    """Another method, of which each proposal is written to a file."""

    def __init__(self, method, file):
        self.method, self.file = method, file

    def init(self, space, key):
        return self.method.init(space, key), 0

    def ask(self, state, n):
        points, inner = self.method.ask(state[0], n)
        bits = np.asarray(points.to_pandas()).tobytes()
        with open(self.file, "a") as log:
            log.write(f"{state[1]} {hashlib.sha1(bits).hexdigest()}\n")
        return points, (inner, state[1] + 1)

    def tell(self, state, result):
        return self.method.tell(state[0], result), state[1]


def method(kind):
    if kind == "refine":
        return eps.refine()
    if kind == "evolution":
        from evosax.algorithms import CMA_ES

        return eps.evolution(CMA_ES)
    if kind == "optuna":
        from optuna.samplers import TPESampler

        return eps.optuna(functools.partial(TPESampler, n_startup_trials=8))
    return Wandering()


TRAINING = eps.Training(
    lambda p, key: p["y"] + jr.normal(key),
    lambda p, y, key: y - p["x"] * y + 0.1 * jr.normal(key),
    lambda p, y: valley({"x": p["x"], "y": y}),
)


def run(kind, folder):
    """A search, or a halving, and what it has found as arrays."""
    given = {**GIVEN, "store": folder, "mesh": one_device()}
    if kind == "halving":
        space = {"x": ep.Linspace(0.0, 1.0, 6), "y": ep.Linspace(0.0, 3.0, 6)}
        found = ep.halving(TRAINING, space, rungs=(2, 5, 9), **given)
        return found.scores, found.survivors, np.asarray(found.carry)
    logged = Logged(method(kind), f"{folder}.asked")
    # Both are strict in tests, and evosax is not.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        found = ep.explore(valley, SPACE, logged, rounds=6, n=12, **given)
    return found.rounds, found.to_pandas().to_numpy(float)


def start(kind, folder):
    """A process that will search once it is told to."""
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
    """The rounds or rungs that were there before the last one, and when written."""
    chunks = (file for path in stores(folder)[:-1] for file in path.glob("**/c/**/*"))
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
    """It goes on to what a search gives that was not killed, by the same proposals."""
    kept = whole_stores(folder)
    for found, wanted in zip(run(kind, folder), whole, strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert all(file.stat().st_mtime_ns == then for file, then in kept.items())
    if kind != "halving":
        asked = Path(f"{folder}.asked").read_text().splitlines()
        assert len(set(asked)) == 6 and len(asked) > 6


@pytest.mark.slow
@pytest.mark.parametrize("kind, kills", [("own", 2), ("halving", 1)])
def test_kills_change_nothing(tmp_path, kind, kills):
    whole = run(kind, tmp_path / "whole")
    kill_until_finished(kind, tmp_path / "killed", kills, more=1)
    check(kind, tmp_path / "killed", whole)


@pytest.mark.skipif(not THOROUGH, reason="takes minutes; HYPOTHESIS_PROFILE=thorough")
@pytest.mark.parametrize("kind", ["own", "refine", "evolution", "optuna", "halving"])
def test_killed_at_any_moment(tmp_path, kind):
    whole, kills, number = run(kind, tmp_path / "whole"), 0, 0
    while kills < 6:
        folder = tmp_path / f"killed{number}"
        kills += kill_until_finished(kind, folder, 3)
        check(kind, folder, whole)
        number += 1
    print(f"{kind}: {kills} kills in {number} searches")
