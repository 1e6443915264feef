"""Tables as spaces: whatever form a table has, a row is a point."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pandas
import pytest
import xarray

import eqx_pipe as ep

pyarrow = pytest.importorskip("pyarrow")

COLUMNS = {"rate": [0.5, 0.25, 1.0], "width": [8, 32, 8], "act": ["relu", "tanh", None]}


@pytest.mark.parametrize(
    "form",
    [COLUMNS, pandas.DataFrame(COLUMNS, dtype=object), pandas.DataFrame(COLUMNS)],
    ids=["dict", "objects", "frame"],
)
def test_a_row_is_a_point(form):
    space = ep.Space.from_table(form)
    assert space.dims == {"point": 3}
    assert [axis.is_static for axis in space.axes().values()] == [False, False, True]
    points = [jax.tree.map(lambda x: getattr(x, "item", lambda: x)(), p) for p in space]
    assert [p["rate"] for p in points] == COLUMNS["rate"]
    assert [p["act"] for p in points][:2] == ["relu", "tanh"]
    assert space.axes()["width"].values.dtype == jnp.int32


def one_column(values, dtype):
    """Return columns of pandas, Arrow and xarray, or of NumPy."""
    arrow = {"Int64": pyarrow.int64(), "boolean": pyarrow.bool_()}[dtype]
    frame = pandas.DataFrame({"a": pandas.array(values, dtype=dtype)})
    return {
        "frame": frame,
        "array": {"a": frame["a"].array},
        "arrow frame": frame.convert_dtypes(dtype_backend="pyarrow"),
        "arrow": pyarrow.table({"a": pyarrow.array(values, arrow)}),
        "category": pandas.DataFrame({"a": pandas.Categorical(values)}),
        "dataset": xarray.Dataset.from_dataframe(frame),
        "objects": {"a": np.array([pandas.NA if x is None else x for x in values])},
    }


@pytest.mark.parametrize(
    ("values", "dtype", "ours"),
    [([1, 16_777_217, 3], "Int64", "int32"), ([True, False, True], "boolean", "bool")],
)
def test_nullable_columns_keep_their_numbers_and_show_their_gaps(values, dtype, ours):
    for table in one_column(values, dtype).values():
        axis = ep.Space.from_table(table).axes()["a"]
        assert axis.values.tolist() == values and axis.values.dtype == ours
    for name, table in one_column([*values, None], dtype).items():
        with pytest.raises(ValueError, match="1 missing values") as caught:
            ep.Space.from_table(table), name
        assert caught.value.__notes__ == ["In the column `a` of a table."]
    gap = pandas.array([*values, None], dtype=dtype)
    for values in (gap, pandas.Series(gap), pyarrow.array(gap)):
        with pytest.raises(ValueError, match="1 missing values"):
            ep.Values(values)
    # A NaN is a number.
    assert np.isnan(ep.Space.from_table({"a": np.array([np.nan, 1.0])})[0]["a"])


def test_texts_of_any_frame_are_texts():
    texts = ["x", "y", "x"]
    for table in (
        pyarrow.table({"a": texts}),
        {"a": pyarrow.array(texts).dictionary_encode()},
        xarray.Dataset({"a": ("row", texts)}),
        {"a": pandas.Categorical(texts)},
        {"a": np.array(texts)},
    ):
        space = ep.Space.from_table(table)
        assert [point["a"] for point in space] == texts


def test_there_and_back():
    space = ep.Space({"b": ep.Linspace(0, 1, 3), "a": ep.Static(["x", "y"])})
    frame = space.to_pandas()
    assert ep.Space.from_table(frame).to_pandas().equals(frame)
    assert (
        ep.Space.from_table(frame)[[4, 1]]
        .to_pandas()
        .equals(ep.Space.from_table(frame.iloc[[4, 1]]).to_pandas())
    )


def test_arrays_and_keys():
    sample = np.arange(6.0).reshape(3, 2)
    space = ep.Space.from_table(dict(zip("uv", sample.T, strict=True)))
    np.testing.assert_array_equal(space.to_pandas().to_numpy(), sample)
    keys = jr.split(jr.key(0), 3)
    space = ep.Space.from_table(
        {"key": keys, "w": [jnp.ones(2)] * 3, "n": [1, 2.5, np.float32(1)]}
    )
    assert space[2]["w"].shape == (2,)
    assert bool(space[1]["key"] == keys[1])


def test_beside_other_axes():
    rows = ep.Space.from_table(COLUMNS, dim="run")
    assert rows.dims == {"run": 3}
    both = ep.Space({**rows.tree, "seed": ep.Values([0, 1])})
    assert both.dims == {"run": 3, "seed": 2}


def test_without_rows():
    space = ep.Space.from_table(pandas.DataFrame({"a": [1.0], "b": [2]})[:0])
    result = ep.sweep(lambda p: {"a": p["a"], "b": p["b"]}, space)
    assert space.size == len(result) == 0
    assert result.values["b"].dtype == jnp.int32
