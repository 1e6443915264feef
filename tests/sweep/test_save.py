"""Results written to files and read again, and what is refused."""

import collections
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

import eqx_pipe as ep

Pair = collections.namedtuple("Pair", ["low", "high"])


class Model(eqx.Module):
    weight: object
    bias: object
    name: str = eqx.field(static=True)


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
    "widths": lambda: ep.Static([4, 8]),
    "names": lambda: ep.Static(["tanh", square]),
    "pairs": lambda: ep.Mapped(
        lambda x: {"a": x, "b": (x, 2 * x)}, ep.Linspace(0, 1, 2)
    ),
}


def everything(point):
    """An output of every dtype, from the numbers of a point."""
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
    """Raises unless two pytrees are equal bit for bit, keys and kinds included."""
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
    suffix=st.sampled_from([".zarr", ".nc"]),
)
def test_what_is_loaded_is_what_was_saved(names, how, suffix, tmp_path_factory):
    if how == "zip":
        names = [name for name in names if name != "line"] or ["ints"]
    tree = {"b": [AXES[name]() for name in names], "a": (1, 2.5, "text", None)}
    space = ep.Space(tree, "zip" if how == "zip" else "product")
    if how == "slice":
        space = space[::-1][: max(1, space.size - 1)]
    result = ep.sweep(everything, space, batch_size=1)
    path = tmp_path_factory.mktemp("saved") / f"result{suffix}"
    result.save(path)
    back = ep.SweepResult.load(path)
    same(back.values, result.values)
    assert back.space.dims == result.space.dims
    assert back.space.mode == ("product" if how == "product" else "zip")
    for one, other in zip(back.space, space, strict=True):
        texts = jtu.tree_map(lambda x: x.__name__ if callable(x) else x, other)
        same(one, texts)
    assert np.array_equal(back.ok, result.ok) and back.ok.dtype == bool
    assert back.to_xarray().identical(result.to_xarray())


def test_other_containers_come_back_as_dicts_by_path(tmp_path):
    model = Model(ep.Linspace(0, 1, 2), jnp.arange(2), "m")
    space = ep.Space({"m": model, "big": np.zeros(1000), "f": jnp.tanh})

    def fn(point):
        pair = Pair(point["m"].weight, point["m"].weight * 2)
        return Model(pair, point["m"].bias, "out")

    result = ep.sweep(fn, space)
    result.save(tmp_path / "r.nc")
    back = ep.SweepResult.load(tmp_path / "r.nc")
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
    assert back.status.tolist() == [1, 1, 2, 1]
    assert np.isnan(back.values[2])
    assert back.batch_size == 2 and back.num_devices == 8
    assert back.function.endswith("fn") and abs(back.started - result.started) < 1
    assert "Linspace(0, 3, 4)" in back.to_xarray().attrs["space"]
    part = back[1:3]
    assert "Values" in part.to_xarray().attrs["space"] and part.ok.tolist() == [1, 0]


def test_points_that_a_store_lacks_are_not_ok(tmp_path):
    data = ep.sweep(square, ep.Linspace(0, 3, 4)).to_xarray()
    data["status"].values[2:] = 0
    data["value"].values[2:] = np.nan
    data.transpose(..., "x").to_zarr(tmp_path / "half", consolidated=False)
    half = ep.SweepResult.load(tmp_path / "half")
    assert half.ok.tolist() == [True, True, False, False]
    assert half.best(mode="max").index == 1
    assert half.to_xarray()["status"].values.tolist() == [1, 1, 0, 0]
    assert half[1:].status.tolist() == [1, 0, 0]
    assert "2 points missing" in repr(half) and "failed" not in repr(half)


@pytest.mark.parametrize("suffix", [".zarr", ".nc"])
def test_nothing_is_overwritten_by_mistake(suffix, tmp_path):
    one = ep.sweep(square, ep.Linspace(0, 3, 4))
    two = ep.sweep(square, ep.Linspace(0, 3, 7))
    path = tmp_path / f"r{suffix}"
    one.save(path)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        two.save(path)
    assert len(ep.SweepResult.load(path)) == 4
    two.save(str(path), overwrite=True)
    assert len(ep.SweepResult.load(path)) == 7
    assert os.listdir(tmp_path) == [path.name]
    other = tmp_path / f"other{suffix}"
    if suffix == ".zarr":
        other.mkdir()
        (other / "thesis.txt").write_text("precious")
    else:
        other.mkdir()
    with pytest.raises(FileExistsError, match="no .* not overwritten.*yourself"):
        one.save(other, overwrite=True)
    assert other.exists()


