"""Trainings that are carried on in rungs, the worse ones dropped."""

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

SPACE = {"rate": ep.Geomspace(1e-3, 1.0, 6), "start": ep.Linspace(1.0, 4.0, 4)}


def init(p, key):
    return {"x": p["start"] + 0.1 * jr.normal(key), "count": jnp.int32(0)}


def step(p, carry, key):
    slope = 2 * carry["x"] + 0.1 * jr.normal(key)
    return {"x": carry["x"] - p["rate"] * slope, "count": carry["count"] + 1}


def score(p, carry):
    return carry["x"] ** 2


NOISY = ep.search.Training(init, step, score)
PLAIN = ep.search.Training(
    lambda p: p["start"], lambda p, x: x - p["rate"] * 2 * x, lambda p, x: x**2
)


def whole(steps):
    """Return a training of a number of steps at a point, by hand."""

    def train(p, key):
        def body(i, carry):
            return step(p, carry, key=jr.fold_in(key, i + 1))

        first = init(p, key=jr.fold_in(key, 0))
        return jax.lax.fori_loop(0, steps, body, first)

    return train


@few
@given(seed=st.integers(0, 2**31), batch_size=st.sampled_from([1, 3]))
def test_what_comes_to_the_end_was_never_touched(seed, batch_size):
    key = jr.key(seed)
    settings = {"key": key, "batch_size": batch_size}
    found = ep.search.halving(NOISY, SPACE, rungs=(2, 5), eta=3, **settings)
    assert found.carry["count"].tolist() == [5] * len(found.survivors)
    plain = ep.sweep(whole(jnp.int32(5)), SPACE, **settings)
    expected = plain.values["x"][found.survivors]
    np.testing.assert_allclose(found.carry["x"], expected, rtol=2e-5, atol=2e-6)


def test_the_best_third_goes_on():
    found = ep.search.halving(PLAIN, SPACE, rungs=(1, 3, 6), eta=3)
    there = ~np.isnan(found.scores)
    assert there.sum(0).tolist() == [24, 8, 3]
    for now, then in ((0, 1), (1, 2)):
        kept, dropped = there[:, then], there[:, now] & ~there[:, then]
        assert found.scores[kept, now].max() <= found.scores[dropped, now].min()
    last = found.scores[found.survivors, -1]
    assert last.tolist() == sorted(last) and len(last) == 3
    best = ep.Space(SPACE).point(int(found.survivors[0]))
    assert found.best().point["rate"] == best["rate"]
    assert found.best().value == last[0] == PLAIN.score(best, found.best().output)
    worst = ep.search.halving(PLAIN, SPACE, rungs=(1, 3, 6), eta=3, mode="max")
    assert not set(worst.survivors) & set(found.survivors)


def test_of_equal_scores_the_first_go_on():
    half = ep.search.Training(
        lambda p: jnp.where(p < 0.5, 1.0, 0.0), lambda p, x: x, lambda p, x: x
    )
    found = ep.search.halving(half, ep.Linspace(0.0, 1.0, 40), rungs=(1, 2), eta=4)
    assert found.survivors.tolist() == list(range(20, 30))


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("dtype", ["uint8", "int32", "bool", "bfloat16", "float16"])
def test_scores_of_any_dtype_are_ranked(dtype, mode):
    numbers = {"bool": [1, 0, 1, 0], "int32": [3, -(2**31), 5, 4]}
    space = {"x": ep.Values(np.array(numbers.get(dtype, [3, 0, 5, 4]), "int32"))}
    train = ep.search.Training(
        lambda p: 0.0, lambda p, x: x, lambda p, x: p["x"].astype(dtype)
    )
    found = ep.search.halving(train, space, rungs=(1, 2), eta=2, mode=mode)
    low, high = ([1, 3], [0, 2]) if dtype == "bool" else ([1, 0], [2, 3])
    assert found.survivors.tolist() == (low if mode == "min" else high)


@pytest.mark.parametrize("limit", [0.1, -1.0])
def test_a_training_without_a_score_is_dropped(limit):
    def score(p, x):
        return jnp.where(p["rate"] > limit, jnp.nan, x**2)

    train = ep.search.Training(PLAIN.init, PLAIN.step, score)
    found = ep.search.halving(train, SPACE, rungs=(1, 2), eta=2)
    rates = ep.Space(SPACE).to_pandas()["rate"][found.survivors]
    assert (rates < 0.1).all() and len(rates) == (12 if limit > 0 else 0)
    if limit < 0:
        assert "none has a score" in repr(found)
        with pytest.raises(ValueError, match="no training has a score"):
            found.best()


