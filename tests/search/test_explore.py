"""Searches: rounds of points that a method proposes."""

import equinox as eqx
import jax
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.helpers import few

import eqx_pipe as ep
import eqx_pipe.testing as ept

SPACE = {"x": ep.Linspace(0.0, 4.0, 3), "y": ep.Values([1.0, 10.0])}


def bowl(p):
    return (p["x"] - 2.5) ** 2 + p["y"]


class Closing(eqx.Module):
    """A method that looks in a smaller and smaller stretch around the best."""

    def init(self, space, key):
        return {"space": space, "centre": 0.5, "width": 0.5, "u": None}

    def ask(self, state, n):
        x = state["centre"] + state["width"] * np.linspace(-1, 1, n)
        u = np.stack([np.abs((x + 1) % 2 - 1), np.full(n, 0.25)], 1)
        return state["space"].from_unit(u), {**state, "u": u}

    def tell(self, state, result):
        best = result.best().index
        new = {"centre": float(state["u"][best, 0]), "width": state["width"] / 2}
        return {**state, **new, "u": None}


def rows(found):
    return found.to_pandas().to_numpy(float)


@few
@given(rounds=st.integers(1, 4), n=st.integers(2, 9), seed=st.integers(0, 2**31))
def test_each_round_is_a_sweep_of_its_points(rounds, n, seed):
    key = jr.key(seed)

    def fn(p, key):
        return bowl(p) + jr.normal(key)

    found = ep.search.explore(fn, SPACE, Closing(), rounds=rounds, n=n, key=key)
    assert len(found) == rounds * n
    assert found.rounds.tolist() == np.repeat(np.arange(rounds), n).tolist()
    method, whole = Closing(), ep.Space(SPACE)
    state = method.init(whole, None)
    for number in range(rounds):
        points, state = method.ask(state, n)
        result = ep.sweep(fn, points, key=jr.fold_in(key, number))
        mine = found.result[found.rounds == number]
        np.testing.assert_allclose(mine.values, result.values, rtol=2e-5, atol=2e-6)
        state = method.tell(state, result)


def test_rounds_after_the_first_compile_nothing():
    ep.search.explore(bowl, SPACE, Closing(), rounds=2, n=5)
    with ept.assert_compiles(0):
        found = ep.search.explore(bowl, SPACE, Closing(), rounds=6, n=5)
    assert abs(found.best().point["x"] - 2.5) < 0.05


def test_all_rounds_in_stores_are_traced_once(tmp_path):
    traced = []

    def fn(p):
        traced.append(p)
        return bowl(p)

    ep.search.explore(fn, SPACE, Closing(), rounds=1, n=5, store=tmp_path / "one")
    once = len(traced)
    with ept.assert_compiles(0):
        ep.search.explore(fn, SPACE, Closing(), rounds=4, n=5, store=tmp_path / "four")
    assert len(traced) == 2 * once


def test_a_function_that_draws_needs_a_key():
    def fn(p, key):
        return bowl(p) + jr.normal(key)

    with pytest.raises(ep.MissingKeyError):
        ep.search.explore(fn, SPACE, Closing(), rounds=1, n=5)


def test_the_round_is_a_coordinate():
    found = ep.search.explore(bowl, SPACE, Closing(), rounds=2, n=3)
    data = found.to_xarray()
    assert data["round"].values.tolist() == [0, 0, 0, 1, 1, 1]
    assert data["round"].dims == data["value"].dims == ("point",)
    assert found.to_pandas()["round"].tolist() == [0, 0, 0, 1, 1, 1]
    named = {"round": ep.Linspace(0, 1, 2)}
    other = ep.search.explore(
        lambda p: p["round"], named, ep.search.design([[0.5]]), rounds=1, n=1
    )
    assert other.to_xarray()["search.round"].values.tolist() == [0]


def test_a_killed_search_ends_as_one_that_was_not(tmp_path):
    whole = ep.search.explore(
        bowl, SPACE, Closing(), rounds=4, n=4, store=tmp_path / "a"
    )

    def killed(found):
        if found.rounds[-1] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as interrupt:
        ep.search.explore(
            bowl, SPACE, Closing(), rounds=4, n=4, store=tmp_path / "b", stop=killed
        )
    assert len(interrupt.value.result) == 8
    # Also read without the function, while it lies there.
    loaded = ep.search.SearchResult.load(tmp_path / "b")
    assert loaded.rounds.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    np.testing.assert_array_equal(rows(loaded), rows(whole)[:8])
    with pytest.raises(ValueError, match="search.load"):
        ep.SweepResult.load(tmp_path / "b")
    before = {
        path: path.stat().st_mtime_ns for path in (tmp_path / "b").glob("*/**/c/*")
    }
    assert len(list((tmp_path / "b").glob("*.zarr"))) == 2 and before
    found = ep.search.explore(
        bowl, SPACE, Closing(), rounds=4, n=4, store=tmp_path / "b"
    )
    np.testing.assert_array_equal(rows(found), rows(whole))
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    memory = ep.search.explore(bowl, SPACE, Closing(), rounds=4, n=4)
    np.testing.assert_allclose(rows(found), rows(memory), rtol=1e-6)