@pytest.mark.parametrize("suffix", [".zarr", ".nc"])
def test_a_save_that_fails_leaves_what_was_there(suffix, tmp_path, monkeypatch):
    import xarray

    result = ep.sweep(square, ep.Linspace(0, 3, 4))
    path = tmp_path / f"r{suffix}"
    result.save(path)
    name = "to_zarr" if suffix == ".zarr" else "to_netcdf"
    whole = getattr(xarray.Dataset, name)

    def fails(self, *args, **options):
        whole(self, *args, **options)
        raise OSError("No space left on device")

    monkeypatch.setattr(xarray.Dataset, name, fails)
    with pytest.raises(OSError, match="No space left"):
        result[1:].save(path, overwrite=True)
    assert os.listdir(tmp_path) == [path.name]
    assert len(ep.SweepResult.load(path)) == 4


def test_xarray_opens_and_writes_it_as_it_is(tmp_path):
    import xarray

    space = {"f": ep.Static([jnp.sin, jnp.cos]), "x": ep.Linspace(0, 1, 3)}
    result = ep.sweep(lambda p: p["f"](p["x"]), space)
    result.save(tmp_path / "r.zarr")
    with xarray.open_zarr(tmp_path / "r.zarr") as data:
        assert data["value"].sel(f="cos", x=0) == 1
        assert data.identical(result.to_xarray())
    data = result.to_xarray()
    data.to_netcdf(tmp_path / "r.nc")
    assert ep.SweepResult.load(tmp_path / "r.nc").to_xarray().identical(data)
    data.to_zarr(tmp_path / "s.zarr", consolidated=False)
    assert ep.SweepResult.load(tmp_path / "s.zarr").to_xarray().identical(data)


def test_what_cannot_be_saved_or_loaded(tmp_path, unchecked):
    result = ep.sweep(square, ep.Linspace(0, 3, 4))
    with pytest.raises(ValueError, match=r"'\.pkl'.*`\.zarr` or in `\.nc`"):
        result.save(tmp_path / "r.pkl")
    with pytest.raises(TypeError, match="`path` is 3.*pathlib"):
        result.save(3)
    with pytest.raises(TypeError, match="reduced them"):
        ep.sweep(square, ep.Linspace(0, 3, 4), reduce=ep.reduce.Mean()).save("r.nc")
    with pytest.raises(FileNotFoundError, match="nothing at.*holds no `.zarr` or"):
        ep.SweepResult.load(tmp_path / "none.zarr")
    with pytest.raises(FileNotFoundError, match="no folder .*lost.* check the path"):
        ep.SweepResult.load(tmp_path / "lost" / "none.zarr")
    (tmp_path / "grid_1.zarr").mkdir()
    with pytest.raises(FileNotFoundError, match="Did you mean `grid_1.zarr`"):
        ep.SweepResult.load(tmp_path / "grid1.zarr")
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.nc").write_text("hello")
    for name in ("empty", "text.nc"):
        with pytest.raises(ValueError, match="cannot be opened"):
            ep.SweepResult.load(tmp_path / name)
    data = result.to_xarray()
    data.attrs["eqx_pipe_schema"] = '{"version": 99}'
    data.to_netcdf(tmp_path / "new.nc")
    with pytest.raises(ValueError, match="version 99.*xarray.open_dataset"):
        ep.SweepResult.load(tmp_path / "new.nc")
    data.drop_attrs().to_netcdf(tmp_path / "foreign.nc")
    with pytest.raises(ValueError, match="no schema"):
        ep.SweepResult.load(tmp_path / "foreign.nc")


def test_saving_without_xarray_names_the_extra(tmp_path, monkeypatch):
    result = ep.sweep(square, ep.Linspace(0, 3, 4))
    result.save(tmp_path / "r.nc")
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(ImportError, match=r"eqx_pipe\[sweep\]"):
        result.save(tmp_path / "s.nc")
    with pytest.raises(ImportError, match=r"SweepResult.load.*eqx_pipe\[sweep\]"):
        ep.SweepResult.load(tmp_path / "r.nc")


@pytest.mark.parametrize("suffix", ["zarr", "nc"])
def test_folders_on_the_way_are_made(suffix, tmp_path):
    path = tmp_path / "new" / "folder" / f"runs.{suffix}"
    ep.sweep(jnp.sin, ep.Linspace(0, 1, 3)).save(path)
    assert ep.SweepResult.load(path).values.shape == (3,)


def test_an_axis_named_like_the_parts_of_complex_numbers_comes_back(tmp_path):
    space = {"c": ep.Linspace(0, 1, 2), "x": ep.Linspace(0, 1, 3)}
    result = ep.sweep(lambda p: p["c"] * p["x"], space)
    result.save(tmp_path / "r.nc")
    again = ep.SweepResult.load(tmp_path / "r.nc")
    assert np.array_equal(again.values, result.values)
    assert list(again.space.dims) == ["c", "x"]
