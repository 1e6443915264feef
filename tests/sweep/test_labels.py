"""Names in datasets, files and data frames: nothing is lost, no name is two things."""

import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.helpers import few
from support.stores import one_device, same_dataset

import eqx_pipe as ep

xarray = pytest.importorskip("xarray")
pytest.importorskip("zarr")
pytest.importorskip("pandas")

PAIR = np.arange(4.0).reshape(2, 2)
THETA = {"theta": [ep.Linspace(1, 2, 2), ep.Linspace(3, 4, 2)]}

SPACES = {
    "list": lambda: ep.Space({"u": [ep.Linspace(1, 2, 2), ep.Linspace(3, 4, 2)]}),
    "zipped": lambda: ep.Space({"u": [ep.Values([1, 2]), ep.Values([3, 4])]}, "zip"),
    "array": lambda: ep.Space({"u": ep.Values(PAIR), "a": ep.Linspace(0, 1, 3)}),
    "array beside": lambda: ep.Space({"u": ep.Values(PAIR), "u.0": ep.Values([1, 2])}),
    "slice": lambda: ep.Space({"u": ep.Values(PAIR), "u.1": ep.Values([1, 2])})[1:],
    "dim": lambda: ep.Space(
        {"u": ep.Values(PAIR), "a": ep.Linspace(0, 1, 3, dim="u.0")}
    ),
    "entries": lambda: ep.Space({"u": [ep.Values(PAIR)], "result.u": ep.Values([1])}),
    "keys": lambda: ep.Space({"u": ep.Values(jr.split(jr.key(0), 3))}),
    "tree": lambda: ep.Space(
        {"u": ep.Mapped(lambda x: [x, -x], ep.Linspace(0, 1, 2)), "status": THETA}
    ),
}

outputs = st.dictionaries(
    st.sampled_from(["u", "u.0", "u.0.0", "result.u", "status", "a"]),
    st.sampled_from([(), (2,), (3,), (2, 3)]),
    min_size=1,
)


def numbered(shapes):
    """Return a function whose outputs are numbers that occur once in one output."""

    def fn(point):
        first = 0.0
        values = {}
        for name, shape in shapes.items():
            size = int(np.prod(shape))
            values[name] = first + jnp.arange(size, dtype=jnp.float32).reshape(shape)
            first += size
        return values

    return fn


@few
@given(st.sampled_from(sorted(SPACES)), outputs)
def test_every_output_and_axis_is_in_the_dataset_the_store_and_the_file(which, shapes):
    space = SPACES[which]()
    result = ep.sweep(numbered(shapes), space, mesh=one_device())
    data = result.to_xarray()
    leaves = jtu.tree_leaves(result.values)
    assert len(data.data_vars) == len(leaves)
    for variable, leaf in zip(data.data_vars.values(), leaves, strict=True):
        assert np.array_equal(variable.values.reshape(leaf.shape), leaf)
    for variable in data.variables.values():
        assert len(set(variable.dims)) == variable.ndim
    for name in space.axes():
        assert any(f"{found}.".startswith(f"{name}.") for found in data.coords)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        kept = ep.sweep(
            numbered(shapes), space, mesh=one_device(), store=path / "s.zarr"
        )
        same_dataset(kept.to_xarray(), data)
        same_dataset(xarray.open_zarr(path / "s.zarr"), data)
        result.save(path / "r.zarr")
        same_dataset(xarray.open_zarr(path / "r.zarr"), data)
        for name in ("s.zarr", "r.zarr"):
            same_dataset(ep.SweepResult.load(path / name).to_xarray(), data)


@few
@given(st.sampled_from(sorted(SPACES)), outputs)
def test_every_entry_has_a_column(which, shapes):
    space = SPACES[which]()
    result = ep.sweep(numbered(shapes), space)
    if which in ("array beside", "slice"):
        for table in (space.to_pandas, result.to_pandas):
            with pytest.raises(ValueError, match="two columns have the path `u"):
                table()
        return
    points, frame = space.to_pandas(), result.to_pandas()
    assert list(frame.columns[: points.shape[1]]) == list(points.columns)
    assert len(set(frame.columns)) == frame.shape[1]
    # The entries of one output are numbered, and leaves are in JAX's order.
    numbers = numbered(dict(shapes))(None)
    expected = np.concatenate([np.ravel(x) for x in jtu.tree_leaves(numbers)])
    assert frame.iloc[-1, points.shape[1] :].tolist() == [*expected.tolist(), 1]


