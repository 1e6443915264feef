"""The result of a sweep: indexed, sliced, labelled, searched for the best point."""

import sys

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.helpers import few

import eqx_pipe as ep

SPACE = ep.Space(
    {
        "rate": ep.Geomspace(1e-2, 1, 3),
        "net": {"width": ep.Values([8, 16], dim="size")},
        "start": ep.Values(np.arange(6.0).reshape(2, 3), dim="size"),
    }
)


def fn(point):
    loss = point["rate"] * point["net"]["width"].astype(jnp.float32)
    return {"loss": loss, "path": point["start"] * 2, "rate": point["rate"] > 0.1}


@pytest.fixture(scope="module")
def result():
    return ep.sweep(fn, SPACE)


def test_it_is_a_sequence_of_outputs(unchecked, result):
    outputs = list(result)
    assert len(result) == len(outputs) == 6
    for i, output in enumerate(outputs):
        expected = fn(SPACE.point(i))
        for got in (output, result[i], result[i - 6]):
            assert jtu.tree_structure(got) == jtu.tree_structure(expected)
            np.testing.assert_allclose(got["path"], expected["path"])
            np.testing.assert_allclose(got["loss"], expected["loss"], rtol=1e-6)
    assert sum(1 for _ in result for _ in result) == 36
    with pytest.raises(IndexError, match="6 points, 0 to 5"):
        result[6]
    with pytest.raises(TypeError, match="an integer, a slice"):
        result["loss"]


def test_slices_are_results(result):
    part = result[4:0:-2]
    assert len(part) == 2 and part.space.dims == {"point": 2}
    for i, j in enumerate((4, 2)):
        assert part[i]["loss"] == result[j]["loss"]
        assert part.space[i]["rate"] == SPACE[j]["rate"]
    assert part.best("loss").point["rate"] == result[2:5:2].best("loss").point["rate"]


def test_grid_has_the_dims_in_front(result):
    grid = result.grid()
    assert grid["loss"].shape == (3, 2) and grid["path"].shape == (3, 2, 3)
    assert grid["loss"][2, 1] == result[5]["loss"]
    assert result[1:].grid()["loss"].shape == (5,)


def test_xarray_has_dims_coordinates_and_what_made_it(result):
    data = result.to_xarray()
    assert dict(data.sizes) == {"rate": 3, "size": 2, "start.0": 3, "path.0": 3}
    assert list(data.data_vars) == ["loss", "path", "result.rate"]
    assert data["loss"].dims == ("rate", "size")
    assert data["path"].dims == ("rate", "size", "path.0")
    assert data["net.width"].dims == ("size",)
    assert data["start"].dims == ("size", "start.0")
    best = data["loss"].sel(rate=1, size=1)
    assert best == result[5]["loss"] and best["net.width"] == 16


@pytest.mark.parametrize("cut", [slice(None), slice(4, 0, -2)])
def test_coordinates_are_the_values_of_points_bit_for_bit(cut):
    space = ep.Space({"a": ep.Linspace(0.1, 0.7, 7), "b": ep.Geomspace(1e-5, 3, 5)})[
        cut
    ]
    result = ep.sweep(lambda p: p, space)
    data = result.to_xarray().stack(all=list(space.dims))
    for name in "ab":
        assert np.array_equal(data[name].values, result.values[name])
        assert np.array_equal(space.to_pandas()[name], result.values[name])
        assert np.array_equal([p[name] for p in space], result.values[name])


def test_keys_and_short_floats_are_stored_in_what_files_know(tmp_path):
    def draw(key):
        return {"key": jr.fold_in(key, 1), "half": jnp.bfloat16(1.5), "none": None}

    keys = ep.Values(jr.split(jr.key(0), 3))
    result = ep.sweep(lambda p: draw(p["k"]), {"k": keys})
    assert result.values["half"].dtype == jnp.bfloat16
    assert result.values["key"][1] == jr.fold_in(keys.values[1], 1)
    data = result.to_xarray()
    assert data["half"].dtype == np.float32
    assert np.array_equal(data["key"].values, jr.key_data(result.values["key"]))
    xarray = pytest.importorskip("xarray")
    plain = ep.sweep(fn, SPACE).to_xarray()
    plain.to_zarr(tmp_path / "result.zarr", consolidated=False)
    back = xarray.open_zarr(tmp_path / "result.zarr", consolidated=False)
    assert back.identical(plain) and back.attrs == plain.attrs


