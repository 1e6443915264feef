"""Chunks computed elsewhere: the same values, and an end to workers that die."""

import concurrent.futures as cf
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from concurrent.futures.process import BrokenProcessPool
from unittest import mock

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.executors import SEEN, Cluster, Jobs, Plain
from support.helpers import fewest
from support.stores import (
    FUNCTIONS,
    KEY,
    close,
    one_device,
    plain,
    some_space,
    stored,
)

import eqx_pipe as ep

pytest.importorskip("cloudpickle")
pytest.importorskip("xarray")
pytest.importorskip("zarr")


@pytest.fixture(scope="module")
def threads():
    with cf.ThreadPoolExecutor(3) as pool:
        yield pool


def spawned(workers=1):
    return cf.ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("spawn")
    )


def test_costs_and_an_automatic_batch_size(threads):
    space = some_space(3)
    costs = np.arange(space.size)[::-1] % 3
    result = ep.sweep(plain, space, executor=threads, order_by=costs)
    asked = {"batch_size": result.batch_size, "mesh": one_device()}
    close(result.values, ep.sweep(plain, space, **asked).values)


def fails_above(p):
    return eqx.error_if(p, p > 2.5, "too large") * 2


def test_what_the_function_raises_is_not_tried_again():
    space, executor = ep.Linspace(0, 3, 13), Plain()
    with pytest.raises(ep.SweepError, match="at point 11") as caught:
        ep.sweep(fails_above, space, executor=executor, batch_size=2)
    assert caught.value.indices == (11,)
    assert len(set(executor.calls)) == len(executor.calls)


def test_a_chunk_is_tried_three_times(tmp_path):
    space, asked = ep.Linspace(0, 1, 10), {"batch_size": 2}
    twice = Plain({4: 2})
    result = ep.sweep(jnp.sin, space, executor=twice, **asked)
    close(result.values, ep.sweep(jnp.sin, space, mesh=one_device(), **asked).values)
    assert twice.calls.count(4) == 3 and len(twice.calls) == 7
    ever, path = Plain({4: 99}), tmp_path / "runs.zarr"
    with pytest.raises(ep.SweepError, match="3 times at the points 4 to 5") as caught:
        ep.sweep(jnp.sin, space, executor=ever, store=path, **asked)
    assert "the node went away" in str(caught.value)
    assert "8 of 10 points are finished" in caught.value.__notes__[-1]
    assert ever.calls.count(4) == 3
    mended = Plain()
    again = ep.sweep(jnp.sin, space, executor=mended, store=path)
    assert mended.calls == [4]
    close(again.values, result.values)


def test_chunks_in_flight_are_bounded(monkeypatch):
    monkeypatch.setattr("eqx_pipe._sweep.remote._IN_FLIGHT", 3)
    executor = Plain(asks=5)
    ep.sweep(jnp.sin, ep.Linspace(0, 1, 30), executor=executor, batch_size=1)
    assert executor.most == 3 and len(executor.calls) == 30


LONG = 0.0, 1e9
"""The shortest and the longest calls, in seconds."""


def in_turn(calls, free):
    return calls % free


@pytest.mark.parametrize(
    ("processes", "known", "deaths"),
    [(1, None, ()), (2, 2, ()), (2, None, ()), (5, 0, ()), (4, 4, (7, 20, 40))],
)
def test_the_function_travels_once_to_each_worker(processes, known, deaths):
    cluster, big = Cluster(processes, in_turn, deaths), jnp.arange(100_000.0)
    if known is not None:
        cluster._max_workers = known
    space = ep.Linspace(0, 1, 60)
    fn = lambda p: p + big[3]  # noqa: E731
    there = ep.sweep(fn, space, executor=cluster, batch_size=1)
    close(there.values, ep.sweep(fn, space, mesh=one_device()).values)
    assert processes <= cluster.carried <= max(2, processes) + 2 * len(deaths)
    assert cluster.submitted <= 60 + 10 * (processes + len(deaths))


class Held:
    """A value of a function, which notes when a worker unpacks it."""

    def __reduce__(self):
        return unpacked, ()


def unpacked():
    SEEN.append("unpacked")
    return Held()


def test_threads_of_a_worker_unpack_the_function_once(threads):
    held = Held()
    before = SEEN.count("unpacked")
    fn = lambda p: p if held else p  # noqa: E731
    assert ep.sweep(fn, ep.Linspace(0, 1, 30), executor=threads, batch_size=1).ok.all()
    assert SEEN.count("unpacked") == before + 1