def test_dims_of_an_output_are_no_dims_of_the_space(tmp_path):
    def fn(point):
        return {"theta": 10 * jnp.stack([*point["theta"], 0.0])}

    result = ep.sweep(fn, THETA, store=tmp_path / "s.zarr")
    for data in (
        xarray.open_zarr(tmp_path / "s.zarr"),
        result.to_xarray(),
        ep.sweep(fn, THETA).to_xarray(),
    ):
        theta = data["result.theta"]
        assert theta.dims == ("theta.0", "theta.1", "result.theta.0")
        assert theta.sel({"theta.0": 2, "theta.1": 3}).values.tolist() == [20, 30, 0]
    scalar = ep.sweep(lambda p: {"theta": p["theta"][0]}, THETA).to_xarray()
    assert scalar["theta"].dims == ("theta.0", "theta.1")


def test_dims_that_were_named_are_so_everywhere(tmp_path):
    def fn(p):
        curve = p["rate"] * jnp.arange(4.0) + p["seed"]
        return {"curve": curve, "fit": {"w": jnp.stack([curve, curve], 1)}, "at": 3}

    time, which = np.array([0.0, 0.5, 1.0, 2.0]), ["bias", "slope"]
    given = {"curve": {"at": None}, "fit.w": {"at": time, "which": which}}
    space = {"rate": ep.Linspace(1, 2, 3), "seed": ep.Values([1.0, 2.0])}
    options = {"mesh": one_device(), "output_coords": given}
    result = ep.sweep(fn, space, **options)
    data = result.to_xarray()
    assert data["curve"].dims == ("rate", "seed", "at")
    assert data["fit.w"].dims == ("rate", "seed", "at", "which")
    assert data["result.at"].dims == ("rate", "seed")  # the name of the dim is taken
    assert data["fit.w"].sel(rate=2, seed=1, at=0.5, which="slope") == 3
    store = tmp_path / "s.zarr"
    ep.sweep(fn, space | {"seed": ep.Values([1.0])}, store=store, **options)
    same_dataset(ep.sweep(fn, space, store=store, **options).to_xarray(), data)
    result.save(tmp_path / "r.zarr")
    for path in (store, tmp_path / "r.zarr"):
        again = ep.SweepResult.load(path)
        same_dataset(again.to_xarray(), data)
    for other in ({}, {"curve": {"at": time + 1}}):
        with pytest.raises(ValueError, match="output_coords"):
            ep.sweep(fn, space, store=store, **options | {"output_coords": other})
    means = ep.sweep(
        fn, space, reduce=ep.reduce.Mean(over="seed"), **options
    ).to_xarray()
    assert means["curve"].sel(rate=1, at=2.0) == 4.5
    with jax.disable_jit(), pytest.raises(ValueError, match="Known names: `curve`"):
        ep.sweep(fn, space, output_coords={"curv": {"at": time}})


def waves(p):
    return {"curve": p["a"] * jnp.arange(3.0), "a": p["a"]}


