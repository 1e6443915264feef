"""Static axes: Python values, one program for each combination."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqx_pipe as ep
import eqx_pipe.testing as ept


def double(x):
    return 2 * x


WIDTH, ACT = ep.Static([1, 3, 1]), ep.Static([jnp.sin, double])
RATE = ep.Linspace(0, 1, 3)


@pytest.mark.parametrize(
    "space",
    [
        ep.Space({"width": WIDTH, "rate": RATE, "act": ACT})[::-2],
        ep.Space({"rate": RATE, "width": WIDTH, "act": jnp.sin}, "zip"),
        ep.Space({"width": ep.Mapped(double, WIDTH), "act": ACT, "rate": RATE}),
    ],
)
def test_points_hold_the_very_values(space):
    for point in space:
        assert type(point["width"]) is int and point["act"] in (jnp.sin, double)
    with pytest.raises(TypeError, match="plain integer"):
        jax.jit(lambda i: space.point(i)["rate"])(0)


def test_a_second_sweep_compiles_nothing():
    def run(hi, value):
        space = {"n": ep.Static([1, 2, 2]), "x": ep.Linspace(0, hi, 3)}
        return ep.sweep(lambda p: p["x"] * jnp.ones(p["n"]).sum() * value, space)

    for value in (1, 2):  # a literal until it has changed once
        run(1, jnp.float32(value))
    with ept.assert_compiles(0):
        values = run(2, jnp.float32(3)).values
    assert values.tolist() == [0, 3, 6, 0, 6, 12, 0, 6, 12]


def test_outputs_that_differ_are_an_error_before_anything_is_computed():
    seen = []

    def ones(point):
        jax.debug.callback(lambda x: seen.append(x), point["x"])
        kind = jnp.int32 if point["n"] == 3 else jnp.float32
        return {"a": jnp.ones(point["n"], kind)}

    space = {"n": ep.Static([1, 1, 2, 3]), "x": ep.Values([1.0])}
    with pytest.raises(ep.StructureError) as caught:
        ep.sweep(ones, space)
    for part in ("`n` = 1 against `n` = 2", "`.a`: float32[1]", "int32[3]"):
        assert part in str(caught.value)
    jax.effects_barrier()
    assert not seen


def test_labels_are_numbers_or_texts():
    def labels(**axes):
        axes = {name: ep.Static(values) for name, values in axes.items()}
        return ep.sweep(lambda p: 0, axes).to_xarray()

    x = labels(width=[8, 32], rate=[1, 0.5], flag=[True, False])
    assert [x[name].dtype.kind for name in ("width", "rate", "flag")] == ["i", "f", "b"]
    act = [jnp.tanh, jax.nn.relu, None, "text"]
    x = labels(act=act, same=[lambda x: x, lambda x: -x])
    assert x["act"].values.tolist() == ["tanh", "relu", "None", "text"]
    assert x["same"].values.tolist() == ["<lambda> (0)", "<lambda> (1)"]
    x = labels(thing=[object(), (1, "a"), 1], width=[8, 32])
    assert x["thing"].values.tolist() == ["object", "(1, 'a')", "1"]
    assert x["value"].sel(thing="1", width=32).shape == ()
    cut = ep.Space({"f": ep.Static([lambda x: x, lambda x: -x])})[1:]
    assert cut.to_pandas()["f"].tolist() == ["<lambda> (1)"]


def test_repr_says_what_is_in_it():
    assert repr(ep.Static([jnp.tanh, "a", 3])) == "Static([tanh, a, 3])"
    assert repr(ep.Static([None], dim="g")) == "Static([None], dim='g')"


def divides(point):
    """Divide, which cannot be traced where `n` is 4 or 5."""
    parts = jnp.arange(6.0).reshape(point["n"], -1)
    return {"y": parts.sum() + point["x"], "n": point["n"]}


BROKEN = {"x": ep.Linspace(0, 4, 5), "n": ep.Static([2, 4, 3, 5])}


@pytest.mark.parametrize(
    ("space", "settings"),
    [
        (ep.Space(BROKEN)[3:17:3], {"batch_size": 2}),
        pytest.param(
            ep.Space(BROKEN),
            {"store": "r.zarr", "batch_size": 1},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_cannot_be_traced_for_some_values_is_isolated(space, settings, tmp_path):
    if "store" in settings:
        settings = {**settings, "store": tmp_path / settings["store"]}
    with pytest.raises(TypeError, match="reshape") as caught:
        ep.sweep(divides, space, **settings)
    assert "While `fn` was traced for `n = 4`." in caught.value.__notes__
    result = ep.sweep(divides, space, on_error="mark", **settings)
    points = [space.point(i) for i in range(space.size)]
    ok = [point["n"] < 4 for point in points]
    assert result.ok.tolist() == ok
    pairs = list(zip(points, ok, strict=True))
    expected = [15 + p["x"] if good else np.nan for p, good in pairs]
    np.testing.assert_array_equal(result.values["y"][...], np.array(expected))
    numbers = [p["n"] * good for p, good in pairs]
    assert result.values["n"][...].tolist() == numbers
    mean = ep.sweep(divides, space, on_error="mark", reduce=ep.reduce.Mean(by="y"))
    assert np.isclose(mean.values, np.nanmean(expected))
    assert mean.ok.tolist() == ok


def test_where_nothing_can_be_traced_it_raises():
    with pytest.raises(TypeError, match="into shape \\(4, -1"):
        ep.sweep(divides, BROKEN | {"n": ep.Static([4, 5])}, on_error="mark")


@pytest.mark.parametrize("batch_size", [7, 40])
def test_points_that_fail_beside_static_values(batch_size):
    def fn(p):
        return eqx.error_if(p["f"](p["x"]), p["x"] > 9.5, "too large")

    space = {"f": ep.Static([jnp.sin, jnp.cos]), "x": ep.Linspace(0, 10, 40)}
    result = ep.sweep(fn, space, on_error="mark", batch_size=batch_size)
    assert np.flatnonzero(~result.ok).tolist() == [38, 39, 78, 79]
