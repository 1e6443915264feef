"""Stores in object storage: in memory, and on a local S3 server where there is one."""

import collections
import contextlib
import multiprocessing
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
import urllib.request
from concurrent.futures import ProcessPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import small_store as small
from support.executors import Plain

import eqx_pipe as ep
from eqx_pipe._cli import main
from eqx_pipe._store import Filling, Objects, create_store, open_store

obstore = pytest.importorskip("obstore")
stores = pytest.importorskip("obstore.store")

SPACE = {"x": ep.Linspace(0, 1, 12), "y": ep.Values([0.5, 2.0, 3.0])}
KEY = jax.random.key(3)
REQUESTS = ("put", "get", "head", "list", "list_with_delimiter", "delete")


def fn(p, key):
    noise = jax.random.normal(key, (2,))
    return {"v": p["x"] * p["y"], "w": noise + p["x"]}


@pytest.fixture
def requests(monkeypatch):
    """Count the requests to a bucket."""
    counts = collections.Counter()
    for name in REQUESTS:
        call = getattr(obstore, name)

        def counted(*args, name=name, call=call, **options):
            counts[name] += 1
            return call(*args, **options)

        monkeypatch.setattr(obstore, name, counted)
    return counts


def same(result, other):
    for leaf, right in zip(
        jax.tree.leaves(result.values), jax.tree.leaves(other.values), strict=True
    ):
        np.testing.assert_array_equal(np.asarray(leaf[...]), np.asarray(right[...]))


def test_laws(tmp_path, requests):
    """A store in a bucket has the bits of one on a disk; shards, load and resume."""
    options = {"key": KEY, "batch_size": 4}
    disk = ep.sweep(fn, SPACE, store=tmp_path / "r.zarr", **options)
    bucket = stores.MemoryStore()
    part = ep.sweep(fn, SPACE, store=bucket, shard=(1, 3), **options)
    assert 0 < part.ok.sum() < len(part)
    plan = ep.plan(fn, SPACE, store=bucket, **options)
    assert plan.missing == (~part.ok).sum()
    assert plan.store.startswith("memory://")
    same(ep.sweep(fn, SPACE, store=bucket, **options), disk)
    requests.clear()
    same(ep.sweep(fn, SPACE, store=bucket, **options), disk)
    assert not requests["put"] and not requests["delete"]
    # Statuses twice, each output, and a short list: 1,000 names a request.
    assert (requests["list"], requests["list_with_delimiter"]) == (2, 2 + 1)
    loaded = ep.SweepResult.load(bucket)
    same(loaded, disk)
    for picked in ([3, 30, 5], slice(4, 20, 3), 7):
        found, right = loaded.values["w"][picked], disk.values["w"][picked]
        np.testing.assert_array_equal(found, right)
    worked = ep.sweep(
        fn, SPACE, store=stores.MemoryStore(), executor=Plain(), **options
    )
    same(worked, disk)
    xarray = pytest.importorskip("xarray")
    from zarr.storage import ObjectStore

    opened = xarray.open_zarr(ObjectStore(bucket))
    np.testing.assert_array_equal(opened.v.values, disk.to_xarray().v.values)


def test_reductions_marks_and_mends():
    space, mean = ep.Linspace(0, 1, 40), ep.reduce.Mean()
    bucket = stores.MemoryStore()
    for _ in range(2):
        found = ep.sweep(jnp.sin, space, reduce=mean, store=bucket)
        same(found, ep.sweep(jnp.sin, space, reduce=mean))

    def broken(x):
        return jax.experimental.io_callback(
            lambda x: _refuse(x), jax.ShapeDtypeStruct((), "float32"), x
        )

    failing = {3.0, 5.0}

    def _refuse(x):
        if float(x) in failing:
            raise ValueError("no")
        return np.float32(x * 2)

    space, bucket = ep.Values(list(np.arange(8.0))), stores.MemoryStore()
    options = {"store": bucket, "on_error": "mark"}
    found = ep.sweep(broken, space, **options)
    assert np.flatnonzero(~found.ok).tolist() == [3, 5]
    failing.clear()
    found = ep.sweep(broken, space, resume="failed", **options)
    np.testing.assert_array_equal(found.values[...], np.arange(8) * 2)


def filled(bucket):
    """Return a process that fills a store in a bucket."""
    files = Objects(bucket, "m")
    if not files.exists("zarr.json"):
        create_store("sweep", files, small.layout())
    return Filling(open_store("sweep", files), has_locks=False)


