"""Halving and population-based training: schedulers of `train`."""

import math

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.helpers import few

import eqx_pipe as ep

SPACE = {"rate": ep.Geomspace(1e-3, 1.0, 6), "start": ep.Linspace(1.0, 4.0, 4)}
DESCENT = ep.Training(
    lambda p: p["start"],
    lambda p, x: (x - p["rate"] * 2 * x, None),
    lambda p, x: {"score": x**2},
)


@few
@given(
    rungs=st.lists(st.integers(1, 12), min_size=1, max_size=3, unique=True).map(sorted),
    eta=st.integers(2, 4),
    mode=st.sampled_from(["min", "max"]),
)
def test_halving_keeps_the_best_at_each_rung(rungs, eta, mode):
    settings = {
        "every": tuple(rungs),
        "scheduler": ep.search.Halving("score", eta, mode),
    }
    result = ep.train(DESCENT, SPACE, rungs[-1], **settings)
    scores = result.curves.values["score"]
    going, sign = np.arange(24), 1 if mode == "min" else -1
    for k in range(len(rungs)):
        assert np.flatnonzero(~np.isnan(scores[:, k])).tolist() == going.tolist()
        plain = ep.train(DESCENT, SPACE, rungs[k]).latest.values["score"]
        np.testing.assert_allclose(scores[going, k], plain[going], rtol=2e-5)
        order = np.lexsort((going, sign * scores[going, k]))
        going = np.sort(going[order[: math.ceil(len(going) / eta)]])
    assert (result.trained == rungs[-1]).sum() == result.active.sum()


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("dtype", ["uint8", "int32", "bool", "bfloat16", "float16"])
def test_scores_of_any_dtype_are_ranked(dtype, mode):
    numbers = {"bool": [1, 0, 1, 0], "int32": [3, -(2**31), 5, 4]}
    space = {"x": ep.Values(np.array(numbers.get(dtype, [3, 0, 5, 4]), "int32"))}
    training = ep.Training(
        lambda p: 0.0, lambda p, x: (x, None), lambda p, x: p["x"].astype(dtype)
    )
    halving = ep.search.Halving("value", 2, mode)
    result = ep.train(training, space, 2, every=1, scheduler=halving)
    low, high = ([1, 3], [0, 2]) if dtype == "bool" else ([0, 1], [2, 3])
    assert np.flatnonzero(result.active).tolist() == (low if mode == "min" else high)


def test_a_training_without_a_score_is_stopped():
    def score(p, x):
        return {"score": jnp.where(p["rate"] > 0.1, jnp.nan, x**2)}

    training = ep.Training(DESCENT.init, DESCENT.step, score)
    halving = ep.search.Halving("score", 2)
    result = ep.train(training, SPACE, 2, every=1, scheduler=halving)
    rates = ep.Space(SPACE).to_pandas()["rate"][result.active]
    assert (rates < 0.1).all() and len(rates) == 12


def toy(p, theta):
    """Return the true objective of the toy of Jaderberg et al. (2017), figure 2."""
    return {"q": 1.2 - jnp.sum(theta**2)}


def climb(p, theta):
    # The surrogate is 1.2 - h0 theta0^2 - h1 theta1^2.
    h = jnp.stack([p["h0"], p["h1"]])
    return theta - 0.02 * h * theta, None


TOY = ep.Training(lambda p: jnp.full(2, 0.9), climb, toy)
TWO = ep.Space({"h0": ep.Values([0.0, 1.0]), "h1": ep.Values([1.0, 0.0])}, mode="zip")


def test_pbt_solves_the_toy_of_its_paper():
    # Each worker alone moves one parameter, and cannot exceed 1.2 - 0.9^2 = 0.39.
    alone = ep.train(TOY, TWO, 400)
    assert alone.best("q", "max").value <= 0.39 + 1e-6

    def pbt(population, key):
        # Noise is added, since a factor, as that of `search.PBT`, leaves zero.
        best, worst = population.ranked("q", "max")
        points = {name: x.copy() for name, x in population.points.items()}
        for x, noise in zip(points.values(), 0.1 * jr.normal(key, (2,)), strict=True):
            x[worst] = max(x[best] + noise, 0)
        return population.next(parents=np.full(2, best), points=points)

    for seed in range(3):
        given = {"every": 10, "scheduler": pbt, "key": jr.key(seed)}
        result = ep.train(TOY, TWO, 400, **given)
        # The paper's figure 2 ends near the maximum, 1.2.
        assert 1.19 < result.best("q", "max").value <= 1.2


def test_pbt_copies_the_best_and_perturbs_their_points():
    pbt = ep.search.PBT(
        "score", ["rate"], mode="min", fraction=0.25, factors=(0.5, 2.0)
    )
    given = {"every": 1, "scheduler": pbt, "key": jax.random.key(1)}
    result = ep.train(DESCENT, SPACE, 5, **given)
    curves = result.curves.values
    for k in range(1, 5):
        parent, rates = curves["parent"][:, k], curves["point.rate"]
        order = np.argsort(curves["score"][:, k - 1], kind="stable")
        worst, best = order[-6:], order[:6]
        assert parent[worst].tolist() == best.tolist()
        others = np.setdiff1d(np.arange(24), worst)
        assert (parent[others] == others).all()
        assert (rates[others, k] == rates[others, k - 1]).all()
        ratio = rates[worst, k] / rates[best, k - 1]
        assert set(np.round(ratio, 5).tolist()) <= {0.5, 2.0}
    best = result.best("score")
    assert best.point["rate"] == curves["point.rate"][best.index, -1]
    with pytest.raises(ValueError, match="no longer share a setting"):
        result.best("score", over="start")


def test_wrong_settings():
    for text, make in {
        "eta": lambda: ep.search.Halving("score", 1),
        "mode": lambda: ep.search.Halving("score", mode="low"),
        "factors": lambda: ep.search.PBT("score", ["rate"], factors=()),
        "fraction": lambda: ep.search.PBT("score", ["rate"], fraction=0.6),
    }.items():
        with pytest.raises(ValueError, match=text):
            make()
    with pytest.raises(TypeError, match="Give a list"):
        ep.search.PBT("score", "rate")
