"""Searches: rounds of points that a method proposes."""

import shutil
from concurrent.futures import ThreadPoolExecutor

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.helpers import few

import eqx_pipe as ep
import eqx_pipe.testing as ept

SPACE = {"x": ep.Uniform(0.0, 4.0), "y": ep.Values([1.0, 10.0])}


def bowl(p):
    return (p["x"] - 2.5) ** 2 + p["y"]


class Closing(eqx.Module):
    """A method that looks in a smaller and smaller interval around the best."""

    def init(self, space, key):
        return {"space": space, "centre": 0.5, "width": 0.5, "u": None}

    def ask(self, state, num):
        x = state["centre"] + state["width"] * np.linspace(-1, 1, num)
        u = np.stack([np.abs((x + 1) % 2 - 1), np.full(num, 0.25)], 1)
        return state["space"].from_unit(u), {**state, "u": u}

    def tell(self, state, losses, result):
        centre = float(state["u"][np.argmin(losses), 0])
        return {**state, "centre": centre, "width": state["width"] / 2, "u": None}


def search(fn=bowl, method=None, **options):
    settings = {"rounds": 4, "num": 4, **options}
    return ep.search.explore(fn, SPACE, method or Closing(), **settings)


def rows(found):
    return found.to_pandas().to_numpy(float)


def too_far(p):
    return eqx.error_if(p["x"], p["x"] > 3, "too far") + p["y"]


@few
@given(rounds=st.integers(1, 4), n=st.integers(2, 9), seed=st.integers(0, 2**31))
def test_each_round_is_a_sweep_of_its_points(rounds, n, seed):
    key = jr.key(seed)

    def fn(p, key):
        return {"loss": bowl(p) + jr.normal(key), "more": p["x"]}

    given = {"by": "loss", "mode": "max", "key": key}
    found = search(fn, rounds=rounds, num=n, **given)
    assert found.rounds.tolist() == np.repeat(np.arange(rounds), n).tolist()
    assert found.best().value == found.result.values["loss"].max()
    state = Closing().init(ep.Space(SPACE), None)
    for number in range(rounds):
        points, state = Closing().ask(state, n)
        result = ep.sweep(fn, points, key=jr.fold_in(key, number))
        mine = found.result[found.rounds == number].values["loss"]
        np.testing.assert_allclose(mine, result.values["loss"], rtol=2e-5, atol=2e-6)
        state = Closing().tell(state, -result.values["loss"], result)


def test_all_rounds_are_one_program_traced_once(tmp_path):
    traced = []

    def fn(p):
        traced.append(p)
        return bowl(p)

    search(fn, rounds=1, store=tmp_path / "one")
    once = len(traced)
    with ept.assert_compiles(0):
        found = search(fn, rounds=6, store=tmp_path / "six")
    assert len(traced) == 2 * once
    assert abs(found.best().point["x"] - 2.5) < 0.05


def test_the_round_is_a_coordinate():
    found = search(rounds=2, num=3)
    data = found.to_xarray()
    assert data["round"].values.tolist() == [0, 0, 0, 1, 1, 1]
    assert data["round"].dims == data["value"].dims == ("point",)
    assert repr(found) == "SearchResult(6 points in 2 rounds)"
    method, named = ep.search.Design([[0.5]]), {"round": ep.Uniform(0, 1)}
    found = ep.search.explore(lambda p: p["round"], named, method, rounds=1, num=1)
    assert found.to_xarray()["search.round"].values.tolist() == [0]


def test_a_killed_search_ends_as_one_that_was_not(tmp_path):
    whole = search(store=tmp_path / "a")

    def killed(found):
        if found.rounds[-1] == 1:
            raise KeyboardInterrupt

    folder = tmp_path / "b"
    with pytest.raises(KeyboardInterrupt) as interrupt:
        search(store=folder, callback=killed)
    assert len(interrupt.value.result) == 8
    # Also read without the function, while it lies there.
    loaded = ep.search.SearchResult.load(folder)
    np.testing.assert_array_equal(rows(loaded), rows(whole)[:8])
    with pytest.raises(ValueError, match="SearchResult.load"):
        ep.SweepResult.load(folder)
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*/**/c.*")}
    assert len(list(folder.glob("*.zarr"))) == 2 and before
    np.testing.assert_array_equal(rows(search(store=folder)), rows(whole))
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    np.testing.assert_allclose(rows(search()), rows(whole), rtol=1e-6)
    with pytest.raises(ValueError) as error:
        search(method=ep.search.Design([[0, 0]]), store=folder)
    assert "In round 0 of the search" in str(error.value.__notes__)


