"""Stores that are damaged at random: `python -m tests.support.attack --mutations 2000`.

After each damage a store is loaded, swept and grown: required are the right values, or
an error that names the store and a file of it. Files of the user and those outside of
the store, to which links lead, must stay as they are. Metadata that are crafted, with
checksums that are right, may only cause wrong numbers. `faults` lets each call of the
operating system fail in turn; `kills.py` kills processes that write.
"""

import argparse
import builtins
import collections
import contextlib
import dataclasses
import errno
import functools
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from unittest import mock

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import eqx_pipe as ep
from eqx_pipe import _leaves
from eqx_pipe._store import Folder, format
from tests.support import trainings

try:
    import fcntl
except ImportError:
    fcntl = None

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


def looped(p):
    """Compute `plain` in ten steps."""
    y = jax.lax.fori_loop(0, 10, lambda _, y: y + p["a"], p["b"])
    return plain(p) | {"y": y}


@contextlib.contextmanager
def in_steps(press_at=-1):
    """Compute loops three steps at a time, with a save after each; press Ctrl-C."""
    calls = []

    def record(pace, *_):
        pace.steps = 3
        calls.append(0)
        if len(calls) == press_at:
            signal.raise_signal(signal.SIGINT)

    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    with contextlib.ExitStack() as stack:
        stack.callback(signal.signal, signal.SIGINT, usual)
        for name, value in [
            ("_sweep.trace.trace.LONG", 0),
            ("_run.pace.COMMIT_EVERY", 0.0),
            ("_run.pace._SAVE_PAUSE", 0),
            ("_run.pace.Pace.record", record),
        ]:
            stack.enter_context(mock.patch(f"eqx_pipe.{name}", value))
        yield


def stepped(fn, points, path, press_at=-1, **asked):
    """Sweep in steps, or leave a sweep in the middle of its points."""
    with in_steps(press_at), contextlib.suppress(KeyboardInterrupt):
        return sweep(fn, points, path, **asked)


_open = open  # a process that counts its steps replaces the builtin


def _note(x):
    if LOG in os.environ:
        with _open(os.environ[LOG], "ab", buffering=0) as log:
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
    check: object = check_values
    load: object = ep.SweepResult.load


def search(path, num=4):
    """Run a search with a folder; another `num` is refused."""
    design = ep.search.Design(np.linspace(0.05, 0.95, 16)[:, None])
    return ep.search.explore(
        lambda p: p["x"] ** 2,
        {"x": ep.Uniform(0.0, 1.0)},
        design,
        rounds=3,
        num=num,
        store=path,
        mesh=one_device(),
    )


def targets(folder):
    """Make one store of each kind."""
    full, half, failed, mended, grown, moved, states, saved, left, halves = (
        folder / name
        for name in "full half failed mended grown moved states saved.zarr".split()
        + ["left", "halves"]
    )
    stepped(looped, space(4), left, press_at=11)
    stepped(looped, space(4), halves, press_at=11, reduce=REDUCE)
    assert all([*(path / ".flights").iterdir()] for path in (left, halves))
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
    found = search(folder / "search")

    def check_search(result, complete):
        table, right = result.to_pandas(), found.to_pandas()
        assert len(table) <= len(right) and (not complete or len(table) == len(right))
        assert table.equals(right[: len(table)])

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
        Target(left, call(stepped, looped, four), call(stepped, looped, wide)),
        Target(halves, call(stepped, looped, four, reduce=REDUCE), loads=False),
        Target(saved, None),
        Target(
            folder / "search",
            search,
            check=check_search,
            load=ep.search.SearchResult.load,
        ),
    ]


def trained(folder):
    """Make stores of trainings: finished, half, with failures, ended, and by PBT."""

    def target(name, steps, more, **given):
        own = functools.partial(trainings.run, **given)
        right = {n: own(n) for n in (steps, more)}
        own(steps, store=folder / name)

        def check(result, complete):
            trainings.assert_prefix(result, right[more])
            assert not complete or result.step in [x.step for x in right.values()]

        def call(n):
            return lambda path: own(n, store=path)

        load = ep.TrainResult.load
        return Target(folder / name, call(steps), call(more), check=check, load=load)

    return [
        target("done", 24, 28),
        target("half", 8, 24),
        target("failed", 24, 28, kind="failing"),
        target("ended", 24, 28, kind="ended"),
        target("halved", 12, 24, kind="halving"),
    ]


