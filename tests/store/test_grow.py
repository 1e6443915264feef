"""Stores that grow: the same sweep of a larger space computes the new points alone."""

import shutil
from concurrent.futures import ThreadPoolExecutor

import equinox as eqx
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given
from support.helpers import few
from support.stores import (
    close,
    close_dataset,
    one_device,
    same,
    same_dataset,
    stored,
)

import eqx_pipe as ep

xarray = pytest.importorskip("xarray")
pytest.importorskip("zarr")

KEPT = {".locks", ".parts"}
KEY = jr.key(3)
ONE = one_device()


def total(p):
    leaves = [jnp.asarray(x, jnp.float32) for x in jax.tree.leaves(p)]
    return sum(x * (k + 1) for k, x in enumerate(leaves))


def plain(p):
    return {"y": jnp.sin(jnp.stack([total(p), 1.0])), "k": total(p) > 2}


def noise(p, key):
    return total(p) + jr.normal(key), jr.fold_in(key, 1)


def run(fn, space, path=None, batch_size=2, **asked):
    asked = {"key": KEY, "mesh": ONE} | asked
    return ep.sweep(fn, space, store=path, batch_size=batch_size, **asked)


def files(path, name):
    """Return the files of an array, each with its inode and time."""
    found = list((path / name).glob("c.*"))
    return {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in found}


def check_grown(path, result, fresh):
    """Raise unless a grown store agrees with a fresh sweep, for us and for others.

    The two are different programs, since axes are longer: floats agree to rounding.
    """
    assert result.ok.all()
    close(result.values, fresh.values)
    data = xarray.open_zarr(path).load()
    close_dataset(data, fresh.to_xarray())
    with pytest.warns(UserWarning):  # of our own files
        same_dataset(xarray.open_zarr(path, consolidated=False), data)
    same(ep.SweepResult.load(path).values, result.values)


def values(n, first=0.0):
    return ep.Values(np.arange(n, dtype=np.float32) + first)


def drawn(n, m):
    tree = {"x": ep.Random(jr.normal, n), "s": ep.Seeds(m)}
    return ep.Space(tree, key=jr.key(1))


AB = {"a": values(3), "b": values(4)}
ROWS = {"a": [0.0, 2.0, 2.0], "b": [1.0, 1.0, 1.0]}

# Points that are appended keep their draws, and the others theirs.
APPENDED = {
    "draws and seeds": (drawn(3, 2), drawn(5, 3)),
    "rows": (
        ep.Space.from_table(ROWS),
        ep.Space.from_table({"a": ROWS["a"] + [2.0, 7.0], "b": ROWS["b"] + [1.0, 8.0]}),
    ),
}

# Points that move keep their draws; without a key the store agrees with a fresh sweep.
MOVED = {
    "refined": (
        ep.Space({"b": values(3), "a": ep.Linspace(0, 1, 5)}),
        ep.Space({"b": values(3), "a": ep.Linspace(0, 1, 9)}),
    ),
    "rows in another order": (
        ep.Space.from_table(ROWS),
        ep.Space.from_table({"a": [2.0, 5.0, 2.0, 0.0], "b": [1.0, 1.0, 1.0, 1.0]}),
    ),
    "a part": (ep.Space(AB)[[7, 2]], ep.Space(AB)[[1, 2, 7, 9]]),
}


BOTH = APPENDED | MOVED


@pytest.mark.parametrize("which", APPENDED)
def test_a_store_that_goes_on_is_that_of_a_fresh_sweep(tmp_path, which):
    path, (old, new) = tmp_path / "r", APPENDED[which]
    run(noise, old, path)
    check_grown(path, run(noise, new, path), run(noise, new))
    run(noise, new, path)  # which removes what is not valid any more
    assert {p.name for p in path.iterdir() if p.name[0] == "."} <= KEPT


@pytest.mark.parametrize("which", MOVED)
def test_points_that_are_stored_are_found_wherever_they_go(tmp_path, which):
    path, (old, new) = tmp_path / "r", MOVED[which]
    before = run(noise, old, path)
    kept = np.asarray(before.values[0])
    drew = np.sort(np.asarray(run(noise, new, path).values[0]))
    # They keep their draws too; their values are copied, so that no bit changes.
    assert np.isin(kept, drew).all()
    shutil.rmtree(path)
    held = run(plain, old, path).values["y"]
    check_grown(path, run(plain, new, path), run(plain, new))
    if not files(path, "y"):  # copied to other files
        with pytest.raises(OSError, match="has grown.*`SweepResult.load`"):
            held[:]


