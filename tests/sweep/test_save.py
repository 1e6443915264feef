"""Results written to files and read again, and what is refused."""

import collections
import contextlib
import os
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.stores import one_device

import eqx_pipe as ep

Pair = collections.namedtuple("Pair", ["low", "high"])


class Model(eqx.Module):
    weight: object
    bias: object
    name: str = eqx.field(static=True)


ONE = one_device()


def square(x):
    return x**2


AXES = {
    "line": lambda: ep.Linspace(0.1, 0.7, 3),
    "geom": lambda: ep.Geomspace(1e-3, 1.0, 2),
    "ints": lambda: ep.Values([3, 1]),
    "flags": lambda: ep.Values([True, False]),
    "complex": lambda: ep.Values([1 + 2j, 0.5]),
    "bf16": lambda: ep.Values(jnp.array([1.5, 2.5], jnp.bfloat16)),
    "half": lambda: ep.Values(np.array([1.5, 2.5], np.float16)),
    "vectors": lambda: ep.Values(np.arange(6.0).reshape(2, 3)),
    "keys": lambda: ep.Values(jr.split(jr.key(3), 2)),
    "seeds": lambda: ep.Seeds(2),
    "widths": lambda: ep.Static([4, 8]),
    "names": lambda: ep.Static(["tanh", square]),
    "pairs": lambda: ep.Mapped(
        lambda x: {"a": x, "b": (x, 2 * x)}, ep.Linspace(0, 1, 2)
    ),
}


def everything(point):
    """Return an output of every dtype, from the numbers of a point."""
    total = jnp.float32(0)
    for leaf in jtu.tree_leaves(point):
        if isinstance(leaf, jax.Array) and leaf.dtype == jnp.float32:
            total += leaf.sum()
    return {
        "total": total,
        "flag": total > 0.5,
        "more": [(jax.lax.complex(total, total), jnp.bfloat16(1.5))],
        "key": jr.fold_in(jr.key(0), jnp.int32(10 * total)),
        "path": jnp.arange(3) * jnp.int32(total),
        "half": total.astype(jnp.float16),
        "nothing": None,
    }


def same(a, b):
    """Raise unless two pytrees are equal bit for bit, keys and kinds included."""
    assert jtu.tree_structure(a) == jtu.tree_structure(b)
    for left, right in zip(jtu.tree_leaves(a), jtu.tree_leaves(b), strict=True):
        if not eqx.is_array(left):
            assert type(left) is type(right) and left == right
            continue
        assert left.dtype == right.dtype
        if jnp.issubdtype(left.dtype, jax.dtypes.prng_key):
            left, right = jr.key_data(left), jr.key_data(right)
        np.testing.assert_array_equal(np.asarray(left), np.asarray(right))


@given(
    names=st.lists(st.sampled_from(sorted(AXES)), min_size=1, max_size=3, unique=True),
    how=st.sampled_from(["product", "slice", "zip"]),
)
def test_what_is_loaded_is_what_was_saved(names, how, tmp_path_factory):
    if how == "zip":
        names = [name for name in names if name != "line"] or ["ints"]
    tree = {"b": [AXES[name]() for name in names], "a": (1, 2.5, "text", None)}
    space = ep.Space(tree, "zip" if how == "zip" else "product")
    if how == "slice":
        space = space[::-1][: max(1, space.size - 1)]
    result = ep.sweep(everything, space, batch_size=1)
    path = tmp_path_factory.mktemp("saved") / "result.zarr"
    result.save(path)
    back = ep.SweepResult.load(path)
    same(back.values, result.values)
    assert back.space.dims == result.space.dims
    assert back.space.mode == ("product" if how == "product" else "zip")
    for one, other in zip(back.space, space, strict=True):
        texts = jtu.tree_map(lambda x: x.__name__ if callable(x) else x, other)
        same(one, texts)
    assert np.array_equal(back.ok, result.ok) and back.ok.dtype == bool
    if how == "product":
        last = (s.point_key(s.size - 1, key=jr.key(1)) for s in (space, back.space))
        same(*last)
    assert back.to_xarray().identical(result.to_xarray())


