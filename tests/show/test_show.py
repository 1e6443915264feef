"""The numbers of a page are those of NumPy and of the library; what it reads."""

import collections
import itertools
import json
import warnings

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support import shown

import eqx_pipe as ep

LEVELS = 0.05, 0.25, 0.5, 0.75, 0.95


def close(found, right):
    """Compare numbers that a page has with five digits, and NaN as None."""
    found = np.array(found, float)
    np.testing.assert_allclose(found, right, rtol=5.1e-5, atol=1e-30)


def quantiles(values):
    return np.nanquantile(values, LEVELS, axis=0, method="nearest")


def row(table, k=0):
    return dict(zip(table["columns"], table["rows"][k]["cells"], strict=True))


@given(
    hnp.arrays(np.float32, (7, 4), elements=st.floats(-1e6, 1e6, width=32)),
    hnp.arrays(bool, (7, 4)),
)
def test_bands_are_quantiles_of_the_finite_values(values, known):
    known[0] = True
    values = np.where(known, values, np.nan).astype(np.float32)
    result = ep.sweep(_row, {"row": ep.Values(values)})
    (band,) = ep.show(result).data(group="all")["curves"]["bands"]
    close(band["q"], quantiles(values))


def _row(p):
    return {"y": p["row"]}


def test_groups_best_points_and_settings(stores):
    loaded = ep.SweepResult.load(stores["curves"])
    losses = np.asarray(loaded.values["loss"]).reshape(6, 8, 30)
    data = ep.show(stores["curves"]).data("loss")
    for k, band in enumerate(data["curves"]["bands"]):
        close(band["q"], quantiles(losses[k]))
    means = losses[..., -1].mean(1)
    best = row(data["table"])
    close(best["loss"], means.min())
    close(best["rate"], np.geomspace(1e-3, 0.4, 6)[means.argmin()])
    data = ep.show(stores["train"]).data()
    best = ep.TrainResult.load(stores["train"]).best("test", over="seed")
    close(row(data["table"])["rate"], best.coordinates["rate"])
    close(row(data["table"])["test"], best.value)
    assert data["table"]["over"] == "8 × seed"
    data = ep.show(stores["part"]).data("loss")
    loaded = ep.SweepResult.load(stores["part"])
    assert data["table"]["rows"][0]["i"] == [loaded.best("loss").index]
    top = ep.show(stores["part"]).data("loss", "max")["table"]
    assert top["rows"][0]["i"] == [loaded.best("loss", "max").index]
    order = np.argsort(np.where(loaded.ok, np.asarray(loaded.values["loss"]), np.inf))
    assert [r["i"][0] for r in data["table"]["rows"]] == order[:10].tolist()


def test_counts_map_and_failures(stores):
    loaded = ep.SweepResult.load(stores["part"])
    data = ep.show(stores["part"]).data("loss")
    counts = {k: int((loaded.status == v).sum()) for k, v in STATUS.items()}
    assert data["counts"] == counts | {"total": 96}
    values = np.where(loaded.ok, np.asarray(loaded.values["loss"]), np.nan)
    close(data["grid"]["z"], values.reshape(12, 8).T)
    (failed,) = data["failures"]
    assert failed["count"] == counts["failed"] == len(loaded.errors)
    assert failed["text"] in loaded.errors.values()
    points = [loaded.space[i] for i in loaded.errors]
    for name, ends in failed["ranges"].items():
        column = [float(p[name]) for p in points]
        close(ends, [min(column), max(column)])
    assert failed["first"] == sorted(loaded.errors)[:3]
    assert ep.show(stores["reduced"]).data()["counts"]["missing"] == 0


STATUS = {"missing": 0, "done": 1, "failed": 2}


def test_directions_are_those_recorded(stores):
    search, pbt = (ep.show(stores[k]).data() for k in ("search", "pbt"))
    assert (search["metric"], search["mode"], search["note"]) == (
        "score",
        "max",
        "6 of 6 rounds",
    )
    assert search["table"]["rows"][0]["i"] == [
        ep.search.SearchResult.load(stores["search"]).best().index
    ]
    assert (pbt["metric"], pbt["mode"], pbt["steps"]) == ("test", "min", 100)
    scores = np.asarray(search["history"]["value"])
    close(search["history"]["best"], np.maximum.accumulate(scores))
    given = ep.show(stores["part"], by="accuracy", mode="max").data()
    assert (given["metric"], given["mode"]) == ("accuracy", "max")


