"""Processes that are killed while they write: `python -m tests.support.kills`.

After each kill the same call goes on: no point is lost but those in flight, none is
computed twice, and nothing is left.
"""

import argparse
import collections
import os
import random
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

import jax
import numpy as np
import xarray

import eqx_pipe as ep
from tests.support.attack import (
    INSERTED,
    LOG,
    REDUCE,
    check_values,
    fails,
    mark,
    noted,
    plain,
    space,
    sweep,
)

ROOT = Path(__file__).parents[2]


def fill(path):
    return sweep(noted, space(40), path)


def reduced(path):
    return sweep(noted, space(40), path, reduce=REDUCE)


def resaved(path):
    sweep(plain, space(9), None).save(path, overwrite=True)
    return ep.SweepResult.load(path)


KILLS = {
    # What is there before, the call that is killed, and that which goes on.
    "fill": (None, fill, fill),
    "reduce": (None, reduced, reduced),
    "shard": (None, lambda path: sweep(noted, space(40), path, shard=(0, 2)), fill),
    "mend": (
        lambda path: mark(fails, space(40), path),
        *[lambda path: sweep(noted, space(40), path, resume="failed")] * 2,
    ),
    "append": (
        fill,
        lambda path: sweep(noted, space(60), path),
        lambda path: sweep(noted, space(60), path),
    ),
    "move": (
        fill,
        lambda path: sweep(noted, space(40, INSERTED), path),
        lambda path: sweep(noted, space(40, INSERTED), path),
    ),
    "save": (
        lambda path: sweep(plain, space(3), None).save(path),
        lambda path: sweep(noted, space(9), None).save(path, overwrite=True),
        resaved,
    ),
}

CHILD = """
import builtins, os, signal, sys, warnings
warnings.simplefilter("ignore")
from pathlib import Path
from tests.support import kills
left = [int(sys.argv[3])]

def count(module, name):
    usual = getattr(module, name)

    def call(place, *args, **asked):
        if str(place).startswith(sys.argv[2]):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return usual(place, *args, **asked)

    setattr(module, name, call)

for name in ("open", "replace", "unlink", "mkdir"):
    count(os, name)
count(builtins, "open")
kills.KILLS[sys.argv[1]][1](Path(sys.argv[2]))
print(-left[0])
"""


def run_child(kind, path, steps):
    """Run a call in a process that kills itself at a step; return all steps if not."""
    flags = os.environ.get("XLA_FLAGS", "").split()
    env = os.environ | {
        "PYTHONPATH": str(ROOT),
        "XLA_FLAGS": " ".join(flag for flag in flags if "device_count" not in flag),
        "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run(
        [sys.executable, "-c", CHILD, kind, str(path), str(steps)],
        env=env, cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    if done.returncode == -signal.SIGKILL:
        return None
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def there(path):
    """Return the points that have a value, as `noted` notes them."""
    if not (path / "zarr.json").exists():
        return set()
    data = xarray.open_zarr(path)
    if "block" in data.sizes:
        first = data["first_point"].values[data["status"].values == 1]
        index = np.ravel(first[:, None] + np.arange(data.attrs["block_points"]))
        return {10 * (i // 5) + i % 5 for i in index.tolist()}
    result = ep.SweepResult.load(path)
    return {int(x) for x in np.asarray(result.values["y"][...])[result.ok]}


def leftovers(path):
    """Return the files that belong to no chunk and no array of a store."""
    names = {str(p.relative_to(path)) for p in path.rglob("*") if p.is_file()}
    return {name for name in names if name.startswith((".parts/", ".growing"))}


def kill(kind, folder, rng, steps):
    """Kill one run at a step; raise unless the next one is as required."""
    before, _, after = KILLS[kind]
    path, log = folder / "r.zarr", folder / "log"
    os.environ.pop(LOG, None)
    if before is not None:
        before(path)
    had = there(path)
    os.environ[LOG] = str(log)
    run_child(kind, path, rng.randrange(1, steps + 1))
    first = [int(line) for line in log.read_text().split()] if log.exists() else []
    kept = there(path)
    log.unlink(missing_ok=True)
    result = after(path)
    second = [int(line) for line in log.read_text().split()] if log.exists() else []
    os.environ.pop(LOG)
    if kind == "reduce":
        same = jax.tree.map(np.array_equal, result.values, after(None).values)
        assert jax.tree.all(same), "another reduction"
    else:
        check_values(result, complete=True)
    assert result.ok.all()
    after(path)
    assert not leftovers(path), leftovers(path)
    if kind != "save":
        assert had <= kept, "points were lost that were there"
        chunk = 20 if kind == "reduce" else 4
        assert len(set(first) - kept) <= chunk, f"{len(set(first) - kept)} lost"
        assert not kept & set(second), f"{sorted(kept & set(second))} computed twice"
    return len(set(first) - kept)


def kills(count, seed, report=print):
    """Kill `count` runs; return how many were as required, by kind."""
    rng, found = random.Random(seed), collections.Counter()
    warnings.simplefilter("ignore")
    totals = {}
    for i in range(count):
        kind = list(KILLS)[i % len(KILLS)]
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if kind not in totals:
                os.environ.pop(LOG, None)
                if KILLS[kind][0] is not None:
                    KILLS[kind][0](folder / "dry.zarr")
                totals[kind] = run_child(kind, folder / "dry.zarr", -1) - 1
            try:
                lost = kill(kind, folder, rng, totals[kind])
                found[kind] += 1
                print(f"kill {i + 1}: {kind}, {lost} in flight", file=sys.stderr)
            except Exception:
                found["bad"] += 1
                report(f"kill {i} of {kind}: {traceback.format_exc(limit=-4)}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    print("kills:", dict(kills(asked.kills, asked.seed)), flush=True)


if __name__ == "__main__":
    # By its name: a store knows callbacks by their module.
    from tests.support import kills as module

    module.main()