def test_static_fields_of_a_carry_may_hold_traced_numbers():
    train_state = pytest.importorskip("flax.training.train_state")
    optax = pytest.importorskip("optax")

    def init(p):
        return train_state.TrainState.create(
            apply_fn=None, params={"x": jnp.float32(4)}, tx=optax.sgd(p["rate"])
        )

    train = ep.search.Training(
        init,
        lambda p, state: state.apply_gradients(grads={"x": 2 * state.params["x"]}),
        lambda p, state: state.params["x"] ** 2,
    )
    space = {"rate": ep.Geomspace(1e-3, 0.3, 6)}
    found = ep.search.halving(train, space, rungs=(1, 3))
    plain = ep.search.halving(PLAIN, {**space, "start": 4.0}, rungs=(1, 3))
    np.testing.assert_allclose(found.scores, plain.scores, rtol=1e-5)
    best = found.best()  # can be carried on, with its own rate
    after = best.output.apply_gradients(grads={"x": jnp.float32(1.0)})
    moved = best.output.params["x"] - after.params["x"]
    np.testing.assert_allclose(moved, best.point["rate"], rtol=1e-5)


def test_scores_are_labelled_and_shown():
    found = ep.search.halving(PLAIN, SPACE, rungs=(1, 3), eta=3)
    text = repr(found)
    assert "24 trainings, 8 to the end" in text and "carry" not in text
    assert f"point {found.best().index} is the best" in text
    data = found.to_xarray()
    assert data["score"].dims == ("point", "rung")
    assert data["rung"].values.tolist() == [1, 3]
    np.testing.assert_allclose(data["start"][:4], [1.0, 2.0, 3.0, 4.0])


def test_full_batches():
    space = {"rate": ep.Geomspace(1e-3, 1.0, 1024), "start": 1.0}
    rungs = (1, 3, 9, 27, 81, 243, 729)
    with ept.assert_compiles(10):  # log2 of the trainings
        found = ep.search.halving(PLAIN, space, rungs=rungs, eta=3)
    needed, executed = found.steps
    kept = [1024, 342, 114, 38, 13, 5, 2]
    assert (~np.isnan(found.scores)).sum(0).tolist() == kept
    steps = np.diff((0, *rungs))
    assert needed == sum(n * s for n, s in zip(kept, steps, strict=True))
    assert executed <= 1.15 * needed


def test_a_halving_goes_on_from_its_stores(tmp_path):
    short = ep.search.halving(PLAIN, SPACE, rungs=(1, 3), eta=3, store=tmp_path)
    files = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/**/c.*")}
    found = ep.search.halving(PLAIN, SPACE, rungs=(1, 3, 9), eta=3, store=tmp_path)
    assert files and all(p.stat().st_mtime_ns == time for p, time in files.items())
    np.testing.assert_array_equal(found.scores[:, :2], short.scores)
    anew = ep.search.halving(PLAIN, SPACE, rungs=(1, 3, 9), eta=3)
    np.testing.assert_array_equal(found.survivors, anew.survivors)
    np.testing.assert_allclose(found.scores, anew.scores, rtol=1e-6)


def test_another_halving_is_refused_before_anything_is_written(tmp_path):
    given = {"rungs": (1, 3, 9), "eta": 3, "store": tmp_path}
    ep.search.halving(PLAIN, SPACE, **given | {"rungs": (1,)})
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for text, changed in {
        "`eta`: 3 in the store, now 4": {"eta": 4},
        "`mode`: min in the store, now max": {"mode": "max"},
        r"`rungs\[0\]`: 1 in the store, now 2": {"rungs": (2, 3)},
    }.items():
        with pytest.raises(ep.StructureError, match=text):
            ep.search.halving(PLAIN, SPACE, **given | changed)
    larger = {**SPACE, "start": ep.Linspace(1.0, 5.0, 5)}
    with pytest.raises(ep.StructureError, match="`space`"):
        ep.search.halving(PLAIN, larger, **given)
    now = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert now == before
    found = ep.search.halving(PLAIN, SPACE, **given)
    anew = ep.search.halving(PLAIN, SPACE, **given | {"store": None})
    np.testing.assert_array_equal(found.survivors, anew.survivors)