def test_points_of_a_refined_store_draw_as_before_when_they_are_lost(tmp_path):
    """Also those that are computed in between, and no two points draw the same."""
    path, b = tmp_path / "r", values(3)

    def fn(p, key):
        return {"key": jr.key_data(key), "x": p["a"] + p["b"]}

    def grown(n, b, **asked):
        found = run(fn, {"a": ep.Linspace(0, 1, n), "b": b}, path, **asked)
        return np.asarray(found.values["key"][:]).reshape(n, len(b), 2)

    first = grown(5, b)
    second = grown(9, b)
    assert np.array_equal(second[::2], first)
    third = grown(9, values(4))
    assert np.array_equal(third[:, :3], second)
    last = grown(17, values(4))
    assert np.array_equal(last[::2], third)
    assert len(np.unique(last.reshape(-1, 2), axis=0)) == 17 * 4
    for name in ("key", "x", "status"):
        for file in sorted((path / name).glob("*[0-9]"))[::3]:
            file.unlink()
        assert np.array_equal(grown(17, values(4)), last)
    shutil.rmtree(path / "status")
    with ThreadPoolExecutor(2) as pool:
        asked = {"mesh": None, "executor": pool}
        assert np.array_equal(grown(17, values(4), **asked), last)


def test_a_part_of_a_grid_with_a_key_grows_within_that_grid(tmp_path):
    def part(n, index):
        return ep.Space({"a": ep.Linspace(0, 1, n)})[index]

    run(noise, part(5, [1, 2]), tmp_path / "r")
    run(noise, part(5, [0, 1, 2]), tmp_path / "r")
    with pytest.raises(ValueError, match="grows only within that grid"):
        run(noise, part(9, [0, 2, 4, 5]), tmp_path / "r")


LENGTHS = st.tuples(st.integers(1, 3), st.integers(1, 3))


@few
@given(LENGTHS, LENGTHS, st.sampled_from([1, 2]))
def test_any_growth_in_steps_is_one_sweep(tmp_path_factory, first, more, batch_size):
    path = tmp_path_factory.mktemp("store") / "r"
    lengths = first
    for step in (0, 1, 2):
        lengths = [n + (m - 1) * (step > 0) for n, m in zip(lengths, more, strict=True)]
        space = ep.Space([values(lengths[0]), values(lengths[1])])
        result = run(noise, space, path, batch_size)
    close(result.values, run(noise, space, batch_size=batch_size).values)


def test_one_row_more_computes_one_row_and_moves_nothing(tmp_path):
    seen = []

    def note(x):
        seen.extend(np.asarray(x).reshape(-1).tolist())
        return x

    def fn(p):
        x = 40 * p["a"] + p["b"]
        return jax.pure_callback(note, x, x, vmap_method="expand_dims")

    # Chunks of less than a row, and of more.
    for batch_size, path in ((10, tmp_path / "few"), (120, tmp_path / "many")):
        run(fn, {"a": values(40), "b": values(40)}, path, batch_size)
        before, chunks = files(path, "value"), stored(path).chunks
        seen.clear()
        larger = {"a": values(41), "b": values(40)}
        # The callback has written into what it holds.
        grown = run(fn, larger, path, batch_size, resume="force")
        assert set(seen) == set(range(1_600, 1_640))
        assert np.array_equal(grown.values, np.arange(1_640))
        after = files(path, "value")
        unmoved = [p for p, when in before.items() if after[p] == when]
        assert len(unmoved) >= len(before) - (chunks.split == 0)


def test_a_store_that_is_half_filled_grows_with_its_gaps_and_failures(tmp_path):
    def fails(p):
        return eqx.error_if(total(p), (p["a"] == 1) & (p["b"] < 2), "no")

    path, new = tmp_path / "r", {"a": values(5), "b": values(6)}
    part = run(fails, AB, path, shard=(0, 2), on_error="mark")
    assert part.missing is not None
    for rank in (1, 0):
        share = run(fails, new, path, shard=(rank, 2), on_error="mark")
    fresh = run(fails, new, on_error="mark")
    close(share.values, fresh.values)
    assert np.array_equal(share.ok, fresh.ok) and not share.ok.all()
    kept = share.values[fresh.ok]
    mended = run(lambda p: total(p) + 100, new, path, resume="failed")
    assert np.array_equal(mended.values[fresh.ok], kept)
    assert (mended.values[~fresh.ok] >= 100).all()


def test_workers_compute_the_new_points(tmp_path):
    pytest.importorskip("cloudpickle")
    old, new = MOVED["refined"]
    run(plain, old, tmp_path / "r")
    with ThreadPoolExecutor(2) as pool:
        asked = {"key": KEY, "executor": pool}
        result = ep.sweep(plain, new, store=tmp_path / "r", **asked)
    assert result.ok.all()
    fresh = run(plain, new).values
    assert np.allclose(np.asarray(result.values["y"]), fresh["y"], atol=1e-6)