def files(folder):
    return {
        path.relative_to(folder): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


LATER = np.linspace(0, 1, 16)[:, None] * [1.0, 0.25]
# The first round has the same points for all of them.
CHANGED = {
    "num`: 4 in the store, now 5": {"num": 5},
    "num`: 4 in the store, now 3": {"num": 3},
    "mode`: min in the store, now max": {"mode": "max"},
    "by`: None in the store, now value": {"by": "value"},
    "key`: None in the store, now .0, 7.": {"key": jr.key(7)},
    "method`: Design": {"method": ep.search.Design(LATER[:12])},
    "space`: Space.*x Uniform.0, 4.* now Space": {"space": SPACE | {"z": 1.0}},
}


@pytest.mark.parametrize("rounds", [1, 3])
def test_another_search_is_refused_before_anything_is_written(tmp_path, rounds):
    def run(fn=bowl, space=SPACE, **changes):
        settings = {"num": 4, "rounds": 3, "store": tmp_path / "found"} | changes
        settings.setdefault("method", ep.search.Design(LATER))
        return ep.search.explore(fn, space, **settings)

    run(rounds=rounds)
    before = files(tmp_path)
    for text, changes in CHANGED.items():
        with pytest.raises(ep.StructureError, match=text):
            run(**changes)
        assert files(tmp_path) == before
    with pytest.raises(ep.StructureError, match="`fn`"):
        run(fn=lambda p: bowl(p) + 1)
    with pytest.raises(ep.StructureError, match="different sweep"):
        # Neither does a sweep add points to a round.
        ep.sweep(
            bowl,
            ep.Space(SPACE).from_unit(LATER),
            store=tmp_path / "found/round-0000.zarr",
        )
    assert files(tmp_path) == before
    whole = run(method=ep.search.Design(LATER.tolist()), store=None)
    np.testing.assert_array_equal(rows(run()), rows(whole))
    shutil.rmtree(tmp_path / "found/round-0001.zarr")
    with pytest.raises(
        ValueError, match="later rounds, but no `round-0001.*same search"
    ):
        ep.search.SearchResult.load(tmp_path / "found")
    np.testing.assert_array_equal(rows(run()), rows(whole))


def test_failed_points_are_infinite_losses():
    u = [[0.0, 0.0], [0.9, 0.0], [0.5, 0.0]]
    options = {"rounds": 2, "num": 2, "on_error": "mark", "mode": "max"}
    found = search(too_far, ep.search.Design(u), **options)
    assert found.result.ok.tolist() == [True, False, True]
    assert found.best().index == 2 and found.best(mode="min").index == 0


def test_a_search_stops_at_a_condition():
    assert len(search(rounds=20, callback=lambda found: len(found) >= 10)) == 12


def test_what_is_optimised_is_checked_before_anything_is_computed(tmp_path):
    def fn(p):
        return {"loss": bowl(p), "curve": p["x"][None]}

    for by in (None, "curve", "los"):
        with pytest.raises(ValueError, match="`loss`|real scalar"):
            search(fn, by=by, store=tmp_path)
    assert not list(tmp_path.glob("*.zarr"))


def test_a_log_has_a_line_of_the_rounds_and_none_of_each(capsys):
    u = np.linspace(0, 1, 10)[:, None] * [1.0, 0.0]
    options = {"rounds": 2, "num": 5, "on_error": "mark", "mode": "max"}
    search(too_far, ep.search.Design(u), progress=True, **options)
    _, line = capsys.readouterr().err.splitlines()  # at the start, and at the end
    assert line.startswith("rounds: 100%, 2 of 2 rounds in")
    assert line.endswith(", best=3.6667, failed=3")
    search(too_far, ep.search.Design(u), **options)
    assert not capsys.readouterr().err


def test_a_design_ends_the_search():
    u = np.random.default_rng(0).uniform(size=(10, 2))
    found = search(method=ep.search.Design(u), rounds=10)
    whole = ep.sweep(bowl, ep.Space(SPACE).from_unit(u))
    assert len(found) == 10 and int(found.rounds[-1]) == 2
    np.testing.assert_allclose(found.result.values, whole.values, rtol=1e-6)
    ept.check_method(Closing(), bowl, SPACE)
    ept.check_method(ep.search.Design(u), bowl, SPACE, num=3)


class Forgetful(Closing):
    """Draws from a generator that is no part of the state."""

    def ask(self, state, num):
        u = GENERATOR.uniform(size=(num, 2))
        return state["space"].from_unit(u), {**state, "u": u}


class Greedy(Closing):
    """Proposes more than it was asked for."""

    def ask(self, state, num):
        return super().ask(state, num + 1)


class Adding(Closing):
    """Changes the state that it was given."""

    def tell(self, state, losses, result):
        state["width"] /= 2
        return {**state, "u": None}


class Weighing(Closing):
    """Takes a mean of all values, of which one that failed is a NaN."""

    def tell(self, state, losses, result):
        return {**state, "centre": float(np.mean(result.values)) % 1, "u": None}


GENERATOR = np.random.default_rng(0)
BROKEN = {
    Forgetful: "repeats",
    Greedy: "form",
    Adding: "repeats",
    Weighing: "failed",
}


@pytest.mark.parametrize("method", BROKEN)
def test_broken_methods_are_reported(method):
    with pytest.raises(AssertionError, match=f"(?s){BROKEN[method]}"):
        ept.check_method(method(), bowl, SPACE)


def test_workers_compute_the_rounds():
    space, design = ep.Space(ep.Uniform(0, 4)), np.linspace(0, 1, 6)[:, None]

    def found(executor=None):
        asked = {"rounds": 2, "num": 3, "executor": executor}
        method = ep.search.Design(design)
        return ep.search.explore(jnp.sin, space, method, **asked)

    with ThreadPoolExecutor(2) as pool:
        values = found(pool).result.values
    assert np.array_equal(values, found().result.values)


LUCK = {"x": ep.Uniform(0.0, 4.0), "act": ep.Static(["a", "b"]), "seed": ep.Seeds(3)}
SEEDED = {
    "last": LUCK,
    "first": {"seed": ep.Seeds(3), **LUCK},
    "two": LUCK | {"seed": ep.Seeds(2), "more": ep.Values(jr.split(jr.key(5), 2))},
    "tied": LUCK
    | {
        "seed": ep.Mapped(lambda i: {"twice": 2 * i}, ep.Seeds(3, dim="rep")),
        "data": ep.Values([0.0, 1.0, 2.0], dim="rep"),
        "setting": ep.Mapped(jnp.round, ep.Uniform(0.0, 9.0)),
    },
    "independent": LUCK | {"seed": ep.Seeds(3, draws="independent")},
}


def lucky(p, key):
    more = jr.normal(p["more"]) if "more" in p else p.get("data", 0.0)
    return {"loss": p["x"] ** 2 + jr.normal(key) + more + 1.0 * (p["act"] == "a")}


class Listed(ep.search.Design):
    """A design that keeps what it was told."""

    told: list = eqx.field(default_factory=list, static=True)

    def tell(self, state, losses, result):
        self.told.append(losses)
        return state


def seeded(space, fn=lucky, **options):
    whole = ep.Space(space)
    width = sum(not axis.is_replicate for axis in whole.axes().values())
    width -= "data" in space
    u = np.random.default_rng(7).uniform(size=(8, width))
    method = Listed(u)
    settings = {"rounds": 3, "num": 3, "key": jr.key(2), **options}
    return ep.search.explore(fn, space, method, **settings), method.told


@pytest.mark.parametrize("name", SEEDED)
def test_each_setting_is_computed_for_all_replicates(tmp_path, name):
    space, store = SEEDED[name], tmp_path / "found"
    found, told = seeded(space, mode="max", store=store)
    data, over = found.to_xarray(), [*found.over]
    means = data["loss"].astype("float64").mean(over)
    np.testing.assert_array_equal(-np.concatenate(told), means)
    assert data["round"].dims == means.dims and means.size == 8
    assert data["round"].values.tolist() == [0, 0, 0, 1, 1, 1, 2, 2]
    frame = found.to_pandas()
    sizes = frame.groupby(["x", "round"]).size()
    assert len(sizes) == 8 and len(found) == 8 * sizes.unique().item()
    assert found.rounds.tolist() == frame["round"].tolist()
    # The best setting is that of the largest mean, as sweeps compare them.
    best = found.best()
    assert best.value == means.max() and best.point["seed"] is None
    assert repr(best) == repr(found.result.best("loss", "max", over=over))
    picked = found.result.values["loss"][best.index]
    np.testing.assert_array_equal(best.output["loss"], picked)
    if len(over) == 2:
        assert found.best(over="seed").value > best.value
    # Each round is a sweep of its points; common draws are the same in all rounds.
    for number, result in enumerate(found.sweeps):
        key = jr.fold_in(jr.key(2), number if name == "independent" else 0)
        again = ep.sweep(lucky, result.space, key=key).values["loss"]
        np.testing.assert_allclose(again, result.values["loss"], rtol=1e-5, atol=1e-5)
    loaded = ep.search.SearchResult.load(store)
    assert loaded.to_pandas().equals(frame) and repr(loaded.best()) == repr(best)


def test_a_killed_search_over_replicates_ends_as_one_that_was_not(tmp_path):
    def fn(p, key):
        return lucky(p, key)["loss"]

    def interrupt(found):
        if len(found.sweeps) == 2:
            raise KeyboardInterrupt

    for name in ("first", "independent"):
        whole, told = seeded(SEEDED[name], fn, store=tmp_path / f"{name}-whole")
        folder = tmp_path / name
        with pytest.raises(KeyboardInterrupt) as stopped:
            seeded(SEEDED[name], fn, store=folder, callback=interrupt)
        frame = whole.to_pandas()
        part = frame[frame["round"] < 2].reset_index(drop=True)
        assert stopped.value.result.to_pandas().equals(part)
        resumed, again = seeded(SEEDED[name], fn, store=folder)
        assert resumed.to_pandas().equals(frame)
        np.testing.assert_array_equal(np.concatenate(again), np.concatenate(told))


def test_a_setting_with_a_failed_replicate_is_never_the_best():
    def fn(p, key):
        lost = (p["x"] > 2) & (p["seed"] == 1)
        return jnp.where(p["x"] < 0.6, jnp.nan, eqx.error_if(p["x"], lost, "lost"))

    space = {"x": LUCK["x"], "seed": LUCK["seed"]}
    found, told = seeded(space, fn, on_error="mark")
    data = found.to_xarray()
    x, status = data["x"].values, data["status"].values
    assert 0 < (x > 2).sum() < 8 and (x < 0.6).any()
    assert ((status == 2).sum(axis=1) == (x > 2)).all()
    fails = (x > 2) | (x < 0.6)
    assert (np.isinf(np.concatenate(told)) == fails).all()
    assert found.best(mode="max").value == x[~fails].max()


def test_rounds_over_replicates_share_a_program():
    space = {"x": LUCK["x"], "seed": LUCK["seed"]}

    def fn(p, key):
        return p["x"] + jr.normal(key)

    seeded(space, fn, rounds=1)
    with ept.assert_compiles(0):
        seeded(space, fn, rounds=2)
    ept.check_method(Narrow(), fn, {"seed": ep.Seeds(2), **space}, key=jr.key(0))


class Narrow(Closing):
    """Looks along one axis alone."""

    def ask(self, state, num):
        x = state["centre"] + state["width"] * np.linspace(-1, 1, num)
        u = np.abs((x[:, None] + 1) % 2 - 1)
        return state["space"].from_unit(u), {**state, "u": u}
