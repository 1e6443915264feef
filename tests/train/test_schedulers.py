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


def test_groups_of_static_values_are_populations_of_their_own():
    scale = {"a": 1.0, "b": 0.5}
    training = ep.Training(
        lambda p: p["start"],
        lambda p, x: (x - p["rate"] * 2 * x * scale[p["kind"]], {"score": x**2}),
    )
    space = {**SPACE, "kind": ep.Static(["a", "b"])}
    pbt = ep.search.PBT("score", ["rate"], fraction=0.25)
    result = ep.train(training, space, 3, every=1, key=jr.key(0), scheduler=pbt)
    score, parent = result.curves.values["score"], result.curves.values["parent"]
    for k in range(1, 3):
        for kind in (0, 1):
            own = np.arange(kind, 48, 2)
            order = own[np.argsort(score[own, k - 1], kind="stable")]
            assert parent[order[-6:], k].tolist() == order[:6].tolist()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_only_finite_trainings_are_copied(bad):
    def score(p, x):
        return {"score": jnp.where(p["rate"] > p["limit"], bad, p["rate"])}

    training = ep.Training(lambda p: 0.0, lambda p, x: (x, None), score)
    pbt = ep.search.PBT("score", ["rate"], fraction=0.5, factors=(1.0,))
    for limit, parents in ((0.02, [0, 1, 2, 1, 0, 1]), (0.0, [0, 1, 2, 3, 4, 5])):
        space = {"rate": ep.Geomspace(1e-2, 1.0, 6), "limit": limit}
        space["rate"] = ep.Values([0.01, 0.015, 0.5, 0.6, 0.7, 0.8])
        result = ep.train(training, space, 2, every=1, key=jr.key(0), scheduler=pbt)
        found = result.curves.values["parent"][:, 1]
        assert set(found[3:]) <= ({0, 1} if limit else {3, 4, 5})
        assert (
            sorted(found[:3]) == [0, 1, 2] and (not limit) == (found == parents).all()
        )


def test_values_stay_in_their_bounds():
    pbt = ep.search.PBT(
        "score", ["rate"], factors=(0.5, 4.0), bounds={"rate": (0.01, 0.25)}
    )
    result = ep.train(DESCENT, SPACE, 8, every=1, key=jr.key(0), scheduler=pbt)
    rates, parent = (result.curves.values[x] for x in ("point.rate", "parent"))
    moved = rates[parent != np.arange(24)[:, None]]
    assert moved.max() == 0.25 and moved.min() >= 0.01
    for wrong in ({"start": (0, 1)}, {"rate": (1, 0)}, {"rate": 1}, {"rate": ("a", 1)}):
        with pytest.raises(ValueError, match="bounds.*Give .*low, high"):
            ep.search.PBT("score", ["rate"], bounds=wrong)


@pytest.mark.parametrize(
    "scheduler",
    [
        ep.search.Halving("scor"),
        ep.search.PBT("scor", ["rate"]),
        ep.search.PBT("score", ["rat"]),
        ep.search.PBT("score", ["count"]),
        ep.search.PBT("score", ["kind"]),
        ep.search.PBT("score", ["unread"]),
    ],
)
def test_names_are_checked_before_the_first_step(tmp_path, scheduler):
    space = {
        "rate": ep.Geomspace(1e-3, 1.0, 4),
        "start": 1.0,
        "count": ep.Values([1, 2]),
        "unread": ep.Linspace(0.0, 1.0, 3),
        "kind": ep.Static(["a"]),
    }
    told, store = [], tmp_path / "runs"
    given = {"every": 1, "key": jr.key(0), "store": store}
    with pytest.raises(ValueError, match="scor|not an axis of floats|neither `step`"):
        ep.train(DESCENT, space, 2, scheduler=scheduler, callback=told.append, **given)
    assert not told and not store.exists()