@pytest.mark.parametrize("deaths", [(), range(1, 9), (3, 10)])
def test_jobs_are_submitted_in_arrays(deaths, monkeypatch):
    monkeypatch.setattr("eqx_pipe._sweep.remote._JOB_SECONDS", 1e9)
    jobs, space = Jobs(4, in_turn, deaths), ep.Linspace(0, 1, 100)
    there = ep.sweep(jnp.sin, space, executor=jobs, batch_size=1)
    close(there.values, ep.sweep(jnp.sin, space, mesh=one_device()).values)
    assert jobs.arrays[0] == 8
    if not deaths:
        # The first answer allows 16 chunks in a job.
        assert len(jobs.arrays) <= 2 and jobs.submitted <= 8 + 6


@fewest
@given(
    st.integers(1, 4),
    st.integers(0, 2**32 - 1),
    st.sets(st.integers(0, 30), max_size=2),
    st.booleans(),
    st.sampled_from(LONG),
)
def test_any_worker_may_take_a_call_or_die(processes, seed, deaths, pool, seconds):
    random = np.random.default_rng(seed)
    cluster = Cluster(processes, lambda _, many: random.integers(many), deaths)
    if pool:
        cluster._max_workers = processes
    asked = {"batch_size": 2, "key": KEY}
    with mock.patch("eqx_pipe._sweep.remote._CALL_SECONDS", (seconds, seconds)):
        there = ep.sweep(FUNCTIONS[1], some_space(0), executor=cluster, **asked)
    here = ep.sweep(FUNCTIONS[1], some_space(0), mesh=one_device(), **asked)
    close(there.values, here.values)


@pytest.mark.parametrize("seconds", LONG)
def test_short_chunks_share_a_call(seconds, monkeypatch):
    monkeypatch.setattr("eqx_pipe._sweep.remote._CALL_SECONDS", (seconds, seconds))
    cluster, space = Cluster(2, in_turn), ep.Linspace(0, 1, 1_000_000)
    asked = {"executor": cluster, "reduce": ep.reduce.Mean(), "batch_size": 256}
    assert ep.sweep(lambda x: x, space, **asked).points == 1_000_000
    assert (cluster.submitted < 100) == (seconds > 0)


def test_the_chunks_of_a_worker_that_died_travel_alone(monkeypatch):
    monkeypatch.setattr("eqx_pipe._sweep.remote._CALL_SECONDS", (LONG[1], LONG[1]))
    space, asked = ep.Linspace(0, 1, 250), {"batch_size": 1}
    twice, ever = Plain({100: 2}), Plain({100: 99})
    there = ep.sweep(jnp.sin, space, executor=twice, **asked)
    close(there.values, ep.sweep(jnp.sin, space, mesh=one_device(), **asked).values)
    assert twice.submitted < 150 and twice.calls.count(100) == 3
    with pytest.raises(ep.SweepError, match="3 times at the points 100 to 100"):
        ep.sweep(jnp.sin, space, executor=ever, **asked)


class Altered(Plain):
    """An executor whose workers get other arguments, and whose answers are kept."""

    def __init__(self, alter):
        super().__init__()
        self.alter, self.answers = alter, []

    def submit(self, fn, *args):
        def altered(*args):
            self.answers.append(fn(*self.alter(args)))
            return self.answers[-1]

        return super().submit(altered, *args)

    def carried(self):
        """Return whether each chunk came back with its values."""
        return [
            bool(rows)
            for *_, computed in self.answers
            if computed is not None
            for rows, _ in computed
        ]


REDUCED = {"reduce": ep.reduce.Mean()}


@pytest.mark.parametrize("asked", [{}, {"order_by": lambda x: -x}, REDUCED])
def test_workers_write_to_a_store_that_they_see(asked, tmp_path):
    asked, space = {**asked, "batch_size": 2}, ep.Linspace(0, 1, 201)
    expected = ep.sweep(jnp.sin, space, **asked).values
    for name, alter, carried in (
        ("seen", lambda args: args, False),
        ("elsewhere", lambda args: args[:3], True),
        ("closed", remove_parts, True),
    ):
        path, executor = tmp_path / name, Altered(alter)
        for call in range(2):
            there = ep.sweep(jnp.sin, space, store=path, executor=executor, **asked)
            close(there.values, expected)
            chunks = executor.carried()
            assert len(chunks) > 1 and set(chunks) == {carried}, call
        assert not (path / ".parts").exists()


def remove_parts(args):
    """Remove what says that the sweep runs, as if it had been killed."""
    for file in (args[3].files.path / ".parts").glob("*"):
        file.unlink()
    return args


def test_errors_and_failed_points_of_workers_that_write(tmp_path):
    space, executor = ep.Linspace(0, 3, 13), Altered(lambda args: args)
    asked = {"executor": executor, "store": tmp_path / "runs.zarr", "batch_size": 2}
    marked = ep.sweep(fails_above, space, on_error="mark", **asked)
    assert list(marked.errors) == [11, 12] and not any(executor.carried())
    with pytest.raises(ep.SweepError, match="failed at 2 points") as caught:
        ep.sweep(fails_above, space, **asked)
    assert caught.value.indices == (11, 12)
    again = ep.sweep(jnp.sin, space, resume="failed", **asked)
    close(again.values[11:], np.sin(np.linspace(0, 3, 13, dtype=np.float32)[11:]))


