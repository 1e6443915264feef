"""Methods of search by adaptive, evosax and Optuna."""

import functools

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
    def step(p):
        return jnp.tanh(50 * (p["x"] - 0.3))

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


SAMPLERS = {
    "Random": {},
    "TPE": {"n_startup_trials": 4, "multivariate": True, "constant_liar": True},
    "QMC": {},
    "NSGAII": {"population_size": 4},
    "NSGAIII": {"population_size": 4},
    "CmaEs": {"n_startup_trials": 4, "warn_independent_sampling": False},
    "Grid": {"search_space": {"x": [0.0, 0.5, 1.0], "act": [0.25, 0.75]}},
    "BruteForce": {},
    "PartialFixed": {},
}
AXES = {"x": PLANE["x"], "act": MIXED["act"]}
CHOICES = {"act": MIXED["act"], "n": ep.Values([1, 2, 3])}


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize("name", SAMPLERS)
def test_optuna_proposes_the_points_of_its_own_ask_and_tell(name):
    """Samplers keep something in themselves, in their study, or stop it."""
    if name == "CmaEs":
        pytest.importorskip("cmaes")
    samplers, kinds = optuna.samplers, optuna.distributions
    make = functools.partial(getattr(samplers, f"{name}Sampler"), **SAMPLERS[name])
    if name == "PartialFixed":

        def make(seed):
            inner = samplers.TPESampler(seed=seed, n_startup_trials=4)
            return samplers.PartialFixedSampler({"x": 0.5}, inner)

    space = ep.Space(CHOICES if name == "BruteForce" else AXES)
    middles = {"act": [0.25, 0.75], "n": [1 / 6, 0.5, 5 / 6]}
    axes = {
        axis: kinds.CategoricalDistribution(middles[axis])
        if axis in middles
        else kinds.FloatDistribution(0, 1)
        for axis in space.names
    }
    key, stopped = jr.key(3), []
    seed = int(jr.bits(key, dtype=jnp.uint32))
    study = optuna.create_study(sampler=make(seed=seed))
    study.stop = lambda: stopped.append(True)
    method = ep.search.Optuna(make)
    state = method.init(space, key)
    for _ in range(4):
        trials = [] if stopped else [study.ask(axes) for _ in range(5)]
        wanted = [[trial.params[axis] for axis in axes] for trial in trials]
        points, asked = method.ask(state, 5)
        again, _ = method.ask(state, 5)  # by another study
        assert again.to_pandas().equals(points.to_pandas())
        np.testing.assert_allclose(space.to_unit(points).tolist(), wanted, atol=1e-6)
        losses = np.array([sum(u) if sum(u) < 1.6 else np.inf for u in wanted])
        for trial, loss in zip(trials, losses, strict=True):
            fail = None if np.isfinite(loss) else optuna.trial.TrialState.FAIL
            study.tell(trial, None if fail else loss, fail)
        state = method.tell(asked, losses, None)
    assert bool(stopped) == (name in ("Grid", "BruteForce"))


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_a_sampler_that_has_no_more_points_ends_the_search():
    found = ep.search.explore(
        lambda p: p["n"] + (p["act"] == "tanh"),
        CHOICES,
        ep.search.Optuna(optuna.samplers.BruteForceSampler),
        rounds=9,
        num=3,
        key=jr.key(0),
    )
    assert (
        len(found) == 6 and len(found.to_pandas()[["act", "n"]].drop_duplicates()) == 6
    )


def test_a_search_by_optuna_resumes_from_its_store(tmp_path):
    """The class of a sampler reaches loggers and caches of its package."""

    def search(rounds, **options):
        method = ep.search.Optuna(optuna.samplers.TPESampler)
        options |= {"rounds": rounds, "num": 4, "key": jr.key(0)}
        return ep.search.explore(bowl, MIXED, method, by="loss", **options)

    search(2, store=tmp_path / "search")
    resumed = search(4, store=tmp_path / "search").to_pandas()
    assert resumed.equals(search(4).to_pandas())