def test_an_empty_store_is_legal_and_grows(tmp_path):
    path, table = tmp_path / "r", ep.Space.from_table(ROWS)
    nothing = run(plain, table[:0], path)
    assert len(nothing) == 0 and nothing.values["y"][:].shape == (0, 2)
    assert xarray.open_zarr(path).sizes["point"] == 0
    assert len(ep.SweepResult.load(path)) == 0
    assert len(run(plain, table[:0], path)) == 0
    check_grown(path, run(plain, table, path), run(plain, table))


def test_the_batch_size_of_few_points_is_chosen_anew(tmp_path):
    path = tmp_path / "r"
    run(plain, {"a": values(3)}, path, 50)
    assert stored(path).record["batch_size"] == 3
    assert run(plain, {"a": values(90)}, path, 40).batch_size == 40
    with pytest.raises(ValueError, match="begun with 40"):
        run(plain, {"a": values(190)}, path, 50)
    assert run(plain, {"a": values(190)}, path, "auto").batch_size == 40


def test_what_is_smaller_or_other_is_refused(tmp_path):
    path = tmp_path / "r"
    run(plain, AB, path)
    for space, says in [
        (AB | {"a": values(2)}, r"`a` = 2.0 on the dim `a`, which is not among"),
        (AB | {"a": values(4, 0.5)}, "dims: a: 3, b: 4 in the store"),
        (AB | {"a": ep.Values([2.0, 1.0, 0.0])}, "axis a"),
        ({"a": values(4)}, "dims"),
        (AB | {"c": values(2)}, "axis c: None in the store"),
        (AB | {"a": ep.Values([0, 1, 2, 3])}, "int32"),
    ]:
        with pytest.raises(ValueError, match=says) as caught:
            run(plain, space, path)
        assert "another path" in str(caught.value)
    large = AB | {"a": values(4)}
    with pytest.raises(ValueError, match='(?s)another program.*resume="force"'):
        run(lambda p: {"y": plain(p)["y"] + 1, "k": p["a"] > 3}, large, path)
    reduced = tmp_path / "reduced"
    run(plain, AB, reduced, reduce=ep.reduce.Sum(by="y"))
    with pytest.raises(ValueError, match="a store of a reduction does not grow"):
        run(plain, large, reduced, reduce=ep.reduce.Sum(by="y"))
    assert stored(path).chunks.size == 12


def test_cells_grow_along_the_dims_that_are_kept(tmp_path):
    path, large = tmp_path / "r", AB | {"a": values(4)}
    run(total, AB, path, reduce=ep.reduce.Mean(over="b"))
    for space, reduce, says in [
        (large, ep.reduce.Sum(over="b"), "Mean over b in the store, now Sum over b"),
        (
            large | {"b": values(5)},
            ep.reduce.Mean(over="b"),
            "values are reduced over `b`",
        ),
        (large, None, "`reduce`, reducers: Mean over b in the store, now None"),
    ]:
        with pytest.raises(ValueError, match=says):
            run(total, space, path, reduce=reduce)
    grown = run(total, large, path, reduce=ep.reduce.Mean(over="b"))
    fresh = run(total, large, reduce=ep.reduce.Mean(over="b"))
    close(grown.values, fresh.values)


def test_a_process_that_opened_the_store_before_it_grew_writes_nothing(tmp_path):
    path, large = tmp_path / "r", AB | {"a": values(4)}
    run(plain, AB, path, shard=(0, 2))
    fcntl = pytest.importorskip("fcntl")
    flock = fcntl.flock

    with pytest.MonkeyPatch.context() as patch:

        def late(file, how):
            patch.undo()
            run(plain, large, path, shard=(0, 2))
            flock(file, how)

        patch.setattr(fcntl, "flock", late)
        with pytest.raises(ep.SweepError, match="has grown.*larger space"):
            run(plain, AB, path)
    check_grown(path, run(plain, large, path), run(plain, large))


def test_the_result_of_a_smaller_store_reads_on_or_says_that_it_has_grown(tmp_path):
    path = tmp_path / "r"
    small = run(plain, AB, path)
    expected = np.asarray(small.values["y"])
    run(plain, AB | {"a": values(4)}, path)
    assert np.array_equal(small.values["y"], expected)
    assert np.array_equal(small.to_xarray()["y"].values.reshape(12, 2), expected)
    run(plain, AB | {"a": values(4), "b": ep.Values([9.0, 0, 1, 2, 3])}, path)
    run(plain, AB | {"a": values(4), "b": ep.Values([9.0, 0, 1, 2, 3])}, path)
    for read in (lambda: small.values["k"][:], lambda: small.to_xarray()["y"].values):
        with pytest.raises(OSError, match="has grown.*`SweepResult.load`"):
            read()