def test_a_worker_with_other_versions(tmp_path):
    def older(args):
        return args[0], args[1].replace(b"jax ", b"jax 0.0.", 1), *args[2:]

    with pytest.raises(ep.SweepError, match=r"jax 0\.0\..*the same environment"):
        ep.sweep(jnp.sin, ep.Linspace(0, 1, 3), executor=Altered(older))


class Hanging(Plain):
    """An executor whose first calls never end."""

    def __init__(self, calls):
        super().__init__()
        self.left = calls

    def submit(self, fn, *args):
        future = super().submit(fn, *args)
        self.left -= 1
        if self.left >= 0:
            future.asks = 10**9
        return future


def test_chunks_of_workers_that_hang_are_submitted_again(tmp_path):
    space, asked = ep.Linspace(0, 1, 6), {"batch_size": 1, "timeout": 0.2}
    there = ep.sweep(jnp.sin, space, executor=Hanging(3), **asked)
    close(there.values, ep.sweep(jnp.sin, space, mesh=one_device()).values)
    with pytest.raises(ep.SweepError, match=r"3 times at.*`timeout=0.2` seconds"):
        ep.sweep(jnp.sin, space, executor=Hanging(10**9), **asked)


def test_ctrl_c_ends_where_everything_can_be_cancelled(tmp_path):
    """As by Dask, whose futures say that they have not begun until they are done."""

    class Pending:
        def __init__(self):
            self.futures = []

        def submit(self, fn, *args):
            self.futures.append(cf.Future())
            if len(self.futures) == 3:
                os.kill(os.getpid(), signal.SIGINT)
            return self.futures[-1]

    executor = Pending()
    asked = {"store": tmp_path / "runs.zarr", "batch_size": 1}
    # The children of a shell's background job ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            ep.sweep(jnp.sin, ep.Linspace(0, 1, 8), executor=executor, **asked)
    finally:
        signal.signal(signal.SIGINT, before)
    assert all(future.cancelled() for future in executor.futures)


class Fading:
    """An executor that finishes two chunks; then SIGTERM arrives, and it fails.

    The third future never ends and cannot be cancelled, or its pool is broken.
    """

    def __init__(self, how):
        self.how, self.futures = how, []

    def submit(self, fn, *args):
        future = cf.Future()
        future.set_running_or_notify_cancel()
        self.futures.append(future)
        if len(self.futures) <= 2:
            future.set_result(fn(*args))
            return future
        signal.raise_signal(signal.SIGTERM)
        if self.how == "submit":
            raise BrokenProcessPool("a worker was ended")
        if self.how == "result":
            future.set_exception(BrokenProcessPool("a worker was ended"))
        if self.how == "retry":
            future.set_exception(RuntimeError("the node went away"))
        return future