def mutate(path, rng):
    """Damage a store at random; return what was done to which file."""
    kinds = [
        "bit",
        "bit",
        "digit",
        "cut",
        "swap",
        "delete",
        "garbage",
        "double",
        "junk",
    ]
    how = rng.choice([*kinds, *kinds, "folder", "user", "link", "visible", "crafted"])
    files = sorted(p for p in path.rglob("*") if p.is_file())
    file, other = rng.choice(files), rng.choice(files)
    if how == "visible":  # `cp -r runs.zarr/* copy.zarr/`
        for place in [p for p in path.rglob(".*") if p.is_dir()]:
            shutil.rmtree(place)
    elif how == "user":
        put_user_files(path, rng)
    elif how == "link":
        link_outside(path, file, rng)
    elif how == "folder":
        file.unlink()
        file.mkdir()
    elif how == "crafted":
        craft_one = {trainings.checkpoints.KEY: craft_checkpoint}
        roots = [p for p in files if p.name in craft_one or p.name == "zarr.json"]
        roots = [p for p in roots if p.name != "zarr.json" or is_root(p)]
        file = rng.choice(roots)
        craft_one.get(file.name, craft)(file, rng)
    elif how == "delete":
        file.unlink()
    else:
        data = damaged(how, file.read_bytes(), other.read_bytes(), rng)
        if how == "swap":
            other.write_bytes(file.read_bytes())
        file.write_bytes(data)
    return how, re.sub(r"[0-9a-f]{6,}|\d", "#", str(file.relative_to(path)))


def damaged(how, data, other, rng):
    """Return the bytes of a file after some damage; `other` are those of another."""
    data = bytearray(data)
    if how == "bit" and data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif how == "digit" and re.search(rb"\d", data):
        at = rng.choice([m.start() for m in re.finditer(rb"\d", data)])
        data[at] = rng.choice(b"0123456789")
    elif how == "cut":
        del data[rng.randrange(len(data) + 1) :]
    elif how == "garbage":
        data = rng.randbytes(rng.randrange(200))
    elif how == "double":
        data = data * 2  # `+=` cannot resize what it reads
    elif how == "junk":
        data += rng.randbytes(rng.randrange(1, 80))
    elif how == "swap":
        data = other
    return bytes(data)


MINE = "mine.tex"
"""The name of files that nobody but the user may change."""


def put_user_files(path, rng):
    """Put files and folders of the user into a store."""
    folders = [p for p in path.rglob("*") if p.is_dir() and p.name[0] != "."]
    for folder in [path, *rng.sample(folders, min(3, len(folders)))]:
        (folder / "figures").mkdir()
        for place in (folder / MINE, folder / "figures" / MINE):
            place.write_text("mine")
    (path / ".notes").mkdir()
    (path / ".notes" / MINE).write_text("mine")


def link_outside(path, file, rng):
    """Move a file or a folder of a store to the outside, and link to it."""
    outside = path.parent / "outside"
    outside.mkdir()
    (outside / MINE).write_text("mine")
    place = rng.choice([path / ".parts", path / ".locks", file.parent, file])
    if place == path:
        place = file
    target = outside / rng.choice([MINE, place.name])
    if place.is_symlink() or place.is_file():
        shutil.move(place, target)
    elif place.is_dir():
        target = outside / place.name
        shutil.move(place, target)
    else:
        target = outside
    place.symlink_to(target)


def untouched(path):
    """Return the content of the files of the user, and of all files outside."""
    places = [*path.parent.rglob("outside/**/*"), *path.rglob(MINE)]
    return {p: p.read_bytes() for p in places if p.is_file()}


ODD = [10**18, -1, 2**70, 1e300, True, None, "", "..", "../x", "a/b", [], {}, "x" * 300]


def craft(file, rng):
    """Change a part of the metadata of a store; its checksum is right."""
    data = json.loads(file.read_bytes())
    record = json.loads(data["attributes"].pop(format.RECORD).partition(" ")[2])
    places = []

    def find(node):
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], dict | list):
                find(node[key])

    find(record if rng.random() < 0.7 else data)
    node, key = rng.choice(places)
    if isinstance(node, dict) and rng.random() < 0.2:
        node[rng.choice(["../x", "a/b", ".locks"])] = node.pop(key)
    else:
        node[key] = rng.choice(ODD)
    if isinstance(data.get("attributes"), dict):
        file.write_bytes(format.sealed(data, record))


def is_root(file):
    return format.RECORD in file.read_text(errors="ignore")


