"""Processes that fill one store together: shares that cover it, and no one's twice."""

import os
import re
import subprocess
import sys
import textwrap
import threading

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.stores import FUNCTIONS, KEY, close, one_device, plain, some_space, stored

import eqx_pipe as ep

xarray = pytest.importorskip("xarray")
pytest.importorskip("zarr")


@pytest.mark.parametrize(
    ("which", "size", "batch_size"),
    [(2, 3, 2), pytest.param(3, 4, 3, marks=pytest.mark.slow)],
)
def test_parts_together_are_the_whole(tmp_path, which, size, batch_size):
    fn, space = FUNCTIONS[which % 4], some_space(which)
    asked = {"key": KEY, "batch_size": batch_size, "mesh": one_device()}
    whole = ep.sweep(fn, space, **asked)
    path, done = tmp_path / "runs.zarr", 0
    for rank in reversed(range(size)):
        part = ep.sweep(fn, space, store=path, shard=(rank, size), **asked)
        share = int(part.ok.sum()) - done
        done += share
        # Fair: no share is more than a chunk larger than another.
        assert abs(share - space.size / size) <= stored(path).chunks.points
        status = part.to_xarray()["status"].values.ravel()
        assert np.array_equal(status == 1, part.ok)
        assert np.array_equal(status == 0, ~part.ok)
    assert done == space.size
    close(part.values, whole.values)
    assert ep.sweep(fn, space, store=path, key=KEY).ok.all()


def test_a_part_leaves_the_others_missing(tmp_path):
    space, path = ep.Linspace(0, 1, 12), tmp_path / "runs.zarr"
    asked = {"store": path, "batch_size": 2, "mesh": one_device()}
    part = ep.sweep(lambda x: (x + 1, x > 2), space, shard=(1, 3), **asked)
    there = np.isin(np.arange(12) // 2 % 3, 1)
    assert np.array_equal(part.ok, there)
    assert np.array_equal(np.isnan(part.values[0]), ~there)
    assert not part.values[1][...].any()
    assert part.best("0").index == 2
    whole = ep.sweep(lambda x: (x + 1, x > 2), space, **asked)
    assert whole.ok.all() and whole.best("0").index == 0


def test_a_few_points_are_shared_out_too(tmp_path):
    space = ep.Space([ep.Linspace(0, 1, 2), ep.Linspace(0, 1, 3)])
    for rank in range(6):
        part = ep.sweep(plain, space, store=tmp_path / "r", shard=(rank, 6))
        assert part.ok.sum() == rank + 1
    assert ep.sweep(plain, space, store=tmp_path / "r", shard=(6, 7)).ok.all()


def test_parts_that_begin_together_make_one_store(tmp_path):
    space, asked = some_space(0), {"batch_size": 1, "mesh": one_device()}
    results, errors = {}, []

    def one(rank):
        try:
            part = (rank, 4)
            where = {"store": tmp_path / "r", "shard": part}
            results[rank] = ep.sweep(plain, space, **where, **asked)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    whole = ep.sweep(plain, space, store=tmp_path / "r")
    assert whole.ok.all() and whole.batch_size == 1
    close(whole.values, ep.sweep(plain, space, **asked).values)
    assert [path.name for path in tmp_path.iterdir()] == ["r"]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("part", "kind"),
    [
        (3, TypeError),
        ((0, 1, 2), TypeError),
        ((0.0, 2), TypeError),
        ((True, 2), TypeError),
        ((2, 2), ValueError),
        ((-1, 2), ValueError),
        ((0, 0), ValueError),
    ],
)
def test_wrong_parts(part, kind, tmp_path):
    with pytest.raises(kind, match=r"0 <= index < count"):
        ep.sweep(jnp.sin, ep.Linspace(0, 1, 3), store=tmp_path / "r", shard=part)
    assert not list(tmp_path.iterdir())


def test_a_part_of_no_store_is_refused():
    with pytest.raises(ValueError, match="`shard` requires `store`.*same path"):
        ep.sweep(jnp.sin, ep.Linspace(0, 1, 3), shard=(0, 2))


def array(task, least=0, step=1, count=4):
    names = {"ID": task, "MIN": least, "STEP": step, "COUNT": count}
    return {f"SLURM_ARRAY_TASK_{name}": value for name, value in names.items()}


def ranks(rank, count, name="OMPI_COMM_WORLD_RANK", size="OMPI_COMM_WORLD_SIZE"):
    return {name: rank, size: count}


