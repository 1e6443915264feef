"""Callbacks: each interval is told, whatever interrupts it, and an end is an end."""

import os
import pkgutil
import signal

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.helpers import few
from support.trainings import assert_bits

import eqx_pipe as ep

pytest.importorskip("zarr")

DESCENT = ep.Training(
    lambda p: 4.0, lambda p, x: (x - p["rate"] * 2 * x, {"loss": x**2})
)
SPACE = {"rate": ep.Geomspace(1e-3, 0.3, 4)}


def run(store=None, steps=12, **given):
    return ep.train(DESCENT, SPACE, steps, **{"every": 2, "store": store, **given})


def low(result):
    return bool((result.latest.values["loss"] < 4).any())


@pytest.fixture
def ctrl_c():
    """Handle SIGINT as usual: a shell ignores it in processes in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_training_that_its_callback_ended_has_ended(tmp_path):
    first = run(tmp_path, 100, callback=low)
    assert first.step < 20
    written = (tmp_path / "checkpoint").read_bytes()
    for steps in (100, 200):
        assert_bits(run(tmp_path, steps, callback=low), first)
    assert (tmp_path / "checkpoint").read_bytes() == written
    # Another callback, or none, continues.
    later = run(tmp_path, 100, callback=lambda result: result.step == first.step + 4)
    assert later.step == first.step + 4
    assert_bits(run(tmp_path, 60), run(steps=60))


def test_a_callback_with_a_state_of_its_own_ends_a_training_once(tmp_path):
    class Patience:
        def __init__(self):
            self.left = 3

        def __call__(self, result):
            self.left -= 1
            return self.left == 0

    assert run(tmp_path, callback=Patience()).step == 6
    assert run(tmp_path, callback=Patience()).step == 6


def test_a_callback_with_a_file_ends_a_training_once(tmp_path):
    with open(os.devnull, "w") as file:

        def log(result):
            file.write(f"{result.step}")
            return result.step >= 4

        steps = [run(tmp_path / "runs", callback=log).step for _ in range(2)]
    assert steps == [4, 4]


HOW = st.sampled_from(["raise", "signal"])


@pytest.mark.usefixtures("ctrl_c")
@few
@given(
    events=st.lists(st.tuples(st.integers(1, 6), HOW), max_size=5),
    end=st.sampled_from([6, 12]),
)
def test_every_interval_is_told_whatever_happens(tmp_path_factory, events, end):
    store, seen, left = tmp_path_factory.mktemp("store"), [], list(events)

    def callback(result):
        for event in [x for x in left if 2 * x[0] == result.step][:1]:
            left.remove(event)
            if event[1] == "raise":
                raise RuntimeError("the tracker is down")
            os.kill(os.getpid(), signal.SIGINT)
        seen.append(result.step)
        return result.step == end

    result = None
    for _ in range(1 + len(events)):
        try:
            result = run(store, callback=callback)
            break
        except (RuntimeError, KeyboardInterrupt):
            assert ep.TrainResult.load(store).step <= end
    if result is None:  # Ctrl-C came in the last callback
        result = run(store, callback=callback)
    assert seen == [*range(2, end + 1, 2)]
    assert_bits(result, run(steps=end))


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_before_the_last_callback_loses_none(tmp_path):
    seen, asked = [], tmp_path / "asked"

    def interrupt(n):
        if not asked.exists() and np.max(n) == 11:
            asked.touch()
            os.kill(os.getpid(), signal.SIGINT)
        return n

    def step(p, n):
        return 1 + jax.pure_callback(interrupt, n, n, vmap_method="expand_dims"), None

    training = ep.Training(lambda p: p, step)
    given = {"every": 4, "store": tmp_path / "runs"}
    given["callback"] = lambda result: seen.append(result.step)
    with pytest.raises(KeyboardInterrupt) as caught:
        ep.train(training, ep.Values([0.0]), 12, **given)
    assert caught.value.result.step == 12 and seen == [4, 8]
    ep.train(training, ep.Values([0.0]), 12, **given)
    assert seen == [4, 8, 12]


def test_a_callback_that_is_new_sees_the_present_state(tmp_path):
    seen = []
    run(tmp_path, 6)
    run(tmp_path, 6, callback=lambda result: seen.append(result.step))
    run(tmp_path, 10, callback=lambda result: seen.append(result.step))
    assert seen == [6, 8, 10]


@pytest.mark.parametrize("name", ["State.record", "Lanes.inherited"])
def test_an_interrupt_at_any_moment_saves_no_mixture(tmp_path, monkeypatch, name):
    """A second Ctrl-C, or one in a program with its own handler, comes at once."""
    owner, _, method = name.rpartition(".")
    module = {"State": "state", "Lanes": "lanes"}[owner]
    place = f"eqx_pipe._train.{module}.{name}"
    usual, calls = pkgutil.resolve_name(place), []

    def interrupted(self, *args):
        calls.append(0)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return usual(self, *args)

    given = {"scheduler": ep.search.Halving("loss", 2)}
    with monkeypatch.context() as patch:
        patch.setattr(place, interrupted)
        with pytest.raises(KeyboardInterrupt) as caught:
            run(tmp_path, **given)
    assert caught.value.result.step < 12
    assert_bits(run(tmp_path, **given), run(**given))