def test_the_store_of_another_search_is_refused(tmp_path):
    ep.search.explore(bowl, SPACE, Closing(), rounds=1, n=4, store=tmp_path)
    with pytest.raises(ValueError) as error:
        ep.search.explore(
            bowl, SPACE, ep.search.design([[0, 0]]), rounds=1, n=4, store=tmp_path
        )
    assert "In round 0 of the search" in str(error.value.__notes__)


def test_failed_points_are_told_as_failed():
    def fn(p):
        return eqx.error_if(p["x"], p["x"] > 3, "too far")

    u = [[0.0, 0.0], [0.9, 0.0], [0.5, 0.0]]
    method = ep.search.design(u)
    found = ep.search.explore(fn, SPACE, method, rounds=2, n=2, on_error="mark")
    assert found.result.ok.tolist() == [True, False, True]
    assert found.best(mode="max").index == 2


def test_a_search_stops_where_it_is_told_to():
    def search(stop):
        return ep.search.explore(bowl, SPACE, Closing(), rounds=20, n=4, stop=stop)

    assert len(search(lambda found: len(found) >= 10)) == 12
    never = lambda found: False  # noqa: E731
    assert len(search([never, lambda found: len(found) >= 17])) == 20


def test_a_log_has_a_line_of_the_rounds_and_none_of_each(capsys):
    def fn(p):
        x = eqx.error_if(p["x"], p["x"] > 3, "too far")
        return {"loss": x + p["y"], "curve": x[None]}

    def search(progress):
        given = {"rounds": 2, "n": 5, "on_error": "mark", "progress": progress}
        u = np.linspace(0, 1, 10)[:, None] * [1.0, 0.0]
        return ep.search.explore(fn, SPACE, ep.search.design(u), **given)

    search(("loss", "max"))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("rounds: 100%, 2 of 2 rounds in")
    assert line.endswith(", loss 3.6667, failed 3")
    search(None)
    assert not capsys.readouterr().err
    with pytest.raises(ValueError, match="Known names: `loss`"):
        search("curve")


def test_a_design_ends_the_search():
    u = some_design()
    found = ep.search.explore(bowl, SPACE, ep.search.design(u), rounds=10, n=4)
    whole = ep.sweep(bowl, ep.Space(SPACE).from_unit(u))
    assert len(found) == 10 and int(found.rounds[-1]) == 2
    assert repr(found) == "SearchResult(10 points in 3 rounds)"
    np.testing.assert_allclose(found.result.values, whole.values, rtol=1e-6)


def some_design():
    return np.random.default_rng(0).uniform(size=(10, 2))


def test_laws_of_methods():
    ept.check_method(Closing(), bowl, SPACE)
    ept.check_method(ep.search.design(some_design()), bowl, SPACE, n=3)


class Forgetful(Closing):
    """Draws from a generator that is no part of the state."""

    def ask(self, state, n):
        u = GENERATOR.uniform(size=(n, 2))
        return state["space"].from_unit(u), {**state, "u": u}


class Greedy(Closing):
    """Proposes more than it was asked for."""

    def ask(self, state, n):
        return super().ask(state, n + 1)


class Counting(Closing):
    """Its state depends on how often it was told."""

    def tell(self, state, result):
        CALLS.append(1)
        return {**super().tell(state, result), "width": 1 / (1 + len(CALLS))}


class Drawing(Closing):
    """Holds a generator, which cannot be written down, and changes as it draws."""

    def ask(self, state, n):
        return super().ask({**state, "draws": np.random.default_rng(0)}, n)


class Adding(Closing):
    """Changes the state that it was given."""

    def tell(self, state, result):
        state["width"] /= 2
        return {**state, "u": None}


class Weighing(Closing):
    """Takes a mean of all values, of which one that failed is a NaN."""

    def tell(self, state, result):
        return {**state, "centre": float(np.mean(result.values)) % 1, "u": None}


GENERATOR = np.random.default_rng(0)
CALLS: list[int] = []


@pytest.mark.parametrize(
    "method, rule",
    [
        (Forgetful(), "repeats"),
        (Greedy(), "form"),
        (Counting(), "repeats"),
        (Drawing(), "`state` of .*draws.*Generator"),
        (Adding(), "repeats"),
        (Weighing(), "failures"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_broken_methods_are_told(method, rule):
    with pytest.raises(AssertionError, match=f"(?s){rule}"):
        ept.check_method(method, bowl, SPACE)


def test_states_are_pytrees():
    found = ep.search.explore(bowl, SPACE, Closing(), rounds=1, n=4)
    assert isinstance(found, ep.search.SearchResult)
    assert jax.tree.leaves(found.state)
