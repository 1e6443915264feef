"""The axes of a picture: positions, ticks, labels, and what is joined by a line."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.plots import A, B, C, closed, legend_of, ticks_of, total

import eqx_pipe as ep

__all__ = ["closed"]  # a fixture


def test_values_out_of_order_are_drawn_in_order():
    ax = ep.sweep(total, {"c": C}).plot()
    assert [list(d) for d in ax.lines[0].get_data()] == [[1, 4], [1, 4]]


@pytest.mark.parametrize("axis", [B, ep.Values(10.0 ** np.linspace(0, 3, 14) ** 1.1)])
def test_geometric_axes_are_logarithmic(axis):
    assert ep.sweep(total, {"b": axis}).plot().get_xscale() == "log"


@pytest.mark.slow
def test_negative_geometric_axes_and_few_values_are_linear():
    for axis in (ep.Geomspace(-1, -4, 3), ep.Values([1.0, 10.0]), ep.Values([1, 2, 3])):
        assert ep.sweep(total, {"b": axis}).plot().get_xscale() == "linear"


@pytest.mark.parametrize(
    ("values", "scale", "places"),
    [
        ([4, 16], "linear", [4, 16]),
        ([3, 7, 100], "linear", [0, 1, 2]),
        ([1, 2, 4, 8, 16], "log", [1, 2, 4, 8, 16]),
        pytest.param([1.0, 1.00001, 1.5], "linear", [0, 1, 2], marks=pytest.mark.slow),
    ],
)
def test_few_numbers_have_a_tick_each_and_the_same_room(values, scale, places):
    result = ep.sweep(total, {"n": ep.Values(values), "a": A})
    ax = result.plot()
    at, texts = ticks_of(ax)
    assert ax.get_xscale() == scale
    np.testing.assert_allclose(at, places)
    assert [np.float32(text) for text in texts] == [np.float32(v) for v in values]
    edges = ax.collections[0].get_coordinates()[0, :, 0]
    wide = np.diff(np.log(edges) if scale == "log" else edges)
    np.testing.assert_allclose(wide, wide[0], rtol=1e-5)
    assert not len(ax.get_xticks(minor=True))


@pytest.mark.slow
def test_other_numbers_stand_where_they_are():
    draws = ep.Space({"x": ep.Random(jax.random.normal, 6)}, key=jax.random.key(0))
    result = ep.sweep(total, draws)
    x = np.sort(result.to_xarray().x.values)
    np.testing.assert_allclose(result.plot().lines[0].get_xdata(), x)
    many = ep.sweep(total, {"a": ep.Values(np.arange(12.0) ** 2)}).plot()
    assert many.lines[0].get_xdata()[-1] == 121


@pytest.mark.slow
def test_names_are_not_joined_by_a_line():
    space = {"f": ep.Static([jnp.sin, jnp.cos, jnp.tanh])}
    ax = ep.sweep(lambda p: p["f"](1.0), space).plot()
    assert ax.lines[0].get_linestyle() == "None" and ax.lines[0].get_marker() == "o"
    assert ticks_of(ax)[1] == ["sin", "cos", "tanh"]
    flags = ep.sweep(total, {"on": ep.Values([True, False])}).plot()
    assert flags.lines[0].get_linestyle() == "None"


@pytest.mark.slow
def test_axes_that_rise_and_fall_together_are_one():
    pair = {"n": ep.Values([8, 16, 64], dim="s"), "r": ep.Values([3.0, 2, 1], dim="s")}
    ax = ep.sweep(total, pair).plot()
    assert ticks_of(ax)[1] == ["8, 3", "16, 2", "64, 1"] and ax.get_xlabel() == "n, r"
    assert ep.sweep(total, pair).plot(x="r").lines[0].get_linestyle() == "-"
    long = ep.Space({"u": ep.Linspace(0, 1, 20), "v": ep.Geomspace(1, 9, 20)}, "zip")
    ax = ep.sweep(total, long).plot()
    assert len(ax.lines[0].get_xdata()) == 20 and ax.get_xlabel() == "u (with it v)"


def test_labels_and_units_stand_at_axes_titles_and_legends():
    space = {
        "a": ep.Linspace(0, 2, 12, label="speed", unit="m/s"),
        "b": ep.Values([1.0, 3.0], unit="V"),
        "c": ep.Static(["x", "y"], label="kind"),
    }
    panels = ep.sweep(lambda p: p["a"] * p["b"], space).plot()
    assert panels.flat[0].get_xlabel() == "speed [m/s]"
    assert panels.flat[0].get_ylabel() == "b [V]"
    assert panels.flat[0].get_title() == "kind = x"
    ax = ep.sweep(lambda p: p["a"] * p["b"], space).plot(sel={"b": 3, "c": "y"})
    assert ax.get_title() == "b = 3 V, kind = y"


@pytest.mark.slow
def test_long_names_are_turned():
    names = [f"a rather long name, number {k}" for k in range(5)]
    space = {"s": ep.Static(names), "a": A}
    ax = ep.sweep(lambda p: p["a"] * len(p["s"]), space).plot()
    assert {text.get_rotation() for text in ax.get_xticklabels()} == {40}


def test_few_names_beside_many_numbers_are_lines():
    space = {"f": ep.Static(["one", "two"]), "a": ep.Linspace(0, 1, 11)}
    swept = ep.sweep(lambda p: p["a"] * len(p["f"]) > 1, space)
    ax = swept.plot()
    assert legend_of(ax) == ["one", "two"] and ax.get_xlabel() == "a"
    assert len(swept.plot(x="f").collections) == 1  # still a heat map if asked for
    bar = swept.plot(x="f").figure.axes[-1]
    assert [text.get_text() for text in bar.get_yticklabels()] == ["False", "True"]


@pytest.mark.slow
def test_texts_and_positions_have_ticks():
    space = {"f": ep.Static([jnp.sin, jnp.cos]), "a": A}
    ax = ep.sweep(lambda p: p["f"](p["a"]), space).plot()
    assert [text.get_text() for text in ax.get_xticklabels()] == ["sin", "cos"]
    selected = ep.sweep(lambda p: p["f"](p["a"]), space).plot(sel={"f": "cos"})
    assert selected.lines[0].get_ydata()[0] == 1 and selected.get_title() == "f = cos"
    flags = ep.sweep(total, {"on": ep.Values([True, False])}).plot()
    assert [text.get_text() for text in flags.get_xticklabels()] == ["True", "False"]
