"""Stores that are damaged at random, and processes that are killed while they write.

    python -m tests.support.attack --mutations 2000 --kills 100

After each damage a store is loaded, swept and grown: required are the right values, or
an error that names the store and a file of it. After each kill the same call goes on:
no point is lost but those in flight, none is computed twice, and nothing is left.
"""

import argparse
import collections
import dataclasses
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import eqx_pipe as ep

ROOT = Path(__file__).parents[2]
LOG = "EQX_PIPE_TESTS_LOG"
"""The file in which `noted` notes the points that are computed."""

BAD = 3.0
"""The value of `b` at which `fails` fails."""


def one_device():
    return jax.make_mesh((1,), ("x",), devices=jax.devices()[:1])


def outputs(a, b):
    """Return what the functions below give, by NumPy or by JAX."""
    return {
        "y": a * 10 + b,
        "v": (a * 10 + b)[..., None] * np.arange(1, 4, dtype=np.float32),
    }


def plain(p):
    return outputs(p["a"], p["b"]) | {"k": jnp.int32(p["a"])}


def fails(p):
    return plain(p | {"b": eqx.error_if(p["b"], p["b"] == BAD, "bad")})


def _note(x):
    if LOG in os.environ:
        with open(os.environ[LOG], "ab", buffering=0) as log:
            log.write("".join(f"{v:.0f}\n" for v in np.ravel(x)).encode())
    return x


def noted(p):
    """Note each point that is computed, as a number of its own."""
    x = p["a"] * 10 + p["b"]
    x = jax.pure_callback(_note, x, x, vmap_method="expand_dims")
    return plain(p) | {"y": x}


def space(a, b=(0, 1, 2, 3, 4)):
    return {
        "a": ep.Values(np.arange(a, dtype=np.float32)),
        "b": ep.Values(np.array(b, np.float32)),
        "name": ep.Static(["only"]),
    }


INSERTED = (7, 0, 1, 2, 3, 4)
REDUCE = {"sum": ep.reduce.Sum(by="y"), "min": ep.reduce.ArgMin(by="y")}


def sweep(fn, points, path, **asked):
    return ep.sweep(fn, points, store=path, batch_size=2, mesh=one_device(), **asked)


def mark(fn, points, path, **asked):
    return sweep(fn, points, path, on_error="mark", **asked)


def check_values(result, complete):
    """Raise unless each point with a value has the right one, and right coordinates."""
    columns = result.space.geometry.dims
    points = [result.space.point(i) for i in range(len(result))]
    a = np.array([float(p["a"]) for p in points])
    b = np.array([float(p["b"]) for p in points])
    assert sorted(columns) == ["a", "b", "name"]
    assert np.array_equal(a, np.sort(a)) and set(b) <= {0, 1, 2, 3, 4, 7}
    assert {str(p["name"]) for p in points} <= {"only"}
    right, ok = outputs(a, b) | {"k": a}, result.ok
    for name, values in result.values.items():
        found = np.asarray(values[...])
        assert np.array_equal(found[ok], right[name][ok]), name
    assert set(b[result.status == 2]) <= {BAD}
    assert {text[-3:] for text in result.errors.values()} <= {"bad"}
    data = result.to_xarray()
    assert np.array_equal(np.unique(data["a"].values), np.unique(a))
    assert not complete or not np.any(result.status == 0)


@dataclasses.dataclass(frozen=True)
class Target:
    """A store to damage, and the call that made it."""

    path: Path
    call: object
    grown: object = None
    loads: bool = True


def targets(folder):
    """Make one store of each kind."""
    full, half, failed, mended, grown, moved, states, saved = (
        folder / name
        for name in "full half failed mended grown moved states saved.zarr".split()
    )
    sweep(plain, space(4), full)
    sweep(plain, space(4), half, shard=(0, 2))
    mark(fails, space(4), failed)
    mark(fails, space(4), mended)
    mark(fails, space(3), grown)
    mark(fails, space(3), moved)
    sweep(plain, space(4), mended, resume="failed")
    mark(fails, space(4), grown)
    mark(fails, space(3, INSERTED), moved)
    sweep(plain, space(4), states, reduce=REDUCE)
    sweep(plain, space(4), None).save(saved)
    four, wide, other = space(4), space(5), space(4, INSERTED)

    def call(how, fn, points, **asked):
        return lambda path: how(fn, points, path, **asked)

    again = {"resume": "failed"}
    return [
        Target(full, call(sweep, plain, four), call(sweep, plain, wide)),
        Target(half, call(sweep, plain, four), call(sweep, plain, other)),
        Target(failed, call(mark, fails, four), call(mark, fails, other)),
        Target(
            mended, call(sweep, plain, four, **again), call(sweep, plain, wide, **again)
        ),
        Target(grown, call(mark, fails, four), call(mark, fails, wide)),
        Target(moved, call(mark, fails, space(3, INSERTED)), call(mark, fails, other)),
        Target(states, call(sweep, plain, four, reduce=REDUCE), loads=False),
        Target(saved, None),
    ]