def test_a_population_and_its_ancestors(stores):
    data = ep.show(stores["pbt"]).data()
    result = ep.TrainResult.load(stores["pbt"])
    line = np.array(data["population"]["params"]["rate"]["best"])
    factors = {*(line[1:] / line[:-1]).round(3).tolist()}
    assert factors <= {0.8, 1.0, 1.2}
    close(row(data["table"])["rate"], line[-1])
    close(row(data["table"])["test"], result.best("test").value)
    rates = result.curves.values["point.rate"][data["population"]["lanes"]]
    close(data["population"]["params"]["rate"]["values"], rates)
    parents, founders = result.curves.values["parent"], np.arange(16)
    for k in range(parents.shape[1]):
        founders = founders[parents[:, k]]
    assert data["population"]["founders"] == len({*founders.tolist()})


def test_trainings_that_end_early(stores):
    data = ep.show(stores["halving"]).data()
    result = ep.TrainResult.load(stores["halving"])
    counts = data["counts"]
    assert counts["failed"] == len(result.errors) > 0
    assert counts["done"] == result.active.sum()
    assert sum(counts[k] for k in ("done", "failed", "stopped")) == counts["total"]
    close(data["shares"]["done"], result.trained.sum() / (32 * 40))
    for name, code in {"stopped": 0, "running": 1, "failed": 2}.items():
        assert data["states"][name] == (result.status == code).sum(0).tolist()
    # Replicates of one setting stopped at different steps, so their mean is no score.
    assert "over" not in data["table"]
    assert {row["cells"][-1] for row in data["table"]["rows"]} <= {"done", "stopped"}


def test_two_stores_are_matched_by_coordinates(tmp_path, stores):
    after = shown.sweep(tmp_path / "after", shown.later)
    before = ep.SweepResult.load(stores["part"])
    page = ep.show(stores["part"], after, by="loss")
    data = page.data()
    found, both = data["matched"], before.ok & after.ok
    x, y = (np.asarray(r.values["loss"])[both] for r in (before, after))
    assert found["count"] == both.sum()
    assert (found["better"], found["worse"]) == ((y < x).sum(), (y > x).sum())
    close(found["median"], np.median(y - x))
    assert [view["name"] for view in data["views"]] == ["part", "SweepResult"]
    assert data["metrics"] == ["accuracy", "loss"]  # `other` has no match
    assert "</html>" in page.html
    few = ep.sweep(shown.loss, {**shown.GRID, "rate": RATE}, key=jr.key(3))
    data = ep.show(before, few, by="loss").data()
    first = before.ok.reshape(12, 8)[0]
    assert data["matched"]["count"] == first.sum()
    other = ep.sweep(
        shown.loss, {**shown.GRID, "rate": ep.Values([5e-3])}, key=jr.key(3)
    )
    assert ep.show(before, other).data()["matched"] is None
    other = ep.sweep(lambda p: p["x"], {"x": ep.Linspace(0, 1, 4)})
    data = ep.show(before, other).data()
    assert (data["matched"], data["metrics"]) == (None, [])


RATE = ep.Values([1e-3])


def test_infinite_numbers_are_compared_without_warnings():
    def f(p):
        return 1 / (p["x"] * p["sign"])

    line = {"x": ep.Values([0.0, 1.0]), "sign": ep.Values([-1.0, 1.0])}
    few = ep.sweep(lambda p: 1 / p["x"], {"x": line["x"]})
    with warnings.catch_warnings(action="error"):
        found = ep.show(ep.sweep(f, line), few)
        assert (
            found.data()["matched"]["count"] == 1
        )  # of inf and -inf, there is no mean
        same = ep.show(few, few).data()["matched"]
    assert (same["count"], same["median"]) == (1, 0)


def test_seeds_are_averaged_before_they_are_compared(stores):
    result = ep.TrainResult.load(stores["train"])
    found = ep.show(result, stores["train"]).data()["matched"]
    assert (found["count"], found["better"], found["worse"]) == (6, 0, 0)
    means = np.asarray(result.latest.values["test"]).reshape(6, 8).mean(axis=1)
    close(found["after"], np.sort(means))