def test_requests_of_a_chunk(requests):
    """A put for each output and the status; a mend reads first, and puts one more."""
    filling = filled(stores.MemoryStore())
    store = filling.store
    for number in range(len(store.chunks)):
        values = small.rows_of(store, number)
        status = np.ones(len(values[0]), np.int8)
        status[0] = 2 if number == 0 else 1
        requests.clear()
        filling.keep(number, None, values, status, {"no": np.flatnonzero(status == 2)})
        assert requests == {"put": 3}
    leaves = [leaf[:1] for leaf in small.rows_of(store, 0)]
    rows = np.array([0])
    requests.clear()
    filling.keep(0, rows, leaves, np.ones(1, np.int8))
    assert requests == {"put": 4, "get": 3, "head": 3}
    requests.clear()
    store.listed()
    assert requests == {"list": 1}


@pytest.mark.parametrize("whole", [True, False])
def test_two_writers_of_one_chunk(whole):
    """A process that is late replaces nothing: it reads again, and adds its rows."""
    bucket = stores.MemoryStore()
    one, other = filled(bucket), filled(bucket)
    store = one.store
    values, status = small.rows_of(store, 0), np.ones(store.chunks.points, np.int8)
    rounded = [leaf + leaf.dtype.type(1) for leaf in values]
    halves = None, None
    if not whole:
        filled(bucket).keep(0, None, [0 * leaf for leaf in values], 0 * status)
        halves = np.array([0]), np.arange(1, len(status))
    picked = [slice(None) if rows is None else rows for rows in halves]
    put, waiting = store.files.at_once, [True]

    def late(acts):
        if acts and acts[0].func == store.files.swap and waiting:
            waiting.clear()
            theirs = [leaf[picked[1]] for leaf in rounded]
            other.keep(0, halves[1], theirs, status[picked[1]])
        return put(acts)

    store.files.at_once = late
    one.keep(0, halves[0], [leaf[picked[0]] for leaf in values], status[picked[0]])
    assert not waiting and store.manifest(0).status.all()
    for k, right in enumerate(rounded):
        if not whole:
            right[0] = values[k][0]
        np.testing.assert_array_equal(store.read(0, k), right)


def test_searches_and_results(requests):
    """A search, a saved result and their `load`, in a bucket as on a disk."""
    bucket = stores.MemoryStore()
    points = ep.search.Design(np.linspace(0, 1, 6)[:, None])
    options = {"rounds": 3, "num": 2, "by": None}
    space = {"x": ep.Uniform(0, 4)}

    def square(p):
        return p["x"] ** 2

    right = ep.search.explore(square, space, points, **options)
    for _ in range(2):
        found = ep.search.explore(square, space, points, store=bucket, **options)
        same(found.result, right.result)
    same(ep.search.SearchResult.load(bucket).result, right.result)
    saved = stores.MemoryStore()
    right.result.save(saved)
    same(ep.SweepResult.load(saved), right.result)
    with pytest.raises(FileExistsError):
        right.result.save(saved)
    right.sweeps[0].save(saved, overwrite=True)
    same(ep.SweepResult.load(saved), right.sweeps[0])


def test_trainings():
    """A process whose checkpoint is not the newest any more ends, and replaces none."""
    bucket, space = stores.MemoryStore(), {"rate": ep.Values([0.1, 0.2])}
    training = ep.Training(
        lambda p: jnp.ones(3), lambda p, w: (w - p["rate"] * w, {"loss": jnp.sum(w)})
    )
    options = {"every": 2, "store": bucket}

    def names():
        found = sum(obstore.list(bucket), [])
        return {each["path"].partition("/")[0] for each in found}

    ep.train(training, space, 4, **options)
    first = names()
    assert len(first) == 4  # two checkpoints, each with its curves
    found = ep.train(training, space, 8, **options)
    same(found.latest, ep.train(training, space, 8, every=2).latest)
    same(ep.TrainResult.load(bucket).latest, found.latest)
    assert {"checkpoint", "checkpoint.before"} < first & names() and len(names()) == 4
    damaged = stores.MemoryStore()
    for each in sum(obstore.list(bucket), []):
        data = bytes(obstore.get(bucket, each["path"]).bytes())
        obstore.put(damaged, each["path"], data[each["path"] == "checkpoint" :])
    assert ep.TrainResult.load(damaged).step == 4
    same(ep.train(training, space, 8, every=2, store=damaged).latest, found.latest)
    assert ep.TrainResult.load(damaged).step == 8

    def rival(result):
        if result.step == 10:
            ep.train(training, space, 12, **options)

    with pytest.raises(RuntimeError, match="is being filled by another process"):
        ep.train(training, space, 12, callback=rival, **options)
    assert ep.TrainResult.load(bucket).step == 12