def test_coordinates_of_64_bits_are_loaded_without_rounding(tmp_path, unchecked):
    days, count = np.array([2459000.1, 2459000.4, 2459000.7]), 2**40
    space = {"day": days, "n": np.arange(3) + count}
    with jax.enable_x64(True):
        tree = {name: ep.Values(x) for name, x in space.items()}
        tree = ep.Space({**tree, "at": jnp.float64(days[0])}, mode="zip")
        result = ep.sweep(lambda p: p["day"] - p["at"], tree)
        result.save(tmp_path / "r.zarr")
        kept = ep.search.explore(
            lambda p: p["t"],
            {"t": ep.Uniform(days[0], days[1])},
            ep.search.Design([[0.0], [0.7], [1.0]]),
            rounds=2,
            num=2,
            store=tmp_path / "search",
        ).to_pandas()
    loaded = ep.SweepResult.load(tmp_path / "r.zarr")
    part = loaded[[1, 2, 0]]
    for result, order in ((loaded, [0, 1, 2]), (part, [1, 2, 0])):
        for name, x in space.items():
            assert result.to_pandas()[name].tolist() == x[order].tolist()
            assert result.to_xarray()[name].values.tolist() == x[order].tolist()
    assert loaded.space.tree["at"] == days[0]
    day = ep.Space({"day": loaded.space.tree["day"]})
    assert day.point(1)["day"] == np.float32(days[1])
    with pytest.raises(ValueError, match="1099511627777, which does not fit int32"):
        loaded.space.point(1)
    again = ep.search.SearchResult.load(tmp_path / "search").to_pandas()
    assert again["t"].tolist() == kept["t"].tolist()


def test_other_containers_come_back_as_dicts_by_path(tmp_path):
    model = Model(ep.Linspace(0, 1, 2), jnp.arange(2), "m")
    space = ep.Space({"m": model, "big": np.zeros(1000), "f": jnp.tanh})

    def fn(point):
        pair = Pair(point["m"].weight, point["m"].weight * 2)
        return Model(pair, point["m"].bias, "out")

    result = ep.sweep(fn, space)
    result.save(tmp_path / "r.zarr")
    back = ep.SweepResult.load(tmp_path / "r.zarr")
    assert back.values["weight"]["high"].tolist() == [0, 2]
    assert back.values["bias"].tolist() == [[0, 1], [0, 1]]
    point = back.space.point(1)
    assert point["m"]["weight"] == 1 and point["m"]["bias"].tolist() == [0, 1]
    assert point["big"] == jax.ShapeDtypeStruct((1000,), np.float64)
    assert "tanh" in point["f"]
    assert list(back.space.axes()) == ["m.weight"]


def test_status_and_what_made_it_come_back(tmp_path):
    def fn(x):
        return eqx.error_if(x, x == 2, "two")

    result = ep.sweep(fn, ep.Linspace(0, 3, 4), on_error="mark", batch_size=2)
    result.save(tmp_path / "r.zarr")
    back = ep.SweepResult.load(tmp_path / "r.zarr")
    assert back.ok.tolist() == [True, True, False, True]
    assert np.isnan(back.values[2]) and abs(back.started - result.started) < 1
    assert back.to_xarray().identical(result.to_xarray())
    part = back[1:3]
    assert "Values" in part.to_xarray().attrs["space"] and part.ok.tolist() == [1, 0]


def test_failed_points_of_each_chunk_come_back(tmp_path, monkeypatch):
    def fn(x):
        x = eqx.error_if(x, x == 2, "two")
        return eqx.error_if(x, x == 5, "five")

    result = ep.sweep(fn, ep.Linspace(0, 6, 7), on_error="mark", batch_size=2)
    monkeypatch.setattr("eqx_pipe._results.files._CHUNK_BYTES", 12)
    result.save(tmp_path / "r.zarr")
    back = ep.SweepResult.load(tmp_path / "r.zarr")
    assert len([*(tmp_path / "r.zarr").glob("status/c*")]) == 3
    assert back.errors == result.errors and "five" in back.errors[5]


def test_points_that_are_missing_are_saved_as_missing(tmp_path):
    asked = {"store": tmp_path / "half", "batch_size": 1, "mesh": ONE}
    part = ep.sweep(square, ep.Linspace(0, 3, 4), shard=(0, 2), **asked)
    part.save(tmp_path / "r.zarr")
    half = ep.SweepResult.load(tmp_path / "r.zarr")
    assert half.status.tolist() == [1, 0, 1, 0] and np.isnan(half.values[1])
    assert half.best(mode="max").index == 2
    assert half.to_xarray()["status"].values.tolist() == [1, 0, 1, 0]
    assert "2 points missing" in repr(half) and "failed" not in repr(half)