def mutate(path, rng):
    """Damage a store at random; return what was done to which files."""
    files = sorted(p for p in path.rglob("*") if p.is_file())
    file, other = rng.choice(files), rng.choice(files)
    data = bytearray(file.read_bytes())
    how = rng.choice(
        ["bit", "bit", "digit", "cut", "swap", "delete", "garbage", "double"]
    )
    if how == "bit" and data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif how == "digit" and re.search(rb"\d", data):
        at = rng.choice([m.start() for m in re.finditer(rb"\d", data)])
        data[at] = rng.choice(b"0123456789")
    elif how == "cut":
        del data[rng.randrange(len(data) + 1) :]
    elif how == "garbage":
        data = bytearray(rng.randbytes(rng.randrange(200)))
    elif how == "swap":
        data = bytearray(other.read_bytes())
        other.write_bytes(file.read_bytes())
    elif how == "double":
        data = bytearray(other.read_bytes())
    if how == "delete":
        file.unlink()
    else:
        file.write_bytes(data)
    kind = re.sub(r"[0-9a-f]{6,}|\d", "#", str(file.relative_to(path)))
    return how, kind, [file, other] if how == "swap" else [file]


class Hang(BaseException):
    """A step took too long."""


def _hang(*_):
    raise Hang


def attempt(step, path):
    """Run a step; return `ok`, `told` for an error as required, or what is wrong."""
    signal.signal(signal.SIGALRM, _hang)
    signal.alarm(120)
    try:
        step()
        return "ok"
    except (OSError, ValueError, ep.SweepError) as error:
        if f"{path}" in str(error) and re.search(r"zarr\.json|/\S*/", str(error)):
            return "told"
        return f"error without a file: {type(error).__name__}: {error}"
    except AssertionError:
        return f"wrong: {traceback.format_exc(limit=-3)}"
    except BaseException as error:
        return f"{type(error).__name__}: {traceback.format_exc(limit=-4)}"
    finally:
        signal.alarm(0)


def mutations(count, seed, report=print):
    """Damage stores `count` times; return how often what came of it."""
    rng, found = random.Random(seed), collections.Counter()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = targets(folder)
        right = made[-2].call(made[-2].path).values
        for i in range(count):
            target = rng.choice(made)
            path = folder / f"{i}.zarr"
            shutil.copytree(target.path, path)
            done = mutate(path, rng)
            for step, what in steps(target, path, right):
                result = attempt(what, path)
                found[result if result in ("ok", "told") else "bad"] += 1
                if result not in ("ok", "told"):
                    report(
                        f"mutation {i} of {target.path.name}, {step}, {done}: {result}"
                    )
            shutil.rmtree(path)
            if (i + 1) % 50 == 0:
                print(f"{i + 1} mutations: {dict(found)}", file=sys.stderr)
    return found


def steps(target, path, right):
    """Return what is done with a damaged store."""

    def load():
        check_values(ep.SweepResult.load(path), complete=False)

    def again():
        found = target.call(path)
        if target.loads:
            check_values(found, complete=True)
        else:
            assert jax.tree.all(
                jax.tree.map(lambda x, y: np.all(x == y), found.values, right)
            )

    def grow():
        check_values(target.grown(path), complete=True)

    named = {"load": load if target.loads else None}
    named |= {"sweep": target.call and again, "grow": target.grown and grow}
    return [(name, step) for name, step in named.items() if step]


def fill(path):
    return sweep(noted, space(40), path)


def resaved(path):
    sweep(plain, space(9), None).save(path, overwrite=True)
    return ep.SweepResult.load(path)


KILLS = {
    # What is there before, the call that is killed, and that which goes on.
    "fill": (None, fill, fill),
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
import os, signal, sys, warnings
warnings.simplefilter("ignore")
from pathlib import Path
from tests.support import attack
from eqx_pipe._sweep.store import Folder
left = [int(sys.argv[3])]

def counted(method):
    def call(self, *args):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return method(self, *args)
    return call

for name in ("put", "_in_folder", "remove"):
    setattr(Folder, name, counted(getattr(Folder, name)))
attack.KILLS[sys.argv[1]][1](Path(sys.argv[2]))
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
    check_values(result, complete=True)
    assert result.ok.all()
    after(path)
    assert not leftovers(path), leftovers(path)
    if kind != "save":
        assert had <= kept, "points were lost that were there"
        chunk = 4
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
    parser.add_argument("--mutations", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    print("mutations:", dict(mutations(asked.mutations, asked.seed)), flush=True)
    print("kills:", dict(kills(asked.kills, asked.seed)), flush=True)


if __name__ == "__main__":
    # By its name: a store knows callbacks by their module.
    from tests.support import attack

    attack.main()