def test_pandas_has_dotted_names(result):
    frame = result.to_pandas()
    assert list(frame.columns) == [
        "rate", "net.width", "start.0", "start.1", "start.2",
        "loss", "path.0", "path.1", "path.2", "result.rate", "status",
    ]  # fmt: skip
    assert len(frame) == 6
    assert frame["net.width"].tolist() == [8, 16] * 3
    np.testing.assert_allclose(frame["loss"], result.values["loss"])


def test_best_finds_the_extreme_and_never_a_nan():
    values = ep.Values([3.0, np.nan, 1.0, 5.0, 1.0])
    result = ep.sweep(lambda x: x, values)
    best = result.best()
    assert (best.index, best.value, best.point, best.output) == (2, 1, 1, 1)
    assert result.best(mode="max").index == 3
    assert result.best(lambda y: -y).index == 3
    nested = ep.sweep(lambda x: {"fit": [x, x * 0]}, values)
    assert nested.best("fit.0").index == 2
    assert nested.best(lambda out: out["fit"][0]).output["fit"][0] == 1
    whole = ep.sweep(lambda x: x > 2, ep.Values([1.0, 3.0]))
    assert whole.best(mode="max").index == 1


@few
@given(st.data(), st.sampled_from("bool uint8 int32 float16 float32".split()))
def test_best_compares_numbers_of_any_dtype(data, dtype):
    """Small and large integers do not wrap, and a NaN never wins."""
    kind = np.dtype(dtype)
    extremes = [True, False]
    if kind.kind in "iu":
        extremes = [np.iinfo(kind).min, np.iinfo(kind).max, 1, 2]
    elif kind.kind == "f":
        extremes = [np.nan, -np.inf, np.inf, 1, 2, 60000]
    drawn = data.draw(st.lists(st.sampled_from(extremes), min_size=5, max_size=5))
    values = [x for x in drawn if x == x]
    assume(values)
    result = ep.sweep(lambda x: x, ep.Values(np.array(drawn, kind)))
    for mode, pick in (("min", min), ("max", max)):
        best = result.best(mode=mode)
        assert best.index == drawn.index(pick(values)) and best.value == pick(values)


def test_best_over_replicates_compares_their_means(unchecked):
    losses = jnp.array([[0.0, 9.0, 9.0], [5.0, 5.0, 5.0], [jnp.nan, 0.0, 0.0]])
    space = {"seed": ep.Seeds(3), "lr": ep.Values([0, 1, 2]), "on": ep.Values([1, 2])}

    def fn(p):
        loss = losses[p["lr"], p["seed"]] * p["on"].astype(jnp.float32)
        return {"loss": loss, "at": p["seed"]}

    result = ep.sweep(fn, space)
    best = result.best("loss", over="seed")
    assert best.value == 5 and best.point == {"seed": None, "lr": 1, "on": 1}
    assert best.output["loss"].tolist() == [5, 5, 5]
    same = result[best.index].values
    assert jtu.tree_map(np.ndarray.tolist, best.output) == {
        name: leaf.tolist() for name, leaf in same.items()
    }
    assert best.output["at"].tolist() == [0, 1, 2]
    means = result.to_xarray()["loss"].mean("seed", skipna=False)
    assert result.best("loss", "max", over="seed").value == means.max()
    both = result.best(lambda y: y["at"], over=("on", "seed"))
    assert both.value == 1 and both.index.shape == (6,) and both.point["on"] is None
    with pytest.raises(ValueError, match="names 'seed'.*over the whole grid"):
        result[:4].best("loss", over="seed")
    lucky = "Best(index=[1, 7, 13], value=12, lr=0, on=2)"
    assert repr(result.best("loss", "max", over=["seed"])) == lucky


def test_best_over_replicates_leaves_out_settings_with_a_failure():
    def fn(p):
        y = p["x"] + p["seed"]
        return eqx.error_if(y, (p["x"] < 1) & (p["seed"] == 1), "no")

    space = {"x": ep.Values([0, 1, 2]), "seed": ep.Seeds(2)}
    result = ep.sweep(fn, space, on_error="mark")
    assert result.best().index == 0
    assert result.best(over="seed").index.tolist() == [2, 3]
    with pytest.raises(ValueError, match="every setting has a replicate that failed"):
        result.best(
            lambda y: jnp.float32(jnp.nan) + 0.0 * y.astype(jnp.float32), over="seed"
        )


def test_repr_tells_shapes_time_and_batch_size(result):
    text = repr(result)
    assert text.startswith("SweepResult(6 points; rate: 3, size: 2)")
    assert "path  float32[6,3]" in text and "8 devices" in text


@pytest.mark.parametrize("module", ["xarray", "pandas"])
def test_a_missing_library_names_the_extra(result, module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=r"eqx_pipe\[sweep\]"):
        getattr(result, f"to_{module}")()