@pytest.mark.parametrize("how", ["hangs", "submit", "result", "retry"])
def test_sigterm_ends_the_wait_for_a_lost_worker(how, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("eqx_pipe._sweep.remote._GRACE", 0.05)
    asked = {"store": tmp_path / "runs.zarr", "batch_size": 1}
    space, executor = ep.Linspace(0, 1, 8), Fading(how)
    with pytest.raises(SystemExit) as caught:
        ep.sweep(jnp.sin, space, executor=executor, **asked)
    assert caught.value.code == 128 + signal.SIGTERM and len(executor.futures) == 3
    assert ("1 of the chunks" in capsys.readouterr().err) == (how == "hangs")
    loaded = ep.SweepResult.load(asked["store"])
    assert np.asarray(loaded.ok).tolist() == [True, True] + 6 * [False]
    mended = Plain()
    close(
        ep.sweep(jnp.sin, space, executor=mended, **asked).values,
        np.sin(np.linspace(0, 1, 8, dtype=np.float32)),
    )
    assert mended.calls == [2, 3, 4, 5, 6, 7]


def test_a_chunk_that_another_process_finished_is_left_alone(tmp_path):
    """Parts of different sizes overlap, and nobody takes away what is finished."""
    asked = {"space": ep.Linspace(0, 1, 8), "store": tmp_path / "runs.zarr"}
    begun = []

    class Overtaken:
        def submit(self, fn, *args):
            future = cf.Future()
            future.set_result(fn(*args))
            if not begun:
                begun.append("begun")
                ep.sweep(jnp.sin, shard=(0, 1), **asked)
            return future

    ep.sweep(jnp.sin, shard=(0, 2), executor=Overtaken(), batch_size=1, **asked)
    assert begun and ep.SweepResult.load(asked["store"]).ok.all()


def test_settings_travel(threads):
    space = ep.Linspace(0, 1, 3)
    for debug, fn in (
        (jax.debug_nans, lambda x: 0 * jnp.log(x)),
        (jax.debug_infs, jnp.log),
    ):
        for where in ({}, {"executor": threads}):
            with debug(True), pytest.raises(FloatingPointError):
                ep.sweep(fn, space, **where)


def kills(p, marker):
    """Kills the worker that computes a point, as long as a file is there."""

    def callback(x):
        child = multiprocessing.parent_process() is not None
        if child and float(x) == 7 and os.path.exists(marker):
            os.kill(os.getpid(), signal.SIGKILL)
        return x

    return jax.pure_callback(callback, p, p, vmap_method="sequential") * 2


@pytest.mark.slow
def test_a_process_pool_and_a_worker_that_is_killed(tmp_path):
    """One scenario, since a process takes seconds to start."""
    marker, path = tmp_path / "marker", tmp_path / "runs.zarr"
    marker.touch()
    space, asked = ep.Values(np.arange(12.0, dtype=np.float32)), {"batch_size": 2}
    fn = lambda p: kills(p, str(marker))  # noqa: E731
    with spawned() as pool:
        with pytest.raises(ep.SweepError, match="accepts no more work.*new executor"):
            ep.sweep(fn, space, executor=pool, store=path, **asked)
    done = [n for n in range(6) if stored(path).manifest(n) is not None]
    assert done == [0, 1, 2]
    marker.unlink()
    with spawned() as pool:
        result = ep.sweep(fn, space, executor=pool, store=path)
        assert result.ok.all()
        close(result.values, np.arange(0, 24, 2, dtype=np.float32))
        # The same worker, for more: keys, a reduction, what it raises.
        key = {"key": KEY, "batch_size": 2}
        there = ep.sweep(FUNCTIONS[1], some_space(0), executor=pool, **key)
        here = ep.sweep(FUNCTIONS[1], some_space(0), mesh=one_device(), **key)
        close(there.values, here.values)
        reduced = ep.sweep(fn, space, executor=pool, reduce=ep.reduce.Sum(), **asked)
        assert reduced.values == 132 and reduced.points == 12
        with pytest.raises(ep.SweepError, match="at point 11") as caught:
            ep.sweep(fails_above, ep.Linspace(0, 3, 13), executor=pool, **asked)
        assert caught.value.indices == (11,)
        with pytest.raises(ep.SweepError, match="another program.*the same versions"):
            ep.sweep(elsewhere_other, ep.Linspace(0, 1, 4), executor=pool)


def elsewhere_other(p):
    """Double a number here, and triple it in another process."""
    return p * (2 if multiprocessing.parent_process() is None else 3)


@pytest.mark.slow
def test_dask(tmp_path):
    distributed = pytest.importorskip("distributed")
    # Workers in this process: those of their own take a quarter of a minute.
    options = {"processes": False, "dashboard_address": None, "n_workers": 2}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with distributed.Client(**options, threads_per_worker=1) as client:
            executor = client.get_executor()
            asked = {"key": KEY, "batch_size": 2}
            there = ep.sweep(FUNCTIONS[1], some_space(0), executor=executor, **asked)
    close(there.values, ep.sweep(FUNCTIONS[1], some_space(0), **asked).values)


def test_what_cannot_travel_is_said_before_anything_runs(monkeypatch):
    lock, executor = threading.Lock(), Plain()
    fn = lambda x: x if lock else x  # noqa: E731
    with pytest.raises(TypeError, match="cannot be sent to a worker.*inside of `fn`"):
        ep.sweep(fn, ep.Linspace(0, 1, 3), executor=executor)
    assert not executor.calls
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(ImportError, match=r"eqx_pipe\[distributed\]"):
        ep.sweep(jnp.sin, ep.Linspace(0, 1, 3), executor=executor)


def test_jitted_functions_among_static_values_travel():
    space = {"f": ep.Static([jnp.tanh, jnp.sin]), "x": ep.Linspace(-1, 1, 3)}

    def fn(point):
        return point["f"](point["x"])

    away = ep.sweep(fn, space, executor=Plain())
    close(away.values, ep.sweep(fn, space).values)


def test_workers_made_by_fork_are_refused():
    context = multiprocessing.get_context("fork")
    with cf.ProcessPoolExecutor(1, mp_context=context) as pool:
        with pytest.raises(ValueError, match=r"`fork`.*get_context\('spawn'\)"):
            ep.sweep(lambda x: x, ep.Linspace(0, 1, 3), executor=pool)
