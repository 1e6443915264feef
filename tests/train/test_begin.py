"""Trainings that begin from carries of others; leaves of a carry beside arrays."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqx_pipe as ep

KEY = jr.key(3)
SPACE = {"rate": ep.Geomspace(1e-2, 0.5, 3), "kind": ep.Static(["a", "b"])}


def init(p, key):
    return {"x": 1 + jr.normal(key), "key": key}


def step(p, c, key, i):
    x = c["x"] * (1 - p["rate"]) + 0.1 * jr.normal(key)
    return {"x": x, "key": jr.fold_in(c["key"], i)}, {"loss": x**2, "i": i}


def evaluate(p, c, key, i):
    return {"draw": c["x"] + jr.normal(key), "at": i, "field": c["x"] * jnp.arange(3.0)}


TRAINING = ep.Training(init, step, evaluate)
GIVEN = {"every": 10, "log_every": 5, "key": KEY}


def run(steps, training=TRAINING, space=SPACE, **given):
    return ep.train(training, space, steps, **{**GIVEN, **given})


@pytest.fixture(scope="module")
def whole():
    return run(40)


@pytest.fixture(scope="module")
def half():
    return run(20)


def test_steps_and_evaluations_get_the_number_of_finished_steps(whole):
    assert whole.curves.values["i"][0].tolist() == [*range(4, 40, 5)]
    assert whole.curves.values["at"][5].tolist() == [10, 20, 30, 40]
    for name, fn in {
        "step": (init, lambda p, c, i=0: (c, None)),
        "evaluate": None,
    }.items():
        wrong = fn or (init, lambda p, c: (c, None), lambda p, c, i=3: c["x"])
        with pytest.raises(TypeError, match=f"`{name}` has a parameter `i` with a def"):
            run(10, ep.Training(*wrong))


def assert_equal(one, other):
    for name, values in other.curves.values.items():
        assert one.curves.values[name].tobytes() == values.tobytes(), name
        coords = one.curves.output_coords[name], other.curves.output_coords[name]
        np.testing.assert_equal(*coords)


def test_a_training_that_begins_from_a_result_is_its_continuation(half, whole):
    result = run(40, begin=half)
    assert_equal(result, whole)
    assert result.carry(4)["key"] == whole.carry(4)["key"]
    assert half.step == 20 and half.curves.values["i"].shape[1] == 4  # it is unchanged


def test_a_second_stage_continues_the_curves_that_both_have(half):
    def other(p, c, key, i):
        return {"x": c["x"] / 2, "key": c["key"]}, {"loss": -(c["x"] ** 2), "new": i}

    second = run(25, ep.Training(init, other), every=None, begin=half)
    curves = second.curves.to_xarray()
    assert sorted(curves) == ["loss", "new", "step_status"]
    assert curves["step"].values.tolist() == [5, 10, 15, 20, 25]
    loss = second.curves.values["loss"]
    np.testing.assert_array_equal(loss[:, :4], half.curves.values["loss"])
    x = [half.carry(i)["x"] for i in range(6)]
    np.testing.assert_allclose(loss[:, 4], [-((each / 16) ** 2) for each in x])
    assert second.curves.values["new"][0].tolist() == [0, 0, 0, 0, 24]
    moved = ep.Training(init, lambda p, c: (c, None), lambda p, c: {"loss": c["x"]})
    with pytest.raises(ValueError, match="`loss` of `begin` has another"):
        run(30, moved, begin=half)


def test_a_function_gives_carries(half):
    result = run(
        10, begin=lambda p: half.carry(2 if p["kind"] == "a" else 3), every=None
    )
    again = run(10, begin=lambda p: {"x": half.carry(2)["x"], "key": KEY}, every=None)
    assert result.curves.values["i"][0].tolist() == [4, 9]
    assert result.carry(0)["x"] == again.carry(0)["x"]
    assert result.carry(1)["x"] != again.carry(1)["x"]
    assert result.carry(1)["key"] != again.carry(1)["key"]


def test_each_point_chooses_its_carry(half):
    """Points of another space, whose values are concrete where a carry is chosen."""
    keep = ep.Training(init, lambda p, c: (c, {"x": c["x"]}))
    space = {"from": ep.Values([3, 2])}
    result = run(10, keep, space, begin=lambda p: half.carry(int(p["from"])))
    for i, at in enumerate([3, 2]):
        assert result.curves.values["x"][i, 0] == half.carry(at)["x"]
        assert result.carry(i)["key"] == half.carry(at)["key"]


def test_a_store_recognises_the_carries_to_begin_from(tmp_path, half, whole):
    pytest.importorskip("zarr")
    given = {"begin": half, "store": tmp_path / "runs"}
    run(30, **given)
    assert_equal(run(40, **given), whole)
    assert_equal(run(40, **given), whole)  # nothing is left
    with pytest.raises(ep.StructureError, match="`begin`: carries at step 20"):
        run(40, **{**given, "begin": run(20, key=jr.key(4))})
    with pytest.raises(ep.StructureError, match="`begin`: carries at .*, now None"):
        run(40, **{**given, "begin": None})
    given = {"begin": lambda p: half.carry(2), "store": tmp_path / "others"}
    run(10, **given)
    assert_equal(run(20, **given), run(20, begin=given["begin"]))
    with pytest.raises(ep.StructureError, match="`begin`: carries at step 0"):
        run(20, **{**given, "begin": lambda p: half.carry(3)})
    with pytest.raises(TypeError, match="Call `train` again"):
        run(50, begin=ep.TrainResult.load(tmp_path / "runs"))


def test_carries_that_do_not_fit_are_refused(half):
    other = ep.Training(lambda p: {"x": p["rate"]}, lambda p, c: (c, None))
    wrong = {
        "`steps` is 20, and `begin` has 20": {"steps": 20, "begin": half},
        "of another space": {"space": {"rate": ep.Values([0.1])}, "begin": half},
        r"`.key` is only in the first": {"begin": half, "training": other},
        r"`.key` is only in the second": {"begin": lambda p: {"x": p["rate"]}},
    }
    for text, given in wrong.items():
        with pytest.raises(ValueError, match=text):
            run(**{"steps": 30, **given})


def test_arrays_of_metrics_have_named_dims(tmp_path):
    pytest.importorskip("zarr")
    grid = {"field": {"z": [0.0, 0.5, 1.0]}}
    result = run(20, output_coords=grid, store=tmp_path / "runs")
    for each in (result, ep.TrainResult.load(tmp_path / "runs"), run(30, begin=result)):
        field = each.curves.to_xarray()["field"]
        assert field.dims == ("rate", "kind", "eval_step", "z")
        assert field["z"].values.tolist() == [0, 0.5, 1]
        assert each.latest.to_xarray()["field"].dims == ("rate", "kind", "z")
    for text, wrong in {
        "mean `field`": {"feld": {"z": None}},
        r"the shape \(3,\)": {"field": {"z": [1, 2]}},
        "Rename the dim": {"field": {"eval_step": None}},
    }.items():
        with pytest.raises(ValueError, match=f"eqx_pipe.train.*{text}"):
            run(20, output_coords=wrong)


@pytest.mark.parametrize("name", ["step", "eval_step"])
def test_names_of_the_curves_are_refused_before_the_first_step(name):
    with pytest.raises(ValueError, match=f"eqx_pipe.train.*name '{name}'.*Rename"):
        run(10, space={name: ep.Values([1, 2]), "rate": ep.Values([0.1])})


class Averaged(eqx.Module):
    mean: jax.Array
    act: Any = jax.nn.relu
    count: Any = 0
    phase: str = "first"


CHANGES = {
    "count": lambda c: c.count + 1,
    "act": lambda c: lambda x: c.act(x) + 1,
    "phase": lambda c: "second",
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_step_that_changes_what_is_no_array_is_refused(name):
    def change(p, c):
        return eqx.tree_at(lambda c: getattr(c, name), c, CHANGES[name](c)), None

    training = ep.Training(lambda p: Averaged(jnp.zeros(2)), change)
    with pytest.raises(ep.StructureError, match=rf"(?s)changed.*at `.{name}`: "):
        ep.train(training, {"rate": ep.Values([0.1])}, 1)


def test_the_cure_for_a_counter_works():
    def count(p, c):
        return Averaged(c.mean + 1, lambda x: x + 1, c.count + 1), {"n": c.count}

    def begin(p):  # the function that `step` makes anew has the same code
        return Averaged(jnp.zeros(2), count(p, Averaged(1.0))[0].act, jnp.asarray(0))

    result = ep.train(
        ep.Training(begin, count), {"rate": ep.Values([0.1])}, 4, log_every=1
    )
    assert result.curves.values["n"].tolist() == [[0, 1, 2, 3]]


def test_static_parts_of_carries_to_begin_from_are_compared():
    def stage(act, **given):
        kept = ep.Training(lambda p: Averaged(p, act), lambda p, c: (c, c.act(c.mean)))
        return ep.train(kept, ep.Values([1.0, 2.0]), **given)

    first = stage(jax.nn.relu, steps=2)
    assert stage(jax.nn.relu, steps=4, begin=first).step == 4
    for begin in (first, lambda p: first.carry(1)):
        with pytest.raises(ep.StructureError, match=r"`.act`: the function `relu` #"):
            stage(jax.nn.gelu, steps=4, begin=begin)


LARGE = {"python": 2**40, "numpy": np.int64(2**40), "array": np.array([2**33])}


@pytest.mark.parametrize("kind", LARGE)
def test_integers_that_jax_cannot_hold_are_refused(kind):
    number = LARGE[kind]
    keep = lambda p, c: (c, None)  # noqa: E731
    for text, training in {
        "`init` returned a carry at `.n`": ep.Training(lambda p: {"n": number}, keep),
        "the metric `m`": ep.Training(lambda p: 0, lambda p, c: (c, {"m": number})),
        "the metric `value`": ep.Training(lambda p: 0, keep, lambda p, c: number),
    }.items():
        with pytest.raises(ValueError, match=f"{text} with .*, too large for int32"):
            ep.train(training, {"rate": ep.Values([0.1])}, 1)


def test_a_callback_that_returns_an_array_is_refused():
    with pytest.raises(TypeError, match="`callback` returned an array.*Return True"):
        run(20, callback=lambda result: result.latest.values["loss"] < 1)


def test_errors_name_the_axis():
    optax = pytest.importorskip("optax")

    def update(p, schedule):
        optimizer = optax.sgd(schedule)
        return optimizer.update(jnp.ones(2), optimizer.init(jnp.ones(2)))[0]

    def usual(p, c):
        return c, update(p, optax.warmup_cosine_decay_schedule(0.0, p["lr"], 2, 9))

    def cured(p, c):
        schedule = optax.warmup_cosine_decay_schedule(0.0, 1.0, 2, 9)
        return c, update(p, lambda count: p["lr"] * schedule(count + 1))

    space = {"lr": ep.Geomspace(1e-3, 1e-1, 3)}
    for run in (
        lambda fn: ep.train(ep.Training(lambda p: 0.0, fn), space, 1),
        lambda fn: ep.sweep(lambda point: fn(point, 0.0)[1], space),
    ):
        with pytest.raises(jax.errors.TracerBoolConversionError) as caught:
            run(usual)
        assert "point['lr']" in str(caught.value)
        assert any("peak of 1, and multiply" in x for x in caught.value.__notes__)
        with jax.numpy_dtype_promotion("standard"):  # as optax needs
            run(cured)
