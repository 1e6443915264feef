"""Trainings that fail: in the same step whatever the calls, and tried again later."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.helpers import few
from support.trainings import assert_bits, paced

import eqx_pipe as ep

pytest.importorskip("zarr")

NEVER = 100.0


def init(p):
    return {"x": 1.0 + p["late"] * 0, "n": 0.0}


def fixed(p, c):
    x = c["x"] * 1.01 + 0.001 * jnp.sin(c["n"])
    return {"x": x, "n": c["n"] + 1}, {"x": x, "n": c["n"] + 1}


def broken(p, c):
    after, metrics = fixed(p, c)
    x = eqx.error_if(after["x"], after["n"] == p["late"], "too late")
    return {**after, "x": x}, metrics


BROKEN, FIXED = (ep.Training(init, step) for step in (broken, fixed))
FAILS = [NEVER, 5, NEVER, 17, 5, 1, NEVER, 20]
"""The steps in which trainings fail."""


def run(training=BROKEN, steps=20, fails=FAILS, **asked):
    space = {"late": ep.Values(np.array(fails, np.float32))}
    return ep.train(training, space, steps, **{"log_every": 1, **asked})


@few
@given(
    fails=st.lists(st.sampled_from([1, 2, 7, 8, 15, NEVER]), min_size=8, max_size=8),
    batch_size=st.sampled_from([1, 3, "auto"]),
    every=st.sampled_from([4, 16]),
    steps=st.sampled_from([1, 3, 5, 100]),
)
def test_a_training_keeps_all_steps_before_that_which_fails(
    fails, batch_size, every, steps
):
    given = {"on_error": "mark", "batch_size": batch_size, "every": every}
    with paced(steps):
        result = run(steps=16, fails=fails, **given)
    last = np.minimum(np.array(fails) - 1, 16).astype(int)
    at = np.arange(1, 17)
    # If all have failed, the training ends.
    end = 16 if max(fails) == NEVER else int(max(fails))
    assert result.step == end and result.trained.tolist() == last.tolist()
    expected = np.where(at <= last[:, None], at, np.nan)[:, :end]
    np.testing.assert_array_equal(result.curves.values["n"], expected)
    assert (result.status == np.where(np.isnan(expected), 2, 1)).all()
    assert list(result.errors) == np.flatnonzero(last < 16).tolist()
    assert [result.carry(i)["n"] for i in range(8)] == last.tolist()


@few
@given(paces=st.lists(st.sampled_from([1, 2, 3, 7, 100]), min_size=1, max_size=3))
def test_neither_pace_nor_interrupts_change_a_bit(tmp_path_factory, paces):
    store, given = tmp_path_factory.mktemp("runs"), {"on_error": "mark", "every": 10}
    whole = run(**given)

    def interrupt(result):
        raise RuntimeError

    for steps in paces:
        with paced(steps), pytest.raises(RuntimeError):
            run(store=store, callback=interrupt, **given)
    assert_bits(run(store=store, **given), whole)


def test_all_that_fail_in_a_step_are_named_with_it():
    with pytest.raises(ep.SweepError, match="1 of 8 trainings in step 1: training 5"):
        run()
    with pytest.raises(
        ep.SweepError, match=r"2 of 8 trainings in step 5.*too late"
    ) as e:
        run(fails=[NEVER, 5, NEVER, 17, 5, NEVER, NEVER, 20])
    assert e.value.indices == (1, 4)


def test_failed_trainings_are_tried_again_after_a_fix(tmp_path):
    given = {"store": tmp_path, "on_error": "mark", "every": 5}
    marked = run(**given)
    assert marked.trained.tolist() == [20, 4, 20, 16, 4, 0, 20, 19]
    with pytest.raises(ep.StructureError, match='resume="failed"'):
        run(FIXED, **given)
    with pytest.raises(ep.SweepError, match="5 of 8 trainings failed") as caught:
        run(store=tmp_path, every=5)
    assert caught.value.indices == (1, 3, 4, 5, 7)
    seen = []
    given |= {"resume": "failed", "callback": lambda result: seen.append(result.step)}
    result = run(FIXED, steps=25, **given)
    whole = run(FIXED, steps=25, every=5)
    assert seen == [20, 25] and not result.errors and (result.status == 1).all()
    good = marked.status == 1
    for name, values in whole.curves.values.items():
        np.testing.assert_allclose(result.curves.values[name], values, rtol=1e-5)
        before = result.curves.values[name][:, :20][good]
        assert before.tobytes() == marked.curves.values[name][good].tobytes()
    assert_bits(run(FIXED, steps=25, **given), result)  # nothing is left
    assert_bits(run(FIXED, steps=25, store=tmp_path, every=5), result)


def test_a_retry_may_be_interrupted_and_may_fail(tmp_path):
    given = {"store": tmp_path, "on_error": "mark", "every": 5, "resume": "failed"}
    first = run(**given)
    assert_bits(run(**given), first)  # the same steps fail

    def half(p, c):
        after, metrics = fixed(p, c)
        bad = (after["n"] == 12) & (p["late"] == 17)
        return {**after, "x": eqx.error_if(after["x"], bad, "still")}, metrics

    training = ep.Training(init, half)
    again = run(training, **given)
    # It had made 16 steps, among which there was none to fail.
    assert again.trained.tolist() == [20] * 8 and not again.errors


def test_a_failing_init_is_tried_again(tmp_path):
    def bad(p):
        late = eqx.error_if(p["late"], p["late"] == 5, "no start")
        return {"x": 1.0 + late * 0, "n": 0.0}

    given = {"store": tmp_path, "on_error": "mark"}
    fails = [NEVER, 5, 30]
    marked = run(ep.Training(bad, fixed), fails=fails, **given)
    assert list(marked.errors) == [1] and marked.trained.tolist() == [20, 0, 20]
    result = run(FIXED, fails=fails, resume="failed", **given)
    np.testing.assert_allclose(
        result.curves.values["x"], run(FIXED, fails=fails).curves.values["x"], rtol=1e-5
    )


def test_a_scheduler_goes_on_with_trainings_that_were_tried_again(tmp_path):
    given = {"every": (4, 8, 16), "store": tmp_path, "on_error": "mark"}
    given["scheduler"] = ep.search.Halving("x", eta=2, mode="max")
    fails = [NEVER, 6, NEVER, NEVER]
    marked = run(steps=8, fails=fails, **given)
    assert list(marked.errors) == [1] and marked.active.tolist() == [1, 0, 0, 0]
    result = run(FIXED, steps=16, fails=fails, resume="failed", **given)
    # It reaches step 8 alone, takes part in its decision, and wins or not.
    assert sorted(result.trained.tolist()) == [4, 4, 8, 16]


def test_another_function_is_trusted_if_asked(tmp_path):
    fails = [NEVER, 30]
    run(steps=8, fails=fails, store=tmp_path)
    with pytest.raises(ep.StructureError, match='resume="force"'):
        run(FIXED, fails=fails, store=tmp_path)
    result = run(FIXED, fails=fails, store=tmp_path, resume="force")
    assert result.step == 20
    other = ep.Training(init, lambda p, c: (fixed(p, c)[0], {"loss": c["x"]}))
    with pytest.raises(ep.StructureError, match="other carries, points or metrics"):
        run(other, fails=fails, store=tmp_path, resume="force")
    with pytest.raises(ValueError, match="`resume` requires `store`"):
        run(resume="failed")


def test_failures_are_quiet(caplog, capfd):
    assert len(run(on_error="mark").errors) == 5
    assert "Traceback" not in caplog.text + capfd.readouterr().err