def test_a_rate_in_the_carry_cannot_vary_and_the_cure_works():
    optax = pytest.importorskip("optax")
    optimizer = optax.inject_hyperparams(optax.sgd)(learning_rate=0.0)

    def init(p):
        w = jnp.ones(2)
        state = optimizer.init(w)
        state.hyperparams["learning_rate"] = p["rate"]
        return w, state

    def step(cured):
        def step(p, carry):
            w, state = carry
            if cured:
                state.hyperparams["learning_rate"] = p["rate"]
            updates, state = optimizer.update(w, state, w)
            new = optax.apply_updates(w, updates)
            return (new, state), {"loss": jnp.sum(new**2), "used": 1 - new[0] / w[0]}

        return step

    pbt = ep.search.PBT("loss", ["rate"])
    given = {"every": 2, "scheduler": pbt, "key": jr.key(0)}
    rates = {"rate": ep.Geomspace(1e-3, 0.5, 10)}
    with pytest.raises(ValueError, match=r"neither.*hyperparams.*= point\['rate'\]"):
        ep.train(ep.Training(init, step(False)), rates, 8, **given)
    curves = ep.train(ep.Training(init, step(True)), rates, 8, **given).curves.values
    np.testing.assert_allclose(curves["used"], curves["point.rate"], rtol=1e-3)

    def own(population, key):
        return population.next(points={"rate": 2 * population.points["rate"]})

    with pytest.raises(ValueError, match="`rate` gets new values, and neither"):
        ep.train(
            ep.Training(init, step(False)), rates, 8, **{**given, "scheduler": own}
        )


@pytest.mark.parametrize("stored", [False, True])
def test_what_init_made_is_inherited_with_the_carry(tmp_path, stored):
    # A penalty towards the first weights, which depend on the key and on an axis.
    def init(p, key):
        first = p["start"] + jr.normal(key)
        return {"w": first, "pull": lambda w: w - first, "scaled": lambda: p["rate"]}

    def step(p, c):
        metrics = {"pull": c["pull"](c["w"]), "score": p["rate"] + 0 * p["start"]}
        return c, {**metrics, "rate": c["scaled"]()}

    pbt = ep.search.PBT("score", ["rate"])
    given: dict = {"every": 2, "key": jr.key(0), "scheduler": pbt}
    if stored:
        pytest.importorskip("zarr")
        given["store"] = tmp_path / "runs"
        ep.train(ep.Training(init, step), SPACE, 4, **given)
    result = ep.train(ep.Training(init, step), SPACE, 8, **given)
    found = result.curves.values
    assert (found["parent"] != np.arange(24)[:, None]).any()
    assert (found["pull"] == 0).all()
    np.testing.assert_array_equal(found["rate"], found["point.rate"])  # it follows
    for i in range(24):
        carry = result.carry(i)
        assert carry["pull"](carry["w"]) == 0
    first = {k: x for k, x in given.items() if k in ("every", "key")}
    more = ep.train(ep.Training(init, step), SPACE, 10, begin=result, **first)
    assert (more.curves.values["pull"] == 0).all()
    assert (more.curves.values["rate"][:, -1] == found["rate"][:, -1]).all()
    assert more.curves.values["parent"][:, -1].tolist() == [*range(24)]


def test_a_loaded_result_has_the_points_as_trained_last(tmp_path):
    pytest.importorskip("zarr")
    space = {**SPACE, "kind": ep.Static(["a", "b"])}
    given = {"scheduler": ep.search.PBT("score", ["rate"]), "key": jr.key(0)}
    result = ep.train(DESCENT, space, 12, every=3, store=tmp_path / "runs", **given)
    loaded = ep.TrainResult.load(tmp_path / "runs")
    assert loaded.best("score").point == result.best("score").point
    for i in range(48):
        assert loaded.point(i) == result.point(i)
    for i in (-1, 48):
        with pytest.raises(IndexError):
            loaded.point(i)
        with pytest.raises(IndexError):
            result.carry(i)


def test_replicates_with_different_numbers_of_steps_do_not_compare():
    given = {"every": (1, 9), "key": jr.key(0)}
    halving = ep.search.Halving("score", eta=2)
    result = ep.train(DESCENT, SPACE, 9, scheduler=halving, **given)
    with pytest.raises(
        ValueError, match="some trainings have 1 steps, .* to 9.*step 1"
    ):
        result.best("score", over="start")
    at_1 = result.curves.to_xarray()["score"].sel(eval_step=1).mean("start")
    assert int(at_1.argmin("rate")) == 4  # the cure: all have this step
    best = ep.train(DESCENT, SPACE, 9, **given).best("score", over="start")
    assert best.index.tolist() == [16, 17, 18, 19]


def test_wrong_settings():
    for text, make in {
        "eta": lambda: ep.search.Halving("score", 1),
        "mode": lambda: ep.search.Halving("score", mode="low"),
        "factors": lambda: ep.search.PBT("score", ["rate"], factors=()),
        "fraction": lambda: ep.search.PBT("score", ["rate"], fraction=0.6),
        "fraction. is 0": lambda: ep.search.PBT("score", ["rate"], fraction=0.0),
    }.items():
        with pytest.raises(ValueError, match=text):
            make()
    with pytest.raises(TypeError, match="Give a list"):
        ep.search.PBT("score", "rate")
