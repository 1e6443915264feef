"""A stored sweep is the sweep, read or resumed."""

import io
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.stores import (
    FUNCTIONS,
    KEY,
    SPACES,
    chunk_file,
    close,
    close_dataset,
    discard,
    one_device,
    plain,
    same,
    same_dataset,
    some_space,
    stored,
    written,
)

import eqx_pipe as ep

xarray = pytest.importorskip("xarray")
pytest.importorskip("zarr")


@settings(max_examples=max(2, settings().max_examples // 5))
@given(st.sampled_from(FUNCTIONS), st.integers(0, SPACES - 1), st.sampled_from([1, 3]))
def test_a_stored_sweep_is_the_sweep(fn, which, batch_size):
    space = some_space(which)
    asked = {"key": KEY, "batch_size": batch_size, "mesh": one_device()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "deeper" / "runs.zarr"
        result = ep.sweep(fn, space, store=path, **asked)
        memory = ep.sweep(fn, space, **asked)
        close(result.values, memory.values)
        assert result.ok.all() and len(result) == space.size
        assert result.batch_size == memory.batch_size
        close_dataset(result.to_xarray(), memory.to_xarray())
        same_dataset(xarray.open_zarr(path), result.to_xarray())
        made = result.to_xarray().attrs, memory.to_xarray().attrs
        assert set(made[1]) == set(made[0])
        loaded = ep.SweepResult.load(path)
        assert np.array_equal(loaded.status, memory.status)
        for a, b in zip(
            *map(jtu.tree_leaves, (loaded.values, result.values)), strict=True
        ):
            same(a, b)
        assert result.to_xarray().attrs["batch_size"] == result.batch_size
        grids = result.grid(), memory.grid()
        close(*grids)
        close(result[-1], memory[-1])
        close(result[space.size // 2 :].values, memory[space.size // 2 :].values)


@settings(max_examples=max(2, settings().max_examples // 5))
@given(
    st.sampled_from(FUNCTIONS),
    st.integers(0, SPACES - 1),
    st.randoms(use_true_random=False),
)
def test_a_resumed_sweep_is_an_uninterrupted_one(fn, which, random):
    space = some_space(which)
    asked = {"key": KEY, "mesh": one_device()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "runs.zarr"
        whole = ep.sweep(fn, space, store=path, batch_size=2, **asked)
        expected = jtu.tree_map(lambda x: x[:], whole.values)
        store = stored(path)
        lost = [n for n in range(len(store.chunks)) if random.random() < 0.5]
        for number in lost:
            names = [v.name for v in store.variables if 0 not in v.inner]
            for name in random.sample(names, random.randint(1, len(names))):
                chunk_file(store, name, number).unlink()
        (path / ".parts" / f"{7:032x}").write_bytes(b"left by a kill")
        before = {n: when for n, when in written(path).items() if n not in lost}
        # The batch size comes from the store.
        again = ep.sweep(fn, space, store=path, **asked)
        same(again.values, expected)
        assert again.batch_size == whole.batch_size
        assert before.items() <= written(path).items()
        memory = ep.sweep(fn, space, batch_size=2, **asked)
        close_dataset(again.to_xarray(), memory.to_xarray())


def test_a_copy_is_read_as_what_it_is(tmp_path):
    space, asked = some_space(0), {"batch_size": 1, "mesh": one_device()}
    result = ep.sweep(plain, space, store=tmp_path / "r.zarr", **asked)
    assert "eqx_pipe_store" not in result.to_xarray().attrs
    result.save(tmp_path / "saved.zarr")
    data = xarray.open_zarr(tmp_path / "r.zarr").load()
    for variable in data.variables.values():
        variable.encoding.clear()
    data.to_zarr(tmp_path / "copy.zarr", consolidated=False)
    for name in ("r", "saved"):
        loaded = ep.SweepResult.load(tmp_path / f"{name}.zarr")
        same(loaded.values, result.values)
        same_dataset(loaded.to_xarray(), result.to_xarray())
    says = {"copy": "damaged or was changed.*cp -r", "saved": "written by .*save"}
    for name, text in says.items():
        with pytest.raises(ValueError, match=text):
            ep.sweep(plain, space, store=tmp_path / f"{name}.zarr", **asked)


def test_values_are_read_when_asked_for(tmp_path):
    space = ep.Space({"a": ep.Linspace(0, 1, 4), "b": ep.Linspace(1, 2, 6)})
    asked = {"batch_size": 2, "mesh": one_device()}
    fn = lambda p: p["a"] * jnp.arange(3.0) + p["b"]  # noqa: E731
    leaf = ep.sweep(fn, space, store=tmp_path / "r.zarr", **asked).values
    expected = leaf[:]
    close(expected, ep.sweep(fn, space, **asked).values)
    assert (leaf.shape, leaf.dtype, leaf.ndim, len(leaf)) == ((24, 3), "float32", 2, 24)
    assert (leaf.size, leaf.nbytes) == (72, 288) and "float32[24,3]" in repr(leaf)
    for index in [
        3, -1, np.int64(5), slice(None), slice(2, 9), slice(20, 3, -4), slice(5, 5),
        slice(None, None, 7), ..., (5, 1), (slice(3, 8), slice(1, None)), (..., 0),
        [3, 1, 20], np.array([[-1, 0]]), np.arange(24) % 5 == 0, None, (slice(9), [0]),
    ]:  # fmt: skip
        got, wanted = leaf[index], expected[index]
        assert got.dtype == wanted.dtype and np.array_equal(got, wanted), index
    assert np.array_equal(np.stack(list(leaf)), expected)
    assert np.array_equal(jnp.asarray(leaf), expected)
    grid, wanted = leaf.reshape((4, 6, 3)), expected.reshape(4, 6, 3)
    for index in [1, (2, 3), (slice(1, 3), 5, 0), (..., 1), slice(3, 0, -2), [0, 2]]:
        assert np.array_equal(grid[index], wanted[index]), index
    assert np.array_equal(leaf.reshape(72), expected.reshape(72))
    for wrong in (24, -25, [0, 24]):
        with pytest.raises(IndexError, match="out of bounds"):
            leaf[wrong]
    with pytest.raises(IndexError, match="boolean index did not match"):
        leaf[np.ones(23, bool)]


def test_a_stored_result_is_searched_and_tabled(tmp_path):
    space = some_space(0)
    result = ep.sweep(plain, space, store=tmp_path / "r.zarr")
    memory = ep.sweep(plain, space)
    by = lambda out: out["y"][0]  # noqa: E731
    assert result.best(by).index == memory.best(by).index
    assert result.best("n.k").value == memory.best("n.k").value
    xarray.testing.assert_allclose(result.to_xarray(), memory.to_xarray())
    assert result.to_pandas().equals(
        ep.SweepResult.load(tmp_path / "r.zarr").to_pandas()
    )
    assert len(list(result)) == len(list(result[3:])) + 3
    assert "float32[15,3]" in repr(result)


def test_points_that_fail_are_stored_as_failed(tmp_path):
    def fn(p):
        return eqx.error_if(p, p > 2.5, "too large"), jnp.int32(1)

    space, path = ep.Linspace(0, 3, 13), tmp_path / "runs.zarr"
    asked = {"batch_size": 2, "mesh": one_device()}
    with pytest.raises(ep.SweepError, match="at point 11") as caught:
        ep.sweep(fn, space, store=path, **asked)
    assert caught.value.indices == (11,)
    assert "10 of 13 points are finished and kept" in caught.value.__notes__[-1]
    half = xarray.open_zarr(path).load()
    assert half["status"].values.tolist() == [1] * 10 + [0] * 3
    assert np.isnan(half["0"].values[10:]).all()
    result = ep.sweep(fn, space, store=path, on_error="mark", **asked)
    memory = ep.sweep(fn, space, on_error="mark", **asked)
    close(result.values, memory.values)
    assert np.array_equal(result.ok, memory.ok) and not result.ok[11:].any()
    close_dataset(result.to_xarray(), memory.to_xarray())
    assert result.to_xarray()["status"].values.tolist() == [1] * 11 + [2] * 2
    frame = result.to_pandas()
    assert frame["1"].tolist() == [1] * 11 + [0] * 2  # which alone would be a number
    assert frame["status"].tolist() == [1] * 11 + [2] * 2


@pytest.mark.parametrize("first", [{}, {"shard": (0, 2)}])
def test_failures_in_a_store_are_raised(tmp_path, first):
    space, path = ep.Linspace(0, 3, 13), tmp_path / "runs.zarr"
    asked = {"batch_size": 2, "mesh": one_device(), "store": path}

    def fn(p):
        return eqx.error_if(p, (p == 0.0) | (p == 1.0), "no")

    ep.sweep(fn, space, on_error="mark", **first, **asked)
    done = np.array(xarray.open_zarr(path)["status"])
    with pytest.raises(ep.SweepError, match='Pass `on_error="mark"`') as caught:
        ep.sweep(fn, space, **asked)
    assert caught.value.indices == (0, 4)
    assert "failed at 2 points (0, 4)" in str(caught.value)
    # Before anything is computed.
    assert np.array_equal(xarray.open_zarr(path)["status"], done)
    result = ep.sweep(fn, space, on_error="mark", **asked)
    assert np.flatnonzero(~result.ok).tolist() == [0, 4]


@pytest.mark.parametrize("here", [True, False])
def test_costs_are_computed_of_what_is_computed(tmp_path, here):
    asked_for = []

    def cost(x):
        keep = lambda x: asked_for.append(float(x)) or x  # noqa: E731
        return jax.pure_callback(keep, x, x, vmap_method="sequential")

    values = np.float32([5, 1, 4, 2, 6, 3, 9, 8])
    asked = {"store": tmp_path / "r.zarr", "order_by": cost, "batch_size": 2}

    def run(**part):
        asked_for.clear()
        with ThreadPoolExecutor(2) as pool:
            where = {"mesh": one_device()} if here else {"executor": pool}
            result = ep.sweep(jnp.sin, ep.Values(values), **asked, **where, **part)
        return sorted(set(asked_for)), result

    first, half = run(shard=(0, 2))
    assert first == sorted(values[half.ok]) and 0 < len(first) < len(values)
    second, whole = run(shard=(1, 2))
    assert second == sorted(values[~half.ok])
    assert run()[0] == []  # nothing is left to do
    store = stored(tmp_path / "r.zarr")
    lost = int(store.chunks.holding(np.array(7)))
    discard(store, lost)
    again, result = run()
    assert again == sorted(values[slice(*store.chunks.span(lost))])
    expected = ep.sweep(jnp.sin, ep.Values(values), batch_size=2, mesh=one_device())
    close(result.values, expected.values)
    close(whole.values, expected.values)


def test_what_power_failures_and_deletions_leave_is_computed_again(tmp_path):
    space, path = ep.Linspace(0, 1, 9), tmp_path / "runs.zarr"
    asked = {"batch_size": 2, "mesh": one_device(), "store": path}
    expected = ep.sweep(jnp.sin, space, **asked).values[:]
    (path / "value" / "c.3").write_bytes(b"")
    (path / "status" / "c.2").write_bytes(b"")
    (path / "value" / "c.1").unlink()
    assert np.array_equal(ep.sweep(jnp.sin, space, **asked).values, expected)
    for name in ("value", "status"):  # somebody removes a whole folder
        shutil.rmtree(path / name)
        assert np.array_equal(ep.sweep(jnp.sin, space, **asked).values, expected)


@pytest.mark.parametrize("moment", [1, 3, 10])
def test_a_store_that_is_deleted_while_it_is_filled_promises_nothing(tmp_path, moment):
    """Before the first of ten chunks, between others, or before the last one."""
    path, seen = tmp_path / "runs.zarr", []

    def fn(x):
        def look(x):
            seen.append(x)
            if len(seen) == moment:
                shutil.rmtree(path)
            return x

        return jax.pure_callback(look, x, x, vmap_method="expand_dims")

    asked = {"batch_size": 2, "mesh": one_device(), "store": path}
    with pytest.raises(ep.SweepError, match=f"`{path}`.*(delete|could not take)"):
        ep.sweep(fn, ep.Linspace(0, 1, 20), **asked)
    assert not path.exists()
    result = ep.sweep(fn, ep.Linspace(0, 1, 20), **asked)
    assert result.ok.all()
    shutil.rmtree(path)
    with pytest.raises(OSError, match=f"`{path}` was deleted"):
        result.values[:]


def test_progress_counts_what_was_there(tmp_path, monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    space, path = ep.Linspace(0, 1, 20), tmp_path / "runs.zarr"
    asked = {"batch_size": 2, "mesh": one_device(), "store": path}
    ep.sweep(jnp.sin, space, **asked)
    store = stored(path)
    for number in range(5):
        discard(store, number)
    monkeypatch.setattr(sys, "stderr", terminal)
    ep.sweep(jnp.sin, space, progress=True, **asked)
    bars = [line for line in terminal.getvalue().split("\r") if "20" in line]
    assert "10/20" in bars[0] and "20/20" in bars[-1] and "points/s" in bars[-1]
