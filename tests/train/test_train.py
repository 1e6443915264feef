"""Trainings as lanes: each equals a plain loop over its step, however it is run."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.helpers import few

import eqx_pipe as ep
import eqx_pipe.testing as ept

SPACE = ep.Space({"rate": ep.Geomspace(1e-3, 1.0, 4), "start": ep.Values([1.0, 3.0])})
KEY = jr.key(5)


def init(p, key):
    noise = 0.1 * jr.normal(key)
    return {"x": p["start"] + noise, "count": 0, "key": jr.fold_in(key, 7)}


def step(p, c, key):
    slope = 2 * c["x"] + 0.1 * jr.normal(key)
    own = jr.fold_in(c["key"], 1)
    new = {"x": c["x"] - p["rate"] * slope, "count": c["count"] + 1, "key": own}
    return new, {"loss": new["x"] ** 2, "n": new["count"], "bits": jr.bits(own)}


def evaluate(p, c, key):
    return {"score": c["x"] ** 2, "draw": jr.bits(key)}


TRAINING = ep.Training(init, step, evaluate)
DESCENT = ep.Training(
    lambda p: p["start"],
    lambda p, x: (x - p["rate"] * 2 * x, {"loss": x**2}),
    lambda p, x: {"score": x**2},
)


def by_hand(training, space, i, steps):
    """Return the metrics of each step and the last carry, by a plain loop."""
    point, own = space.point(i), space.point_key(i, key=KEY)
    carry, kept = training.init(point, key=jr.fold_in(own, 0)), []
    for k in range(1, steps + 1):
        carry, metrics = training.step(point, carry, key=jr.fold_in(own, k))
        kept.append(metrics)
    return {name: np.array([m[name] for m in kept]) for name in kept[0]}, carry


@few
@given(
    batch_size=st.sampled_from(["auto", 1, 3]),
    every=st.sampled_from([None, 4, 12, (4, 12)]),
    log_every=st.sampled_from([None, 1, 4]),
    devices=st.sampled_from([1, 2]),
)
def test_a_training_equals_a_plain_loop(batch_size, every, log_every, devices):
    mesh = jax.make_mesh((devices,), ("x",), devices=jax.devices()[:devices])
    given = {"every": every, "log_every": log_every, "batch_size": batch_size}
    result = ep.train(TRAINING, SPACE, 12, key=KEY, mesh=mesh, **given)
    steps = result.curves.output_coords["loss"]["step"]
    for i in (0, 5):
        expected, carry = by_hand(TRAINING, SPACE, i, 12)
        for name, values in expected.items():
            found = result.curves.values[name][i]
            tolerance = {"rtol": 2e-5, "atol": 1e-6} if name == "loss" else {"rtol": 0}
            np.testing.assert_allclose(found, values[steps - 1], **tolerance)
        assert result.carry(i)["count"] == 12
        assert result.carry(i)["key"] == carry["key"]


def test_the_population_changes_no_draw():
    given = {"log_every": 1, "key": KEY}
    whole = ep.train(TRAINING, SPACE, 6, **given).curves
    part = ep.train(TRAINING, SPACE[:3], 6, **given).curves
    for name, values in part.values.items():
        np.testing.assert_allclose(whole.values[name][:3], values, rtol=2e-5)


def test_no_draw_repeats():
    bits = ep.Training(
        lambda p, key: jr.bits(key),
        lambda p, c, key: (jr.bits(key), {"b": jr.bits(key), "c": c}),
        lambda p, c, key: {"e": jr.bits(key)},
    )
    seen = []

    def scheduler(population, key):
        seen.append(int(jr.bits(key)))
        return population.next()

    given = {"every": 4, "log_every": 1, "key": KEY}
    result = ep.train(bits, {"seed": ep.Seeds(3)}, 12, scheduler=scheduler, **given)
    found = result.curves.values
    drawn = [*found["b"].ravel(), *found["e"].ravel(), *found["c"][:, 0], *seen]
    assert len(set(map(int, drawn))) == 3 * 12 + 3 * 3 + 3 + 2


def test_groups_of_static_values():
    factors = {"sgd": 0.5, "none": 0.0}
    training = ep.Training(
        lambda p: jnp.ones(p["width"]),
        lambda p, x: (x * factors[p["opt"]] * p["scale"], {"sum": x.sum()}),
    )
    space = ep.Space(
        {
            "scale": ep.Values([0.5, 1.0]),
            "width": ep.Static([2, 3, 2]),
            "opt": ep.Static(["sgd", "none"]),
        }
    )
    result = ep.train(training, space, 3, log_every=1)
    for i, point in enumerate(space):
        factor = factors[point["opt"]] * point["scale"]
        sums = [point["width"] * factor**k for k in range(3)]
        np.testing.assert_allclose(result.curves.values["sum"][i], sums)
        assert result.carry(i).shape == (point["width"],)

    def across(population, key):
        return population.next(parents=np.roll(np.arange(12), 2))

    with pytest.raises(ValueError, match="cannot continue from training"):
        ep.train(training, space, 4, every=2, scheduler=across)


def test_stopped_trainings_keep_their_carry_and_may_be_revived():
    def scheduler(population, key):
        if population.step == 2:
            return population.next(active=np.arange(8) % 2 == 0)
        parents = np.arange(8)
        parents[3] = 6
        return population.next(parents=parents)

    given = {"every": 2, "log_every": 1, "key": KEY}
    result = ep.train(TRAINING, SPACE, 6, scheduler=scheduler, **given)
    plain = ep.train(TRAINING, SPACE, 6, **given)
    assert result.trained.tolist() == [6, 2, 6, 6, 6, 2, 6, 2]
    assert result.carry(1)["count"] == 2 and result.carry(3)["count"] == 6
    assert result.status.sum(1).tolist() == [6, 2, 6, 4, 6, 2, 6, 2]
    loss, whole = result.curves.values["loss"], plain.curves.values["loss"]
    np.testing.assert_allclose(loss[0::2], whole[0::2], rtol=2e-5)
    np.testing.assert_allclose(loss[1::2, :2], whole[1::2, :2], rtol=2e-5)
    assert np.isnan(loss[[1, 5, 7], 2:]).all()
    assert result.latest.values["n"].tolist() == [6, 2, 6, 6, 6, 2, 6, 2]
    assert result.curves.values["parent"][3].tolist() == [3, 3, 6]


def test_few_compilations_for_trainings_that_stop_one_by_one():
    def scheduler(population, key):
        return population.next(active=np.arange(40) >= population.step)

    space = {"start": ep.Linspace(1.0, 2.0, 40), "rate": 0.1}
    with ept.assert_compiles(9):
        result = ep.train(DESCENT, space, 40, every=1, scheduler=scheduler)
    assert result.trained.tolist() == [*range(1, 40), 40]
    with ept.assert_compiles(0):  # programs are kept
        ep.train(DESCENT, space, 40, every=1, scheduler=scheduler)


def test_no_step_is_computed_twice():
    calls = []

    def step(p, x):
        jax.debug.callback(lambda x: calls.append(1), x)
        return x * p["rate"], {"x": x}

    mesh = jax.make_mesh((1,), ("x",), devices=jax.devices()[:1])
    training = ep.Training(lambda p: 1.0, step, lambda p, x: {"end": x})
    for options in ({"every": 5}, {"log_every": 1}, {"every": 10, "batch_size": 4}):
        calls.clear()
        ep.train(training, {"rate": ep.Linspace(0.1, 0.9, 8)}, 20, mesh=mesh, **options)
        jax.effects_barrier()
        assert len(calls) == 8 * 20


def test_a_step_has_the_operations_of_one_by_hand():
    def init(p):
        return jnp.full((16, 16), p["start"])

    def step(p, w):
        slope = jax.grad(lambda w: jnp.sum(jnp.tanh(w @ w) ** 2))(w)
        return w - p["rate"] * slope, {"norm": jnp.sum(w**2)}

    mesh = jax.make_mesh((1,), ("x",), devices=jax.devices()[:1])
    result = ep.train(ep.Training(init, step), SPACE, 2, log_every=1, mesh=mesh)
    ((lanes, carries),) = result._groups
    program, consts = lanes.step.call, lanes.step.consts
    plan = np.int32(0), np.int32(1), np.bool_(False)
    own = lanes.rows.astype(np.int32), *result._columns.values(), *carries
    points = jax.vmap(SPACE.point)(jnp.arange(8))

    def by_hand(points, ws):
        def run(p, w):
            return jax.lax.scan(lambda w, _: step(p, w), w, length=10)

        return jax.vmap(run)(points, ws)

    ours = program.lower(*consts, *own, *plan).compile().cost_analysis()["flops"]
    hand = jax.jit(by_hand).lower(points, carries[-1]).compile()
    assert ours <= 1.001 * hand.cost_analysis()["flops"]


def test_curves_are_labelled():
    data = ep.train(TRAINING, SPACE, 4, every=2, log_every=1, key=KEY).curves
    table = data.to_xarray()
    assert table["loss"].dims == ("rate", "start", "step")
    assert table["score"].dims == ("rate", "start", "eval_step")
    assert table["step"].values.tolist() == [1, 2, 3, 4]
    assert table["eval_step"].values.tolist() == [2, 4]
    assert table["n"].dtype == np.int32 and table["step_status"].values.all()


def test_a_single_metric_needs_no_name_in_a_plot(tmp_path):
    descent = ep.Training(DESCENT.init, DESCENT.step)
    curves = ep.train(descent, SPACE, 4, log_every=2).curves
    curves.save(tmp_path / "curves.zarr")
    for each in (curves, ep.SweepResult.load(tmp_path / "curves.zarr")):
        assert each.plot(x="step", row="rate", hue="start")[0, 0].lines


def test_a_callback_sees_each_interval_and_may_end_the_training():
    seen = []

    def callback(result):
        seen.append((result.step, result.latest.values["n"].tolist()))
        return result.step == 4

    result = ep.train(TRAINING, SPACE, 8, every=2, key=KEY, callback=callback)
    assert seen == [(2, [2] * 8), (4, [4] * 8)] and result.step == 4
    assert result.curves.values["loss"].shape == (8, 2)


@pytest.mark.parametrize("batch_size", [1, 3, "auto"])
def test_failed_trainings_are_named_or_marked(batch_size):
    def step(p, x):
        bad = (x > 2.5) & (p > 1.5) & (p < 3.5)
        return eqx.error_if(x + 1, bad, "too large"), {"x": x}

    training = ep.Training(lambda p: 0.0, step)
    space = ep.Values([0.0, 2.0, 1.0, 3.0, 4.0])
    given = {"log_every": 1, "batch_size": batch_size}
    with pytest.raises(ep.SweepError, match="too large") as caught:
        ep.train(training, space, 6, **given)
    # A batch fails before later ones are computed, so all are named only together.
    assert caught.value.indices in ((1, 3), (1,))
    result = ep.train(training, space, 6, on_error="mark", **given)
    assert list(result.errors) == [1, 3] and "too large" in result.errors[1]
    assert result.active.tolist() == [True, False, True, False, True]
    assert result.curves.values["x"][0].tolist() == [0, 1, 2, 3, 4, 5]
    assert result.status[0].tolist() == [1] * 6 and (result.status[1] == 2).any()
    assert not result.latest.ok[1] and result.best("x", "max").index == 0
    assert "2 failed" in repr(result)


def test_mistaken_calls():
    wrong = {
        "`steps` is 10, and `every` is 3": {"every": 3},
        "the end of an interval": {"every": (3, 9)},
        "increasing ends": {"every": (10, 3)},
        "a divisor of 10": {"log_every": 4},
        "known": {"scheduler": lambda p, k: p.next(points={"rat": [0.0] * 8})},
        "is not a scalar metric": {"scheduler": lambda p, k: p.ranked("los")},
        "booleans": {"scheduler": lambda p, k: p.next(active=[1])},
        "from 0 to 7": {"scheduler": lambda p, k: p.next(parents=[8] * 8)},
        "shape": {"scheduler": lambda p, k: p.next(points={"rate": 0.0})},
        "of shape": {"scheduler": lambda p, k: p.next(parents=[[1], [2]])},
        "points.*numbers of": {"scheduler": lambda p, k: p.next(points={"rate": "a"})},
        "fit this dtype": {
            "scheduler": lambda p, k: p.next(points={"rate": [1e60] * 8})
        },
        "`search.PBT` draws": {"scheduler": ep.search.PBT("score", ["rate"])},
    }
    for text, options in wrong.items():
        if "scheduler" in options:
            options = {"every": 5, **options}
        with pytest.raises(ValueError, match=f"(?i){text}"):
            ep.train(DESCENT, SPACE, 10, **options)
    with pytest.raises(ValueError, match="as `every`"):
        ep.train(DESCENT, SPACE, 10, scheduler=ep.search.Halving("score"))
    for text, fn in {
        "not a pair": lambda p, x: x,
        "as the metric": lambda p, x: (x, {"act": max}),
    }.items():
        with pytest.raises(TypeError, match=text):
            ep.train(ep.Training(DESCENT.init, fn), SPACE, 1)
    with pytest.raises(ep.MissingKeyError, match="`step` needs a PRNG key"):
        ep.train(ep.Training(DESCENT.init, lambda p, x, key: (x, None)), SPACE, 1)
    with pytest.raises(ep.StructureError, match="another carry"):
        ep.train(ep.Training(DESCENT.init, lambda p, x: ((x, x), None)), SPACE, 1)
    with pytest.raises(TypeError, match=r"population.next\(...\)"):
        ep.train(DESCENT, SPACE, 2, every=1, scheduler=lambda p, k: None)