def test_refused(capsys):
    bucket = stores.MemoryStore()
    ep.sweep(jnp.sin, ep.Values([1.0, 2.0]), store=bucket)
    before = {x["path"]: x["e_tag"] for x in sum(obstore.list(bucket), [])}
    with pytest.raises(ep.SweepError, match="Copy the store to a disk with locks"):
        ep.sweep(jnp.sin, ep.Values([1.0, 2.0, 3.0]), store=bucket)
    with pytest.raises(ValueError, match="created by a different sweep|differs"):
        ep.sweep(jnp.cos, ep.Values([1.0, 2.0]), store=bucket)
    assert before == {x["path"]: x["e_tag"] for x in sum(obstore.list(bucket), [])}
    wrong = {
        "credentials": "s3://key:hidden@bucket/r.zarr",
        "credentials or options": "s3://bucket/r.zarr?token=hidden",
        "a name in it": "s3://bucket",
        "could not open `az://c/r.zarr`": "az://c/r.zarr",
    }
    for says, url in wrong.items():
        with pytest.raises(ValueError, match=says) as caught:
            ep.SweepResult.load(url)
        assert "hidden" not in str(caught.value)
    with pytest.raises(TypeError, match="conditional puts"):
        ep.sweep(jnp.sin, ep.Linspace(0, 1, 3), store=stores.LocalStore("/tmp"))
    foreign = stores.MemoryStore()
    obstore.put(foreign, "notes.txt", b"1")
    with pytest.raises(ValueError, match="is not a store"):
        ep.sweep(jnp.sin, ep.Linspace(0, 1, 3), store=foreign)


def test_damage(monkeypatch, capsys):
    bucket = stores.MemoryStore()
    monkeypatch.setattr("eqx_pipe._cli.as_files", lambda *_: Objects(bucket, "memory"))
    ep.sweep(jnp.sin, ep.Linspace(0, 1, 9), store=bucket)
    assert main(["verify", "memory"]) == 0
    obstore.put(bucket, "value/c.0", b"no values")
    with pytest.raises(OSError, match="value/c.0"):
        ep.SweepResult.load(bucket).values[...]
    assert main(["verify", "memory"]) == 1
    assert main(["repair", "memory"]) == main(["verify", "memory"]) == 0
    assert "1 chunks are now missing" in capsys.readouterr().out
    found = ep.sweep(jnp.sin, ep.Linspace(0, 1, 9), store=bucket)
    same(found, ep.sweep(jnp.sin, ep.Linspace(0, 1, 9)))


@pytest.fixture
def server(monkeypatch):
    """Start a local S3 server, whose secrets are in the environment."""
    program = shutil.which("moto_server")
    if program is None:
        pytest.skip("install moto[server] to run a local S3 server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    for name, value in {
        "ACCESS_KEY_ID": "visible",
        "SECRET_ACCESS_KEY": "hidden",
        "REGION": "us-east-1",
        "ENDPOINT": url,
        "ALLOW_HTTP": "true",
    }.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([program, "-p", str(port)], **quiet)
    try:
        for _ in range(300):
            with contextlib.suppress(OSError):
                request = urllib.request.Request(f"{url}/runs", method="PUT")
                urllib.request.urlopen(request, timeout=5)
                break
            time.sleep(0.1)
        yield process
    finally:
        process.kill()
        process.wait()


def _sin(p):
    return jnp.sin(p["x"])


SCRIPT = """
import sys
import eqx_pipe as ep
import jax.numpy as jnp
space = {"x": ep.Linspace(0, 1, 60)}
print(ep.sweep(lambda p: jnp.sin(p["x"]), space, store="s3://runs/a.zarr",
               batch_size=1).ok.sum())
"""


@pytest.mark.slow
def test_a_server(server, monkeypatch, capsys):
    """Two processes fill one store; one is killed, and the call is repeated."""
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    both = [subprocess.Popen(command, **pipes) for _ in range(2)]
    files = Objects(stores.from_url("s3://runs/a.zarr"), "a")
    while len(files.names("status")) < 10 and both[0].poll() is None:
        time.sleep(0.05)
    both[0].send_signal(signal.SIGKILL)
    for process in both:
        process.communicate()
    assert both[1].returncode == 0
    assert main(["status", "s3://runs/a.zarr"]) == 0
    assert "missing" in capsys.readouterr().out
    space = {"x": ep.Linspace(0, 1, 60)}
    found = ep.SweepResult.load("s3://runs/a.zarr")
    assert found.ok.all()
    same(found, ep.sweep(_sin, space, batch_size=1))
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        asked = {"store": "s3://runs/b.zarr", "executor": pool, "batch_size": 1}
        with monkeypatch.context() as patch:  # the workers write
            patch.setattr(Filling, "keep", None)
            same(ep.sweep(_sin, space, **asked), found)
    assert not Objects(stores.from_url("s3://runs/b.zarr"), "b").names(".parts")
    kept = [bytes(files.get(key)) for key in ("zarr.json", "status/zarr.json")]
    assert not any(word in data for data in kept for word in (b"visible", b"hidden"))