def test_a_reduction_of_all_points_is_labelled(tmp_path):
    r, times = ep.reduce, [0.0, 0.5, 1.0]
    reducers = {
        "mean": r.Mean(),
        "band": r.Quantile([0.25, 0.75], "curve"),
        "level": r.Quantile([0.5], "a"),
        "low": r.Min(lambda y: y["curve"][1:]),
        "bins": r.Histogram([0, 1, 4], "a"),
        "more": r.Histogram([0, 2], "a"),
        "top": r.TopK(2, "a"),
        "first": r.ArgMin("a"),
        "none": r.ArgMax(lambda y: y["a"] * jnp.nan),
    }
    space, named = ep.Linspace(0, 4, 9), {"curve": {"t": times}}
    result = ep.sweep(waves, {"a": space}, reduce=reducers, output_coords=named)
    data = result.to_xarray()
    assert set(data.dims) == {
        "t", "quantile", "level.quantile", "low.0", "bin", "edge", "more.bin",
        "more.edge", "rank",
    }  # fmt: skip
    assert data["mean.curve"].dims == ("t",) and data["mean.a"].dims == ()
    assert data["mean.curve"].sel(t=0.5) == 2 and data["mean.a"] == 2
    assert data["band"].sel(quantile=0.75, t=1.0) == 6
    assert data["level"].sel({"level.quantile": 0.5}) == 2
    assert data["bins.counts"].sel(bin=1).item() == 7
    assert data["bins.edges"]["edge"].values.tolist() == [0, 1, 4]
    assert data["top.value"].sel(rank=1) == 3.5 and data["first.index"] == 0
    assert data["none.index"] == -1 and data.attrs["points_reduced"] == 9
    with pytest.raises(TypeError, match="reduced them.*`result.to_xarray"):
        result.to_pandas()
    store = tmp_path / "s.zarr"
    options = {"reduce": r.Mean("curve"), "output_coords": named}
    again = ep.sweep(waves, {"a": space}, store=store, **options).to_xarray()
    frame = again["value"].to_dataframe().reset_index()
    assert frame.to_dict("list") == {"t": times, "value": [0, 2, 4]}


def test_reductions_of_some_dims_are_labelled_the_same(tmp_path):
    space = {"a": ep.Values([1.0, 2.0]), "quantile": ep.Seeds(4), "bin": ep.Values([0])}
    over = {"over": "quantile"}
    reducers = {
        "mean": ep.reduce.Mean(**over),
        "band": ep.reduce.Quantile([0.25, 0.75], "curve", **over),
        "bins": ep.reduce.Histogram([0, 1.5, 4], "a", **over),
    }
    options = {"reduce": reducers, "output_coords": {"curve": {"t": None}}}
    for store in ({}, {"store": tmp_path / "s.zarr"}):
        data = ep.sweep(waves, space, **options, **store).to_xarray()
        assert data["mean.curve"].dims == ("a", "bin", "t")
        assert data["band"].dims == ("a", "bin", "quantile", "t")
        assert data["bins.counts"].dims == ("a", "bin", "bins.bin")
        assert data["bins.counts"].sel({"a": 2, "bins.bin": 1.5}).item() == 4
    same_dataset(ep.SweepResult.load(tmp_path / "s.zarr").to_xarray(), data)
    data = ep.sweeper(waves, space, reduce=reducers)(space).to_xarray()
    assert data["band"].dims == ("a", "bin", "quantile", "band.1")


def test_results_of_a_users_reducer_are_labelled():
    last = ep.reduce.Reducer(
        init=lambda s: jnp.zeros(3),
        update=lambda state, y: y["curve"],
        merge=lambda a, b: b,
        finish=lambda x: {"x": np.asarray(x), "n": 3, "text": "abc", "none": None},
    )
    space = {"a": ep.Values([2.0])}
    result = ep.sweep(waves, space, reduce=last)
    data = result.to_xarray()
    assert data["x"].dims == ("x.0",) and data["text"].item() == "abc"
    assert data["n"].item() == 3
    with pytest.raises(ValueError, match="names 'x'.*Known names: `curve`"):
        ep.sweep(waves, space, reduce=last, output_coords={"x": {"t": None}})


def test_dims_of_an_axis_are_no_dims_of_the_space(tmp_path):
    space = {"x": ep.Values(PAIR), "x.0": ep.Linspace(7, 9, 3)}
    result = ep.sweep(lambda p: p["x"].sum() * p["x.0"], space)
    data = result.to_xarray()
    assert data["x"].dims == ("x", "result.x.0") and data["x.0"].dims == ("x.0",)
    result.save(tmp_path / "r.zarr")
    loaded = ep.SweepResult.load(tmp_path / "r.zarr")
    same_dataset(loaded.to_xarray(), data)
    assert np.array_equal(loaded.space[4]["x"], result.space[4]["x"])


