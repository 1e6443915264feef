"""A sweep stops inside of its points, and the same call goes on there."""

import contextlib
import multiprocessing
import os
import re
import signal
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import long_points
from support.executors import Plain
from support.helpers import THOROUGH, fewest, slow_unless
from support.stores import one_device

import eqx_pipe as ep
import eqx_pipe.testing as ept

xarray = pytest.importorskip("xarray")
pytest.importorskip("zarr")

BUDGETS = st.lists(st.sampled_from([1, 2, 3, 7, 50, 1000]), min_size=1, max_size=6)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Split every loop, save after every call, and have chunks of few batches."""
    monkeypatch.setattr("eqx_pipe._sweep.trace.trace.LONG", 0)
    monkeypatch.setattr("eqx_pipe._run.pace.COMMIT_EVERY", 0.0)
    monkeypatch.setattr("eqx_pipe._run.pace._SAVE_PAUSE", 0)
    monkeypatch.setattr("eqx_pipe._store.partition._AT_LEAST", 3)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Steps:
    """Gives each device call a number of steps, and presses Ctrl-C at one of them."""

    def __init__(self, monkeypatch, budgets=(3,)):
        self.budgets, self.calls, self.press_at, self.steps = list(budgets), 0, 0, 0
        record = "eqx_pipe._run.pace.Pace.record"
        monkeypatch.setattr(record, lambda pace, *seen: self.record(pace, *seen))

    def record(self, pace, steps, *_):
        self.calls += 1
        self.steps += steps
        pace.steps = self.budgets[self.calls % len(self.budgets)]
        if self.calls == self.press_at:
            signal.raise_signal(signal.SIGINT)


def train(p, key):
    """Run a scan with keys in its carry and stacked outputs, and then another loop."""

    def step(carry, x):
        w, key = carry
        key, own = jr.split(key)
        w = jnp.tanh(p["rate"] * w + jr.normal(own, (3,)) * x)
        return (w, key), (w.sum(), own)

    (w, key), (curve, keys) = jax.lax.scan(step, (jnp.ones(3), key), jnp.arange(9.0))
    ready = jax.lax.fori_loop(0, 7, lambda _, w: jnp.sin(w) + p["rate"], w)
    return {"w": w, "key": key, "curve": curve, "keys": keys, "ready": ready}


def solve(p, key):
    """Loops whose length depends on the point, also in reverse and of no step."""

    def goes(carry):
        return carry[0] < p["rate"] * 10

    n, x = jax.lax.while_loop(goes, lambda c: (c[0] + 1, jnp.cos(c[1])), (0, 1.0))
    xs = jnp.linspace(0, x, 5)
    back = jax.lax.scan(lambda c, y: (c * 0.5 + y, c), x, xs, reverse=True)
    return n, x, back


def solver(p, key):
    """Run a checkpointed loop of Equinox, and its gradient, in a scan."""

    def energy(x):
        def step(c):
            return c[0] + 1, jnp.sin(c[1]) + x

        def goes(c):
            return c[0] < jnp.where(x > 1, 7, 3)

        loop = eqx.internal.while_loop
        return loop(goes, step, (0, x), kind="checkpointed", max_steps=16)[1]

    x, g = jax.lax.scan(lambda c, _: (c * 0.9, jax.grad(energy)(c)), p["rate"], None, 6)
    return x, g, energy(x)


FUNCTIONS = slow_unless([train], [train, solve, solver])
SPACE = {"rate": ep.Linspace(0.1, 1.5, 6), "seed": ep.Seeds(2)}


def swept(fn, **options):
    options = {"batch_size": 2, "key": jr.key(0), "progress": False, **options}
    return ep.sweep(fn, SPACE, **options)


def bits(result):
    leaves = jax.tree.leaves(result.values)
    whole = [leaf if isinstance(leaf, jax.Array) else leaf[...] for leaf in leaves]
    keys = [jnp.issubdtype(x.dtype, jax.dtypes.prng_key) for x in whole]
    pairs = zip(whole, keys, strict=True)
    return [np.asarray(jr.key_data(x) if is_key else x) for x, is_key in pairs]


def assert_same(a, b):
    for x, y in zip(bits(a), bits(b), strict=True):
        assert np.array_equal(x, y, equal_nan=x.dtype.kind == "f")


@pytest.mark.parametrize("fn", FUNCTIONS)
@given(budgets=BUDGETS, batch=st.sampled_from([1, 2, 5]), few=st.booleans())
@fewest
def test_budgets_change_no_bit(fn, budgets, batch, few):
    """A sweep that is left at any steps equals one that is not, and an unsplit one."""
    options = {"batch_size": batch, "mesh": one_device() if few else None}
    with pytest.MonkeyPatch.context() as monkeypatch:
        Steps(monkeypatch, [10**6])
        whole = swept(fn, **options)
        Steps(monkeypatch, budgets)
        assert_same(swept(fn, **options), whole)
        ordered = swept(fn, order_by=-np.arange(12), **options)
        monkeypatch.setattr("eqx_pipe._sweep.trace.trace.LONG", np.inf)
        plain = swept(fn, **options)
    for x, y, z in zip(bits(whole), bits(plain), bits(ordered), strict=True):
        if x.dtype.kind != "f":
            assert np.array_equal(x, y) and np.array_equal(x, z)
        assert np.allclose(x, y, atol=1e-5) and np.allclose(x, z, atol=1e-5)


@pytest.mark.parametrize("fn", FUNCTIONS)
@given(data=st.data())
@fewest
def test_an_interrupted_sweep_goes_on_in_the_middle(fn, data, tmp_path_factory):
    path = tmp_path_factory.mktemp("flights") / "runs.zarr"
    budgets = data.draw(BUDGETS)
    options = {"order_by": data.draw(st.sampled_from([None, -np.arange(12)]))}
    options["mesh"] = data.draw(st.sampled_from([None, one_device()]))
    with pytest.MonkeyPatch.context() as monkeypatch:
        if data.draw(st.booleans()):
            without_locks(monkeypatch)
        counted = Steps(monkeypatch, budgets)
        whole = swept(fn, store=path.with_name("whole.zarr"), **options)
        needed, pressed = counted.steps, 0
        steps = Steps(monkeypatch, budgets)
        for _ in range(3):
            steps.press_at = steps.calls + data.draw(st.integers(1, 6))
            try:
                swept(fn, store=path, **options)
            except KeyboardInterrupt as error:
                pressed += 1
                assert "kept" in error.__notes__[-1]
        steps.press_at = 0
        assert_same(swept(fn, store=path, **options), whole)
        # Calls are barriers, so devices wait for each other a little more often.
        assert steps.steps <= needed + 1000 * pressed
    assert not (path / ".flights").exists()


def test_a_whole_sweep_leaves_no_flight(tmp_path, monkeypatch):
    without_locks(monkeypatch)
    Steps(monkeypatch)
    swept(train, store=tmp_path / "runs.zarr", mesh=one_device())
    assert not list((tmp_path / "runs.zarr" / ".flights").glob("*"))


def test_a_process_that_goes_on_compiles_one_program(tmp_path, monkeypatch):
    options = {"path": tmp_path / "runs.zarr", "fn": lambda p, key: train(p, key)["w"]}
    left_at(monkeypatch, **options)
    long_points.forget_programs(monkeypatch)
    one = pytest.raises(AssertionError, match=r"got 1: jit\(run\)")
    with one, ept.assert_compiles(0):
        swept(options["fn"], store=options["path"], mesh=one_device())


def without_locks(monkeypatch):
    monkeypatch.setattr("eqx_pipe._store.disk._locked", lambda *_: False)


def left_at(monkeypatch, path, calls=2, fn=train, **options):
    """Interrupt a sweep after some device calls of three steps; return the file."""
    steps = Steps(monkeypatch)
    steps.press_at = calls
    with pytest.raises(KeyboardInterrupt) as caught:
        swept(fn, store=path, mesh=one_device(), **options)
    steps.press_at = 0
    (file,) = (path / ".flights").iterdir()
    return steps, file, caught.value


def loss(p, key):
    return train(p, key)["ready"].sum()


@pytest.mark.parametrize("over", ["points", "cells", "all"])
def test_the_note_says_how_far_the_points_are(tmp_path, monkeypatch, over):
    path, options = tmp_path / "runs.zarr", {}
    if over != "points":
        options["reduce"] = ep.reduce.Max(over="seed" if over == "cells" else None)
    steps, _, error = left_at(monkeypatch, path, fn=loss, **options)
    assert "0 of 12 points are finished" in error.__notes__[0]
    assert "2 at step 4 of 16" in error.__notes__[0]
    assert error.result.missing is not None
    steps.calls = steps.steps = 0
    swept(loss, store=path, mesh=one_device(), **options)
    assert steps.steps == 6 * 16 - 4  # six batches


def test_a_loop_that_no_output_needs_is_not_computed(tmp_path, monkeypatch):
    def fn(p, key):
        return train(p, key)["w"].sum()

    _, _, error = left_at(monkeypatch, tmp_path / "runs.zarr", fn=fn)
    assert "2 at step 4 of 9" in error.__notes__[0]


def test_an_interrupted_sweep_in_a_bucket_goes_on_in_the_middle(monkeypatch):
    bucket = pytest.importorskip("obstore.store").MemoryStore()
    steps, one = Steps(monkeypatch), one_device()
    whole = swept(loss, mesh=one)
    steps.press_at = steps.calls + 2
    with pytest.raises(KeyboardInterrupt):
        swept(loss, store=bucket, mesh=one)
    steps.press_at = steps.steps = 0
    assert_same(swept(loss, store=bucket, mesh=one), whole)
    assert steps.steps == 6 * 16 - 4
    left = [file["path"] for files in bucket.list(".flights") for file in files]
    assert not left


@pytest.mark.parametrize("over", ["points", "all"])
def test_a_worker_goes_on_where_another_one_died(over, tmp_path, monkeypatch):
    class Death(BaseException):
        pass

    class Mortal(Plain):
        def submit(self, fn, *args):
            def work(*args):
                try:
                    return fn(*args)
                except Death:
                    raise RuntimeError("the node went away") from None

            return super().submit(work, *args)

    def die(_):
        raise Death

    options = {
        "executor": Mortal(),
        "reduce": ep.reduce.Max() if over == "all" else None,
    }
    steps = Steps(monkeypatch)
    whole = swept(loss, store=tmp_path / "whole.zarr", **options)
    needed, steps.steps, steps.press_at = steps.steps, 0, steps.calls + 4
    monkeypatch.setattr(signal, "raise_signal", die)
    path = tmp_path / "runs.zarr"
    assert_same(swept(loss, store=path, **options), whole)
    assert steps.calls > steps.press_at
    # The last call is lost, and not the seven steps before it.
    assert needed < steps.steps < needed + 7
    assert not list((path / ".flights").glob("*"))


def test_a_flight_that_cannot_go_on_begins_again_and_is_kept(
    tmp_path, monkeypatch, caplog
):
    path = tmp_path / "runs.zarr"
    steps, file, _ = left_at(monkeypatch, path)
    whole, data = swept(train, mesh=one_device()), file.read_bytes()
    elsewhere = "eqx_pipe._sweep.flight_files._processor"
    with monkeypatch.context() as other:
        other.setattr(elsewhere, lambda: "another processor")
        steps.press_at = steps.calls + 2
        with pytest.raises(KeyboardInterrupt):
            swept(train, store=path, mesh=one_device())
    assert "processor:" in caplog.text and "begin again" in caplog.text
    assert file.read_bytes() == data and len(list(file.parent.iterdir())) == 2
    steps.press_at = steps.steps = 0
    assert_same(swept(train, store=path, mesh=one_device()), whole)
    assert steps.steps == 6 * 16 - 4 and not file.parent.exists()


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "text", "older"])
def test_damaged_flights_begin_again(tmp_path, monkeypatch, damage, caplog):
    path = tmp_path / "runs.zarr"
    steps, file, _ = left_at(monkeypatch, path, calls=9)
    data = bytearray(file.read_bytes())
    if damage == "older":  # it lies before rows that are finished
        for status in (path / "status").iterdir():
            status.unlink()
    else:
        data[len(data) // 2] ^= 1
        cut = bytes(data[: len(data) // 2])
        changed = {"empty": b"", "cut": cut, "flipped": bytes(data), "text": b"{}" * 9}
        file.write_bytes(changed[damage])
    assert_same(
        swept(train, store=path, mesh=one_device()), swept(train, mesh=one_device())
    )
    assert "begin again" in caplog.text and not file.parent.exists()


def fails(p, key):
    """Fail at a step that depends on the point, which few points reach."""

    def step(w, k):
        w = jnp.sin(w) + 0.1 * p["rate"]
        return eqx.error_if(w, (w > 0.7) & (k > 4 + 9 * p["rate"]), "diverged"), w

    return jax.lax.scan(step, p["rate"] + jr.uniform(key), jnp.arange(24.0))


@given(
    budgets=BUDGETS,
    batch=st.sampled_from([1, 3, 5]),
    few=st.booleans(),
    presses=st.lists(st.integers(1, 6), max_size=2),
)
@fewest
def test_failed_points_are_marked(budgets, batch, few, presses, tmp_path_factory):
    path = tmp_path_factory.mktemp("flights") / "runs.zarr"
    options = {"batch_size": batch, "mesh": one_device() if few else None}
    options["on_error"] = "mark"
    with pytest.MonkeyPatch.context() as monkeypatch:
        steps = Steps(monkeypatch, budgets)
        found = swept(fails, **options)
        for press in presses:
            steps.press_at = steps.calls + press
            with contextlib.suppress(KeyboardInterrupt):
                swept(fails, store=path, **options)
        steps.press_at = 0
        there = swept(fails, store=path, **options)
        with pytest.raises(ep.SweepError, match="at point .*diverged") as caught:
            swept(fails, **options | {"on_error": "raise"})
        monkeypatch.setattr("eqx_pipe._sweep.trace.trace.LONG", np.inf)
        plain = swept(fails, **options)
    assert 0 < plain.ok.sum() < 12 and not plain.ok[caught.value.indices[0]]
    for each in (found, there):
        assert each.errors == plain.errors
        for x, y in zip(bits(each), bits(plain), strict=True):
            assert np.allclose(x, y, atol=1e-5, equal_nan=True)
    assert_same(found, there)


def test_the_search_for_a_failed_point_begins_at_the_last_save(monkeypatch):
    def late(p, key):
        def step(w, k):
            w = eqx.error_if(jnp.sin(w), (p["rate"] > 1.4) & (k == 280), "late")
            return w, None

        return jax.lax.scan(step, p["rate"], jnp.arange(300))

    Steps(monkeypatch, [10])
    entered = long_points.entered(monkeypatch)
    found = swept(late, batch_size=4, mesh=one_device(), on_error="mark")
    assert found.ok.sum() == 10
    assert sum(entered) <= 3 * 310 + 10 * 2 * 8  # three batches, and the search


def final(p, key):
    """Return a number of a training, which fails for large rates."""
    loss = train(p, key)["w"].sum()
    return eqx.error_if(loss, p["rate"] > 1.3, "diverged")


REDUCERS = {"mean": ep.reduce.Mean(), "best": ep.reduce.TopK(3)}


@pytest.mark.parametrize("over", slow_unless(["seed"], [None, "seed", "rate"]))
@given(budgets=BUDGETS, presses=st.lists(st.integers(1, 9), min_size=1, max_size=3))
@fewest
def test_an_interrupted_reduction_goes_on_in_the_middle(
    over, budgets, presses, tmp_path_factory
):
    path = tmp_path_factory.mktemp("flights") / "runs.zarr"
    options = {"reduce": REDUCERS, "on_error": "mark", "mesh": one_device()}
    if over is not None:
        options["reduce"] = {"best": ep.reduce.Max(over=over)}
    with pytest.MonkeyPatch.context() as monkeypatch:
        if len(presses) > 1:
            without_locks(monkeypatch)
        steps = Steps(monkeypatch, budgets)
        whole = swept(final, store=path.with_name("whole.zarr"), **options)
        for press in presses:
            steps.press_at = steps.calls + press
            with contextlib.suppress(KeyboardInterrupt):
                swept(final, store=path, **options)
        steps.press_at = 0
        there = swept(final, store=path, **options)
        assert_same(there, whole)
        assert there.errors == whole.errors and there.errors
        assert not (path / ".flights").exists()
        monkeypatch.setattr("eqx_pipe._sweep.trace.trace.LONG", np.inf)
        plain = swept(final, **options)
    for x, y in zip(bits(whole), bits(plain), strict=True):
        assert np.allclose(x, y, atol=1e-5, equal_nan=True)


def test_a_plan_says_how_many_steps_and_bytes():
    options = {"key": jr.key(0), "batch_size": 2, "mesh": one_device()}
    coming = ep.plan(train, SPACE, **options)
    assert coming.interruptible and coming.steps == 16
    assert "16 steps, interruptible" in repr(coming)
    # Carry, key, curve, keys, and the carries of the second loop, for two points.
    assert 2 * 4 * (3 + 2 + 9 + 18) <= coming.flight_bytes <= 2 * 4 * 100
    assert ep.plan(solve, SPACE, **options).steps is None


@pytest.mark.parametrize(
    ("at", "count", "calls", "batches"),
    [("end", 6, 2, 4), ("longer", 5, 15, 3), ("between", 6, 2, 4)],
)
def test_growth_keeps_flights_or_asks(tmp_path, monkeypatch, at, count, calls, batches):
    """In one case the points in flight are in a chunk that becomes longer."""

    def chain(p, key):
        def step(w, k):
            return jnp.tanh(p["rate"] * w + jr.normal(k)), w

        return jax.lax.scan(step, p["rate"], jr.split(key, 16))

    path, options = tmp_path / "runs.zarr", {"mesh": one_device(), "batch_size": 2}
    options |= {"key": jr.key(0), "progress": False}
    rates = np.linspace(0.1, 1.5, count)
    steps = Steps(monkeypatch)
    whole = ep.sweep(chain, {"rate": ep.Values(rates)}, **options)
    steps.press_at = steps.calls + calls
    with pytest.raises(KeyboardInterrupt) as caught:
        ep.sweep(chain, {"rate": ep.Values(rates)}, store=path, **options)
    step = int(re.findall(r"at step (\d+) of 16", caught.value.__notes__[0])[0])
    new, kept = [*rates, 2.0, 2.1, 2.2], slice(count)
    if at == "between":
        new, kept = [rates[0], 0.2, *rates[1:]], [0, *range(2, count + 1)]
    larger = {"rate": ep.Values(np.array(new[:8]))}
    steps.press_at = steps.steps = 0
    if at == "between":
        with pytest.raises(ep.SweepError, match=f"2 at step {step} of 16.*would drop"):
            ep.sweep(chain, larger, store=path, **options)
        options["resume"], step = "force", 0
    there = ep.sweep(chain, larger, store=path, **options)
    assert steps.steps == batches * 16 - step
    assert not (path / ".flights").exists() and there.ok.all()
    for x, y in zip(bits(there), bits(whole), strict=True):
        assert np.allclose(x[kept], y, atol=1e-5)


def test_effects_and_cheap_loops_are_not_split(monkeypatch):
    def prints(p, key):
        jax.debug.callback(lambda _: None, p["rate"])
        return train(p, key)["w"]

    entered = long_points.entered(monkeypatch)
    swept(prints)
    monkeypatch.undo()
    assert not entered
    entered = long_points.entered(monkeypatch)
    swept(train)
    assert not entered


KILLED = [
    ("training", "plain", 2),
    ("mcmc", "plain", 1),
    ("nested", "reduced", 2),
    ("solve", "plain", 1),
    ("training", "cells", 1),
    ("nested", "sharded", 1),
    ("mcmc", "grown", 2),
    ("training", "marked", 2),
    ("training", "reduced", 1),
    ("nested", "plain", 2),
    ("solve", "reduced", 2),
    ("mcmc", "marked", 1),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    KILLED if THOROUGH else KILLED[:6],
    ids=lambda case: "-".join(map(str, case)),
)
def test_kills_in_the_middle_of_points_change_no_bit(tmp_path, case):
    """`FLIGHT_KILLS` is the number of kills of each."""
    pytest.importorskip("diffrax")
    kills, rng = int(os.environ.get("FLIGHT_KILLS", "1")), np.random.default_rng(0)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["support.long_points"])

    def run(path, calls=None):
        """Run the sweep; kill it soon after some device calls. Return if it ended."""
        steps = path.with_name(f"{path.name}.steps")
        before = steps.stat().st_size if steps.exists() else 0
        child = context.Process(target=long_points.run, args=(str(path), *case))
        child.start()
        while calls is not None and child.is_alive():
            if steps.exists() and steps.stat().st_size - before > 3 * calls:
                time.sleep(rng.uniform(0, 0.02))
                child.kill()
            child.join(0.002)
        child.join()
        return child.exitcode == 0

    def taken(path):
        return sum(map(int, path.with_name(f"{path.name}.steps").read_text().split()))

    def found(path):
        assert not (path / ".flights").exists()
        if case[1] == "reduced":
            with np.load(f"{path}.npz") as file:
                return [file[name] for name in file.files]
        result = ep.SweepResult.load(path)
        return [*bits(result), result.status]

    whole, path = tmp_path / "whole.zarr", tmp_path / "runs.zarr"
    assert run(whole)
    calls = len(whole.with_name("whole.zarr.steps").read_text().split())
    done = 0
    for _ in range(kills):
        done += not run(path, rng.integers(max(1, calls // (kills + 4))))
    assert done and run(path)
    for x, y in zip(found(path), found(whole), strict=True):
        assert np.array_equal(x, y, equal_nan=x.dtype.kind == "f")
    print(case, "killed", done, "steps", taken(path), "of", taken(whole))
    # A call was running, and one may not have been saved; devices wait for each other.
    assert taken(path) - taken(whole) <= 3 * 40 * done


@pytest.mark.parametrize("over", ["points", "cells", "all"])
def test_ctrl_c_before_the_first_save_loses_nothing(tmp_path, monkeypatch, over):
    monkeypatch.setattr("eqx_pipe._run.pace.COMMIT_EVERY", 1e9)
    path, options = tmp_path / "runs.zarr", {}
    if over != "points":
        options["reduce"] = ep.reduce.Max(over="seed" if over == "cells" else None)
    steps, _, _ = left_at(monkeypatch, path, fn=loss, **options)
    steps.steps = 0
    there = swept(loss, store=path, mesh=one_device(), **options)
    assert steps.steps == 6 * 16 - 4
    assert_same(there, swept(loss, mesh=one_device(), **options))