def test_sizes():
    """10,000 curves of 1,000 steps, and 10^6 points, are at most 150 kB."""
    curve = jnp.exp(-jnp.arange(1000.0) / 100)
    space = {"rate": ep.Geomspace(1e-3, 1, 1000), "seed": ep.Seeds(10)}
    result = ep.sweep(lambda p: {"loss": curve * p["rate"]}, space)
    assert len(json.dumps(ep.show(result).data())) < 150_000
    space = {"x": ep.Linspace(0, 1, 1000), "y": ep.Linspace(0, 1, 1000)}
    result = ep.sweep(lambda p: {"a": p["x"], "b": p["y"], "c": p["x"]}, space)
    data = ep.show(result).data()
    assert len(json.dumps(data)) < 150_000
    values = np.asarray(result.values["a"]).reshape(1000, 1000)
    cut = np.unique(np.linspace(0, 1000, 65).astype(int))
    means = [values[a:b].mean() for a, b in itertools.pairwise(cut)]
    close(data["grid"]["z"][0], means)


@pytest.fixture
def requests(monkeypatch):
    """Count the keys that are read from a bucket, and other requests."""
    obstore = pytest.importorskip("obstore")
    counts = collections.Counter()
    for name in ("get", "head", "list", "list_with_delimiter"):
        call = getattr(obstore, name)

        def counted(store, key=None, *args, name=name, call=call, **options):
            counts[key if name == "get" else name] += 1
            return call(store, key, *args, **options)

        monkeypatch.setattr(obstore, name, counted)
    return counts


def gets(counts):
    names = "head", "list", "list_with_delimiter"
    return sum(n for key, n in counts.items() if key not in names)


def test_requests_of_a_sweep_in_a_bucket(requests):
    """At most 2 gets for each new chunk, and 300; nothing is read twice."""
    bucket = pytest.importorskip("obstore.store").MemoryStore()
    space = {"x": ep.Linspace(0, 1, 300), "y": ep.Linspace(0, 1, 4)}
    names = [f"o{k}" for k in range(6)]

    def fill(part):
        ep.sweep(
            lambda p: {n: p["x"] * p["y"] for n in names},
            space,
            store=bucket,
            shard=(part, 3),
            batch_size=1,
        )

    fill(0)
    requests.clear()
    page = ep.show(bucket)
    page.data()
    chunks = sum(key.startswith("o0/") for key in requests)
    assert chunks > 40 and max(requests[k] for k in requests if "/c" in k) == 1
    assert gets(requests) <= 2 * chunks + 300
    tag = page.tag({})
    requests.clear()
    assert page.tag({}) == tag
    assert requests == {"zarr.json": 1, "list": 1, "list_with_delimiter": 1}
    fill(1)
    assert page.tag({}) != tag
    requests.clear()
    data = page.data()
    new = sum(key.startswith("o0/") for key in requests)
    assert 0 < new <= chunks + 1 and gets(requests) <= 2 * new + 300
    assert data["counts"]["done"] == ep.SweepResult.load(bucket).ok.sum()
    loaded = ep.SweepResult.load(bucket)
    right = np.where(loaded.ok, loaded.values["o0"], np.nan).reshape(300, 4)
    cut = np.unique(np.linspace(0, 300, 65).astype(int))
    with np.errstate(invalid="ignore"), warnings.catch_warnings(action="ignore"):
        means = [np.nanmean(right[a:b, 1]) for a, b in itertools.pairwise(cut)]
    close(data["grid"]["z"][1], means)


def test_requests_of_other_kinds_in_a_bucket(requests):
    memory = pytest.importorskip("obstore.store").MemoryStore
    for make in (shown.train, shown.search):
        bucket = memory()
        make(bucket)
        requests.clear()
        page = ep.show(bucket)
        data = page.data()
        chunks = {key: n for key, n in requests.items() if "/c" in key}
        outputs = "/loss/", "/test/", "/score/", "/step_status/"
        values = [n for key, n in chunks.items() if any(x in key for x in outputs)]
        assert max(values) == 1 and gets(requests) <= 300
        assert data["counts"]["done"] == data["counts"]["total"]
        requests.clear()
        assert page.tag({}) == page.tag({})
        assert not any("/c" in key for key in requests) and gets(requests) <= 4


def test_results_in_memory_have_the_data_of_their_stores(stores):
    loads = {"search": ep.search.SearchResult, "train": ep.TrainResult}
    for name in ("part", "curves", "line", "table", "kinds", "search", "train", "pbt"):
        result = loads.get(name, ep.SweepResult)
        result = {"pbt": ep.TrainResult}.get(name, result).load(stores[name])
        found, right = (ep.show(x).data() for x in (result, stores[name]))
        for own in ("now", "name", "written", "rate", "left"):
            found.pop(own, None)
            right.pop(own, None)
        assert found == right, name