def crafted(data):
    """Return changed checkpoints, by what was changed; their checksums are right."""
    arrays, entries = _leaves.unpack(data)
    deep = b'{"entries": ' + b"[" * 10**5 + b"]" * 10**5 + b', "leaves": []}'
    kinds = {
        **{f"no {name}": (arrays, [name, None]) for name in ("step", "curves")},
        "settings": (arrays, {"settings": {"training": 3}}),
        "no settings": (arrays, {"settings": {}}),
        "outside": (arrays, {"curves": "../t"}),
        "other curves": (arrays, {"curves": f"curves-{0:09}-{0:032x}.zarr"}),
        "text as a step": (arrays, {"step": "8"}),
        "negative step": (arrays, {"step": -8}),
        "large step": (arrays, {"step": 10**18, "decided": 10**18}),
        "columns": (arrays, {"columns": [["rate"], None]}),
        "no arrays": ([], {}),
        "an array less": (arrays[:-1], {}),
        "an array more": ([*arrays, arrays[0]], {}),
        "other shapes": ([x[:-1] for x in arrays], {}),
        "other dtypes": ([*arrays[:-1], arrays[-1].astype(complex)], {}),
        "other order": (arrays[::-1], {}),
        "far parents": ([*arrays[:2], arrays[2] + 10**6, *arrays[3:]], {}),
    }
    made = {"deep": b"eqx_pipe leaves 1\n%d\n" % len(deep) + deep}
    for kind, (leaves, changed) in kinds.items():
        if isinstance(changed, list):
            header = {k: x for k, x in entries.items() if k != changed[0]}
        else:
            header = {**entries, **changed}
        made[kind] = _leaves.pack(leaves, header)
    return made


def craft_checkpoint(file, rng):
    """Change a checkpoint of a training; its checksum is right."""
    file.write_bytes(rng.choice([*crafted(file.read_bytes()).values()]))


def put_checkpoint(file, kind):
    """Put something in place of a checkpoint: crafted, or no regular file."""
    data = file.read_bytes()
    file.unlink()
    if kind == "folder":
        file.mkdir()
    elif kind == "fifo":
        os.mkfifo(file)
    else:
        file.write_bytes(crafted(data)[kind])


class Hang(BaseException):
    """A step took too long."""


def _hang(*_):
    raise Hang


def attempt(step, path, reason=""):
    """Run a step; return `ok`, `told` for an error as required, or what is wrong."""
    signal.signal(signal.SIGALRM, _hang)
    signal.alarm(120)
    try:
        step()
        return "ok"
    except (OSError, ValueError, ep.SweepError) as error:
        named = f"{path}" in str(error) and re.search(r"zarr\.json|/\S*/", str(error))
        if named and reason in str(error) and str(error).startswith("`eqx_pipe."):
            return "told"
        return f"bare error: {traceback.format_exc(limit=-3)}"
    except AssertionError:
        return f"wrong: {traceback.format_exc(limit=-3)}"
    except BaseException as error:
        return f"{type(error).__name__}: {traceback.format_exc(limit=-4)}"
    finally:
        signal.alarm(0)


def mutations(count, seed, report=print, targets=targets):
    """Damage stores `count` times; return how often what came of it."""
    rng, found = random.Random(seed), collections.Counter()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = targets(folder)
        states = [target for target in made if not target.loads]
        right = states[0].call(states[0].path).values if states else None
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for i in range(count):
            target = rng.choice(made)
            path = folder / f"{i}" / target.path.name
            shutil.copytree(target.path, path)
            how, kind = mutate(path, rng)
            kept = untouched(path)
            for step, what in steps(target, path, right, how != "crafted"):
                result = attempt(what, path)
                if not kept.items() <= untouched(path).items():
                    result = "files of others were touched"
                now = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                if now > memory + 500_000:
                    memory, result = now, f"{now // 1024} MiB of memory"
                found[result if result in ("ok", "told") else "bad"] += 1
                if result not in ("ok", "told"):
                    report(f"{i}: {target.path.name}, {step}, {how} {kind}: {result}")
            shutil.rmtree(path.parent)
            if (i + 1) % 50 == 0:
                print(f"{i + 1} mutations: {dict(found)}", file=sys.stderr)
    return found


def checkpoints(count=1, seed=0, report=print):
    """Put each crafted checkpoint in place of the newest; return what came of it."""
    found = collections.Counter()
    with tempfile.TemporaryDirectory() as name:
        made = trained(Path(name))[1]
        file = made.path / trainings.checkpoints.KEY
        for kind in [*crafted(file.read_bytes()), "folder", "fifo"]:
            path = Path(name, kind, made.path.name)
            shutil.copytree(made.path, path)
            outside = Path(name, kind, "t")  # another store, which nobody names
            shutil.copytree(next(path.glob("curves-*8-*")), outside)
            put_checkpoint(path / file.name, kind)
            for step, what in steps(made, path, None, kind in ("folder", "fifo")):
                result = attempt(what, path)
                found[result if result in ("ok", "told") else "bad"] += 1
                if result not in ("ok", "told"):
                    report(f"{kind}, {step}: {result}")
    return found


