"""Stores that are damaged at random: `python -m tests.support.attack --mutations 2000`.

After each damage a store is loaded, swept and grown: required are the right values, or
an error that names the store and a file of it. `kills` kills processes that write.
"""

import argparse
import collections
import dataclasses
import os
import random
import re
import shutil
import signal
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


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    print("mutations:", dict(mutations(asked.mutations, asked.seed)), flush=True)


if __name__ == "__main__":
    # By its name: a store knows callbacks by their module.
    from tests.support import attack

    attack.main()