def test_nothing_is_overwritten_by_mistake(tmp_path):
    one = ep.sweep(square, ep.Linspace(0, 3, 4))
    # Names that were of coordinates are of values now.
    two = ep.sweep(lambda p: {"value": p["y"], "x": p["y"]}, {"y": ep.Values([1, 2])})
    path = tmp_path / "r.zarr"
    one.save(path)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        two.save(path)
    assert len(ep.SweepResult.load(path)) == 4
    for result in (two, one, two, one):
        result.save(str(path), overwrite=True)
        same(ep.SweepResult.load(path).values, result.values)
        files = {p.name for p in path.iterdir() if p.name[0] != "."}
        assert files == {"zarr.json", *result.to_xarray().variables}
    assert os.listdir(tmp_path) == [path.name]
    other = tmp_path / "other.zarr"
    other.mkdir()
    (other / "thesis.txt").write_text("precious")
    with pytest.raises(FileExistsError, match="can be overwritten.*yourself"):
        one.save(other, overwrite=True)
    assert os.listdir(other) == ["thesis.txt"]


def test_a_kill_at_any_step_of_a_save_leaves_the_old_result_or_the_new(
    tmp_path, monkeypatch
):
    one, two = (ep.sweep(square, ep.Linspace(0, 3, n)) for n in (4, 7))
    replace, sizes = os.replace, set()
    for step in range(20):
        path, left = tmp_path / f"{step}.zarr", [step]
        one.save(path)

        def killed(source, target, left=left):
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            replace(source, target)

        monkeypatch.setattr(os, "replace", killed)
        with contextlib.suppress(KeyboardInterrupt):
            two.save(path, overwrite=True)
        monkeypatch.undo()
        kept = ep.SweepResult.load(path)
        sizes.add(len(kept))
        same(kept.values, (one if len(kept) == 4 else two).values)
        two.save(path, overwrite=True)
        same(ep.SweepResult.load(path).values, two.values)
        assert not (path / ".growing").exists()
    assert sizes == {4, 7} and left[0] > 0


def test_xarray_opens_it_as_it_is(tmp_path):
    import xarray

    space = {"f": ep.Static([jnp.sin, jnp.cos]), "x": ep.Linspace(0, 1, 3)}
    result = ep.sweep(lambda p: p["f"](p["x"]), space)
    result.save(tmp_path / "r.zarr")
    with xarray.open_zarr(tmp_path / "r.zarr") as data:
        assert data["value"].sel(f="cos", x=0) == 1
        assert data.drop_attrs().identical(result.to_xarray().drop_attrs())
    for engine in ("scipy", "netcdf4"):
        result.to_xarray().to_netcdf(tmp_path / f"{engine}.nc", engine=engine)
        with xarray.open_dataset(tmp_path / f"{engine}.nc", engine=engine) as data:
            assert data.equals(result.to_xarray())
            assert data.attrs["space_mode"] == "product"


def test_what_cannot_be_saved_or_loaded(tmp_path, unchecked):
    result = ep.sweep(square, ep.Linspace(0, 3, 4))
    with pytest.raises(TypeError, match="reduced them"):
        reduced = ep.sweep(square, ep.Linspace(0, 3, 4), reduce=ep.reduce.Mean())
        reduced.save("r.zarr")
    with pytest.raises(FileNotFoundError, match="does not exist.*Known names: none"):
        ep.SweepResult.load(tmp_path / "none.zarr")
    with pytest.raises(FileNotFoundError, match="lost.*paths begin where"):
        ep.SweepResult.load(tmp_path / "lost" / "none.zarr")
    (tmp_path / "grid_1.zarr").mkdir()
    with pytest.raises(FileNotFoundError, match="Did you mean `grid_1.zarr`"):
        ep.SweepResult.load(tmp_path / "grid1.zarr")
    (tmp_path / "text.nc").write_text("hello")
    for name in ("grid_1.zarr", "text.nc"):
        with pytest.raises(ValueError, match="is not a store"):
            ep.SweepResult.load(tmp_path / name)
    result.to_xarray().to_zarr(tmp_path / "foreign.zarr", consolidated=False)
    with pytest.raises(ValueError, match="was not created by a sweep"):
        ep.SweepResult.load(tmp_path / "foreign.zarr")


def test_saving_without_xarray_names_the_extra(tmp_path, monkeypatch):
    result = ep.sweep(square, ep.Linspace(0, 3, 4))
    result.save(tmp_path / "new" / "folder" / "r.zarr")
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(ImportError, match=r"eqx_pipe\[sweep\]"):
        result.save(tmp_path / "s.zarr")
    with pytest.raises(ImportError, match=r"SweepResult.load.*eqx_pipe\[sweep\]"):
        ep.SweepResult.load(tmp_path / "new" / "folder" / "r.zarr")