def step(rank, count):
    return ranks(rank, count, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")


COUNT = {"EQX_PIPE_SHARD_COUNT": 3}
ALONE = {"SLURM_PROCID": 0, "SLURM_NTASKS": 4}  # a batch script without `srun`
LAUNCHED = {
    "4, by SLURM_ARRAY": [array(i) for i in range(4)],
    "3, by SLURM_ARRAY": [array(i, 5, 2, 3) for i in (5, 7, 9)],
    "3, by PBS": [COUNT | {"PBS_ARRAY_INDEX": i} for i in range(3)],
    "3, by HQ_": [COUNT | {"HQ_TASK_ID": i} for i in range(3)],
    "3, by JOB_": [COUNT | {"JOB_COMPLETION_INDEX": i} for i in range(3)],
    "2, by OMPI": [ranks(i, 2) for i in range(2)],
    "2, by PMI": [ranks(i, 2, "PMI_RANK", "PMI_SIZE") for i in range(2)],
    "2, by SLURM_PROCID": [step(i, 2) for i in range(2)],
    # `mpirun` in Slurm starts its own process on each node by `srun`.
    "4, by OMPI": [ranks(i, 4) | step(i // 2, 2) for i in range(4)],
    "6, by SLURM_ARRAY_TASK_ID and SLURM_PROCID": [
        array(i, count=2) | step(j, 3) for i in range(2) for j in range(3)
    ],
    "2, by EQX_PIPE_SHARD": [
        {"EQX_PIPE_SHARD": f"{i}/2"} | array(7, 7, 1, 1) for i in range(2)
    ],
    "4, by SLURM_ARRAY_TASK_ID.": [array(i) | ALONE for i in range(4)],
    "all chunks: SLURM_NTASKS is 4, but `srun` did not": [ALONE],
    "all chunks, since no launcher": [{}],
}
UNKNOWN = {
    "task 7 is the only one.*requeue": array(7, 7, 1, 1),
    "task 7 is one of 2 without": array(7, 3, 1, 2),
    "`HQ_TASK_ID` is 7, and.*EQX_PIPE_SHARD_COUNT=16": {"HQ_TASK_ID": 7},
    "`PBS_ARRAY_INDEX` is 3 of 3.*count - 1": COUNT | {"PBS_ARRAY_INDEX": 3},
    "`EQX_PIPE_SHARD` is '7-16'.*7/16": {"EQX_PIPE_SHARD": "7-16"},
    "`EQX_PIPE_SHARD` is 4 of 4": {"EQX_PIPE_SHARD": "4/4"},
    "`PMI_RANK` is 'x'": ranks("x", 2, "PMI_RANK", "PMI_SIZE"),
}


@pytest.fixture
def launched(monkeypatch):
    def launch(environment):
        for name in list(os.environ):
            if re.match("EQX_PIPE_SHARD|SLURM_|PBS_|HQ_|JOB_COM|OMPI_|PMI_", name):
                monkeypatch.delenv(name)
        for name, value in environment.items():
            monkeypatch.setenv(name, str(value))

    return launch


@pytest.mark.parametrize("origin", LAUNCHED)
def test_the_processes_of_a_launcher_divide_the_chunks(
    origin, launched, tmp_path, capsys
):
    asked = {"store": tmp_path / "r", "shard": "auto", "batch_size": 1}
    asked["mesh"] = one_device()
    computed, space = [], ep.Linspace(0, 1, 12)
    for environment in LAUNCHED[origin]:
        launched(environment)
        computed.append(ep.sweep(jnp.sin, space, **asked).ok.sum())
        assert origin in capsys.readouterr().err
    many = len(computed)
    assert computed == [12 * (i + 1) // many for i in range(many)]


@pytest.mark.parametrize("message", UNKNOWN)
def test_a_share_that_the_launcher_does_not_tell(message, launched, tmp_path):
    launched(UNKNOWN[message])
    with pytest.raises(ValueError, match=message):
        ep.plan(jnp.sin, ep.Linspace(0, 1, 3), store=tmp_path / "r", shard="auto")


@settings(deadline=None)
@given(st.lists(st.integers(-12, 11)))
def test_the_statuses_of_points_are_as_in_the_dataset(partly, index):
    result, status = partly
    picked, expected = result[index], status[index]
    for marks, array in [(picked.status, expected), (picked.ok, expected == 1)]:
        assert marks.dtype == array.dtype and marks.tolist() == array.tolist()
    missing = np.zeros(0, bool) if picked.missing is None else picked.missing
    assert np.flatnonzero(missing).tolist() == np.flatnonzero(expected == 0).tolist()
    assert (picked.missing is None) == (0 not in expected)


@pytest.fixture(scope="module")
def partly(tmp_path_factory):
    """Return a result with missing and failed points, and their statuses."""
    path = tmp_path_factory.mktemp("partly") / "runs.zarr"
    fn = lambda x: eqx.error_if(x, (x > 2.5) & (x < 4.5), "no")  # noqa: E731
    asked = {"on_error": "mark", "batch_size": 2, "mesh": one_device()}
    space = ep.Values(np.arange(12.0, dtype=np.float32))
    result = ep.sweep(fn, space, store=path, shard=(1, 2), **asked)
    status = result.to_xarray()["status"].values.ravel()
    assert set(status) == {0, 1, 2}
    return result, status


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_share_of_many_points_takes_little_memory(tmp_path):
    code = f"""
        import re, eqx_pipe as ep
        space = {{"a": ep.Linspace(0, 1, 10**5), "b": ep.Linspace(0, 1, 10**4)}}
        fn = lambda p: p["a"] * p["b"]
        part = ep.sweep(fn, space, store={str(tmp_path / "r")!r}, shard=(5, 4096))
        (missing,) = re.findall("([0-9,]+) points missing: 0, 1, 2, 3, 4", repr(part))
        assert 0 < 10**9 - int(missing.replace(",", "")) < 10**6
        assert not part[: 10**6].ok.any() and part[10**6 : 2 * 10**6].ok.any()
        # `getrusage` would include the process that started this one.
        (peak,) = (line for line in open("/proc/self/status") if "VmHWM" in line)
        print(int(peak.split()[1]) // 1024)
    """
    env = {**os.environ, "XLA_FLAGS": ""}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    out = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    assert int(out.stdout) < 600