def test_an_output_is_not_called_as_the_dim_of_another():
    result = ep.sweep(
        lambda p: {"u": jnp.arange(2.0), "u.0": 5.0}, {"a": ep.Linspace(0, 1, 2)}
    )
    data = result.to_xarray()
    assert list(data.data_vars) == ["u", "result.u.0"] and data["u"].dims[1] == "u.0"
    frame = result.to_pandas()
    assert list(frame.columns) == ["a", "u.0", "u.1", "result.u.0", "status"]
    assert frame.iloc[1].tolist() == [1, 0, 1, 5, 1]
    bare = ep.sweep(lambda p: p["value"], {"value": ep.Values([1, 2])}).to_xarray()
    assert bare["result.value"].values.tolist() == [1, 2]


def test_coordinates_keep_their_columns():
    frame = ep.sweep(lambda p: {"theta": 10 * jnp.stack(p["theta"])}, THETA).to_pandas()
    names = ["theta.0", "theta.1", "result.theta.0", "result.theta.1", "status"]
    assert list(frame.columns) == names
    assert frame.iloc[1].tolist() == [1, 4, 10, 40, 1]


def test_the_status_is_not_called_as_an_axis():
    space = {"status": ep.Values([1, 2]), "sweep.status": ep.Values([3])}
    data = ep.sweep(lambda p: p["status"], space).to_xarray()
    assert data["sweep.status"].values.tolist() == [3]
    assert data["sweep.sweep.status"].shape == (2, 1)
    frame = ep.sweep(lambda p: {"status": p["status"]}, space).to_pandas()
    names = ["status", "sweep.status", "result.status", "sweep.sweep.status"]
    assert list(frame.columns) == names


def _pair(x):
    return {"u": x}


@pytest.mark.parametrize(
    ("space", "name", "tables"),
    [
        (
            {"x": ep.Values(PAIR), "x.0": ep.Values([7, 8])},
            "x.0",
            ["pandas"],
        ),
        (
            {"m": ep.Mapped(_pair, ep.Values([1, 2])), "m.u": ep.Values([7, 8])},
            "m.u",
            ["pandas", "xarray"],
        ),
        (
            {"m": ep.Mapped(lambda x: {"a": [x], "a.0": x}, ep.Values([1, 2]))},
            "m.a.0",
            ["pandas", "xarray"],
        ),
    ],
)
def test_columns_of_one_name_are_an_error(space, name, tables, tmp_path):
    says = f"two columns have the path `{name}`.*Rename"
    for tree in (ep.Space(space), ep.Space(space)[1:]):
        with pytest.raises(ValueError, match=says):
            tree.to_pandas()
        for table in tables:
            with pytest.raises(ValueError, match=says):
                getattr(ep.sweep(lambda p: 0, tree), f"to_{table}")()
    if "xarray" in tables:
        with pytest.raises(ValueError, match=says):
            ep.sweep(lambda p: 0, space, store=tmp_path / "s.zarr")
        assert not list(tmp_path.iterdir())


def test_a_huge_space_is_no_table_and_its_slice_is():
    space = ep.Space([ep.Linspace(0, 1, 10**6), ep.Linspace(0, 1, 10**6)] * 2)
    for huge in (space, space[: 2**31], space[2**62 :]):
        says = rf"{huge.size} points, and each is a row.*take a slice, `space\[a:b\]`"
        with pytest.raises(ValueError, match=says):
            huge.to_pandas()
    assert len(space[10**23 :: 10**22].to_pandas()) == 90


def test_static_values_that_disagree_are_a_list_with_no_stray_space():
    with pytest.raises(ep.StructureError) as caught:
        ep.sweep(lambda n: jnp.zeros(n), ep.Static(range(1, 9)))
    first, *lines, last = str(caught.value).split("\n")
    assert first.endswith("differ between `Static` values:") and len(lines) == 6
    assert all(line.startswith("- ") for line in lines) and lines[-1] == "- and 2 more"
    assert last.startswith("Return the same structure") and last.endswith("itself.")