def steps(target, path, right, exact=True):
    """Return what is done with a damaged store; results are `exact`, or crafted."""

    def check(result, complete):
        if exact:
            target.check(result, complete)

    def again():
        found = target.call(path)
        if target.loads:
            check(found, complete=True)
        elif exact:
            assert jax.tree.all(jax.tree.map(np.array_equal, found.values, right))

    named = {}
    if target.loads:
        named["load"] = lambda: check(target.load(path), complete=False)
    if target.call:
        named["sweep"] = again
    if target.grown:
        named["grow"] = lambda: check(target.grown(path), complete=True)
    return named.items()


SYSTEM = [
    *((os, name) for name in "open replace link unlink mkdir rmdir scandir".split()),
    *((os, name) for name in "listdir stat lstat fstat ftruncate pwrite".split()),
    (builtins, "open"),
    *([] if fcntl is None else [(fcntl, "flock")]),
]
CODES = (errno.EIO, errno.ENOSPC, errno.EACCES)


@contextlib.contextmanager
def failing(path, number, code):
    """Let one call of the operating system fail; yield a list of the calls made."""
    made, usual = [], [(*place, getattr(*place)) for place in SYSTEM]

    def fail(name, act):
        def call(place, *args, **asked):
            given = isinstance(place, int) and name != "open"
            if given or str(place).startswith(str(path)):
                made.append(name)
                if len(made) == number:
                    raise OSError(code, os.strerror(code))
            return act(place, *args, **asked)

        return call

    try:
        for module, name, act in usual:
            setattr(module, name, fail(name, act))
        yield made
    finally:
        for module, name, act in usual:
            setattr(module, name, act)


def faults(count, seed, report=print):
    """Let calls of the system fail, one in each run; return what came of it."""
    rng, found, most = random.Random(seed), collections.Counter(), {}
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made, saved = targets(folder), sweep(plain, space(3), None)
        made.append(Target(folder / "nothing", made[0].call, loads=False))
        for own in ("saved.zarr", "new.zarr"):
            save = lambda path: saved.save(path, overwrite=True)  # noqa: E731
            made.append(Target(folder / own, save, loads=own == "saved.zarr"))
        acts = [(it, name) for it in made for name in ("load", "call", "grown")]
        acts = [(it, name) for it, name in acts if getattr(it, name)]
        acts = [(it, name) for it, name in acts if name != "load" or it.loads]
        for i in range(count):
            target, what = acts[i % len(acts)]
            path = folder / f"{i}" / target.path.name
            act = functools.partial(getattr(target, what), path)
            path.parent.mkdir()
            if target.path.exists():
                shutil.copytree(target.path, path)
            if what == "call":  # something is left to compute
                for status in sorted(path.rglob("status/c*"))[:2]:
                    status.unlink()
            place, code = (target.path.name, what), rng.choice(CODES)
            number = rng.randrange(1, most.get(place, 100) + 1)
            waits = mock.patch.object(Folder, "wait")
            with waits, failing(path, number, code) as calls:
                first = attempt(act, path, os.strerror(code))
            most[place] = max(most.get(place, 1), len(calls))
            second = attempt(act, path)
            is_bad = first not in ("ok", "told") or second != "ok"
            found["bad" if is_bad else first] += 1
            if is_bad:
                call = f"call {number} ({calls[number - 1 : number]}) with {code}"
                report(f"{i}: {place}, {call}: {first}; then {second}")
            shutil.rmtree(path.parent)
    return found


def main():
    """Run the attacks; exit with 1 if one is bad, and raise if one after a kill is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", type=int, default=1000)
    parser.add_argument("--trainings", type=int, default=600)
    parser.add_argument("--kills", type=int, default=60, help="of trainings")
    asked = parser.parse_args()
    runs = {
        "mutations": lambda: mutations(asked.mutations, asked.seed),
        "faults": lambda: faults(asked.faults, asked.seed),
        "trainings": lambda: mutations(asked.trainings, asked.seed, targets=trained),
        "checkpoints": checkpoints,
    }
    bad = 0
    for what, run in runs.items():
        found = run()
        print(f"{what}:", dict(found), flush=True)
        bad += found["bad"]
    rng, kinds = random.Random(asked.seed), trainings.KINDS
    with tempfile.TemporaryDirectory() as name:
        each = -(-asked.kills // len(kinds))
        done = {k: trainings.kills(each, Path(name), k, rng) for k in kinds}
    print("kills of trainings:", done, flush=True)
    sys.exit(bad > 0)


if __name__ == "__main__":
    # By its name: a store knows callbacks by their module.
    from tests.support import attack

    attack.main()
