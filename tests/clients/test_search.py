"""Methods of search by adaptive, evosax and Optuna."""

import functools
import json

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optuna
import pytest
from evosax.algorithms import CMA_ES, PSO

import eqx_pipe as ep
import eqx_pipe.testing as ept

PLANE = {"x": ep.Uniform(-2.0, 2.0), "y": ep.LogUniform(0.1, 10.0)}
MIXED = {**PLANE, "act": ep.Static(["relu", "tanh"])}
TPE = functools.partial(optuna.samplers.TPESampler, n_startup_trials=4)


def bowl(p):
    return {"loss": (p["x"] - 1) ** 2 + jnp.log10(p["y"]) ** 2}


def mixed(p):
    return bowl(p)["loss"] + (p["act"] == "tanh")


METHODS = {
    "refine": (ep.search.Adaptive(), bowl, PLANE),
    "line": (ep.search.Adaptive(), bowl, {"x": PLANE["x"], "y": 1.0}),
    "CMA": (ep.search.Evosax(CMA_ES), bowl, PLANE),
    "PSO": (ep.search.Evosax(PSO), bowl, PLANE),
    "TPE": (ep.search.Optuna(TPE), mixed, MIXED),
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_keep_the_laws(name):
    method, fn, space = METHODS[name]
    ept.check_method(method, fn, space, num=6, key=jr.key(0))


@pytest.mark.parametrize("name", ["CMA", "TPE"])
def test_methods_find_the_best(name):
    method, fn, space = METHODS[name]
    found = ep.search.explore(fn, space, method, rounds=8, num=12, key=jr.key(1))
    best = [found.result[found.rounds == k].best().value for k in range(8)]
    assert min(best[4:]) < min(best[:1])
    assert found.best().value < 0.1


def test_refinement_goes_where_the_function_bends():
    step = lambda p: jnp.tanh(50 * (p["x"] - 0.3))  # noqa: E731
    found = ep.search.explore(
        step, {"x": PLANE["x"]}, ep.search.Adaptive(), rounds=4, num=8
    )
    near = np.abs(found.to_pandas()["x"] - 0.3) < 0.5
    assert near.mean() > 0.5  # a quarter of the way


def test_failed_points_are_left_out_by_all():
    def fn(p):
        return jnp.where(p["x"] > 0, jnp.nan, 1.0) + bowl(p)["loss"]

    for method in (
        ep.search.Adaptive(),
        ep.search.Evosax(CMA_ES),
        ep.search.Optuna(TPE),
    ):
        found = ep.search.explore(fn, PLANE, method, rounds=3, num=8, key=jr.key(0))
        assert len(found) == 24 and found.best().point["x"] <= 0


def test_the_trials_of_optuna_are_json():
    method, fn, space = METHODS["TPE"]
    found = ep.search.explore(fn, space, method, rounds=2, num=4, key=jr.key(0))
    trials = json.loads(json.dumps(found.state.trials))
    assert [trial["value"] for trial in trials] == found.result.values.tolist()


def test_a_generation_keeps_its_size():
    method = ep.search.Evosax(CMA_ES)
    space = ep.Space(PLANE)
    points, state = method.ask(method.init(space, jr.key(0)), 6)
    result = ep.sweep(bowl, points)
    state = method.tell(state, result.values["loss"], result)
    with pytest.raises(ValueError, match="it was 6, but `num` is 7"):
        method.ask(state, 7)