def test_what_cannot_be_shown(tmp_path, stores):
    with pytest.raises(FileNotFoundError, match="is not there"):
        ep.show(tmp_path / "none")
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileNotFoundError, match="no store of a sweep, a search"):
        ep.show(tmp_path)
    with pytest.raises(ValueError, match="Did you mean `loss`"):
        ep.show(stores["part"], by="losses")
    whole = ep.sweep(lambda x: x, ep.Linspace(0, 1, 4), reduce=ep.reduce.Mean())
    assert ep.show(whole).data()["metrics"] == []
    odd = ep.sweep(
        lambda x: {"c": jax.lax.complex(x, x), "m": x * jnp.eye(2)},
        ep.Linspace(0, 1, 4),
    )
    assert ep.show(odd).data()["metrics"] == []
    nothing = ep.sweep(lambda p: p["x"], ep.Space({"x": ep.Linspace(0, 1, 4)})[:0])
    assert ep.show(nothing).data()["counts"]["total"] == 0
    vectors = {"v": ep.Values(np.eye(3, dtype=np.float32)), "c": ep.Values([1.0, 2.0])}
    found = ep.sweep(lambda p: p["v"].sum() * p["c"], vectors)
    assert ep.show(found, found).data()["matched"]["count"] == 2
    drawn = ep.sweep(lambda p, key: {"k": key, "v": p["c"]}, vectors, key=jr.key(0))
    assert ep.show(drawn).data()["metrics"] == ["result.v"]
    lost = ep.sweep(lambda x: {"y": 1 / x}, ep.Values([0.0, 1.0, 2.0]))
    assert ep.show(lost).data()["lost"] == 1
    for each in (whole, odd, nothing, lost):
        assert "</html>" in ep.show(each).html


def test_outputs_that_are_called_like_axes(tmp_path):
    """They have the names of `to_xarray`, and recorded and given paths name them."""

    def both(p):
        return {"a": 10 * p["a"] + p["b"], "loss": -p["a"]}

    space = {"a": ep.Values([3.0, 1.0, 2.0]), "b": ep.Values([1.0, 2.0])}
    found = ep.sweep(both, space)
    data = ep.show(found, by="a", mode="max").data()
    assert (data["metric"], data["metrics"]) == ("result.a", ["loss", "result.a"][::-1])
    assert "result.a" in found.to_xarray()
    best = row(data["table"])
    assert (best["a"], best["b"], best["result.a"]) == (3.0, 2.0, 32.0)
    assert data["grid"]["xs"] == [3.0, 1.0, 2.0]
    points = ep.search.Design(np.linspace(0, 1, 4)[:, None])
    asked = {"rounds": 2, "num": 2, "by": "x", "mode": "max", "key": jr.key(0)}
    line = {"x": ep.Uniform(0, 1)}
    search = ep.search.explore(lambda p: {"x": p["x"]}, line, points, **asked)
    data = ep.show(search).data()
    assert (data["metric"], data["mode"]) == ("result.x", "max")


def test_the_time_left_of_a_search_counts_later_rounds(tmp_path):
    points = ep.search.Design(np.linspace(0, 1, 12)[:, None])
    asked = {"rounds": 6, "num": 2, "store": tmp_path / "s"}
    line = {"x": ep.Uniform(0, 1)}
    end = {"callback": lambda found: len(found.sweeps) == 2}
    ep.search.explore(lambda p: p["x"], line, points, **asked, **end)
    data = ep.show(tmp_path / "s").data()
    counts = {"done": 4, "failed": 0, "missing": 8, "total": 12}
    assert data["counts"] == counts
    assert data["left"] == pytest.approx(8 / data["rate"], rel=1e-3)


def test_a_search_over_replicates_shows_the_best_settings(tmp_path):
    def noisy(p, key):
        return p["x"] + jr.normal(key)

    space = {"seed": ep.Seeds(3), "x": ep.Uniform(0, 1)}
    design = ep.search.Design(np.linspace(0, 1, 4)[::-1, None])
    asked = {"rounds": 2, "num": 2, "key": jr.key(0), "store": tmp_path / "s"}
    found = ep.search.explore(noisy, space, design, **asked)
    for store in (tmp_path / "s", found):
        table = ep.show(store).data()["table"]
        assert table["rows"][0]["i"] == found.best().index.tolist() == [3, 7, 11]
        assert "seed" not in table["columns"] and len(table["rows"]) == 4
