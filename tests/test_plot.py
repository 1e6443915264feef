"""What is drawn of a result: lines, meshes, panels, parallel axes, and their scales."""

import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqx_pipe as ep

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("agg")
plt = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(autouse=True)
def closed():
    """Draws what was plotted, which finds more errors, and forgets it."""
    yield
    for number in plt.get_fignums():
        plt.figure(number).canvas.draw()
    plt.close("all")


def total(point):
    return sum(jnp.float32(x) for x in point.values())


A, B, C = ep.Linspace(0, 2, 5), ep.Geomspace(0.01, 1, 3), ep.Values([4.0, 1.0])


def mesh_of(ax):
    """The values of a heat map's cells, rows from below."""
    return ax.collections[0].get_array()


def test_one_dim_is_a_line():
    result = ep.sweep(total, {"a": A})
    ax = result.plot()
    x, y = ax.lines[0].get_data()
    assert np.array_equal(x, [0, 0.5, 1, 1.5, 2]) and np.array_equal(y, result.values)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("a", "value")
    assert ax.get_xscale() == ax.get_yscale() == "linear"


def test_values_out_of_order_are_drawn_in_order():
    ax = ep.sweep(total, {"c": C}).plot()
    assert [list(d) for d in ax.lines[0].get_data()] == [[1, 4], [1, 4]]


@pytest.mark.parametrize("axis", [B, ep.Geomspace(1, 2, 2), ep.Values([1, 10, 100])])
def test_geometric_axes_are_logarithmic(axis):
    assert ep.sweep(total, {"b": axis}).plot().get_xscale() == "log"


def test_negative_geometric_axes_and_few_values_are_linear():
    for axis in (ep.Geomspace(-1, -4, 3), ep.Values([1.0, 10.0]), ep.Values([1, 2, 3])):
        assert ep.sweep(total, {"b": axis}).plot().get_xscale() == "linear"


def test_two_dims_are_a_heat_map_with_the_first_along_x():
    result = ep.sweep(total, {"a": A, "b": B})
    ax = result.plot()
    assert np.array_equal(mesh_of(ax), result.grid().T)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("a", "b")
    assert (ax.get_xscale(), ax.get_yscale()) == ("linear", "log")
    edges = ax.collections[0].get_coordinates()
    np.testing.assert_allclose(edges[0, :, 0], np.arange(-0.25, 2.5, 0.5))
    np.testing.assert_allclose(edges[:, 0, 1], 10.0 ** np.arange(-2.5, 1))
    turned = result.plot(dims=("b", "a"))
    assert np.array_equal(mesh_of(turned), result.grid())
    bars = [other.get_ylabel() for other in ax.figure.axes if other is not ax]
    assert bars == ["value"]


def test_three_dims_are_small_multiples_with_the_same_colours():
    result = ep.sweep(total, {"a": A, "b": B, "c": C})
    axes = result.plot()
    shown = [ax for ax in axes.flat if ax.axison]
    grid = result.grid()
    assert [ax.get_title() for ax in shown] == ["c = 1", "c = 4"]
    for ax, k in zip(shown, (1, 0), strict=True):
        assert np.array_equal(mesh_of(ax), grid[:, :, k].T)
        assert ax.collections[0].get_clim() == (grid.min(), grid.max())
    assert len(result.plot(dims=("c", "b", "a")).flat) == 6


def test_selecting_takes_the_nearest_and_says_which():
    result = ep.sweep(total, {"a": A, "b": B, "c": C})
    ax = result.plot(sel={"b": 0.09, "c": 4})
    assert np.array_equal(ax.lines[0].get_ydata(), result.grid()[:, 1, 0])
    assert ax.get_title() == "b = 0.1, c = 4"
    figure, given = plt.subplots()
    assert result.plot(sel={"c": 1}, ax=given) is given
    assert np.array_equal(mesh_of(given), result.grid()[:, :, 1].T)


def test_outputs_are_chosen_by_path():
    result = ep.sweep(lambda p: {"fit": {"loss": p["a"], "on": p["a"] > 1}}, {"a": A})
    assert np.array_equal(
        result.plot("fit.loss").lines[0].get_ydata(), result.values["fit"]["loss"]
    )
    assert result.plot("fit.on").lines[0].get_ydata().tolist() == [0, 0, 0, 1, 1]
    with pytest.raises(ValueError, match="`variable` is not given.*`fit.loss`"):
        result.plot()
    with pytest.raises(ValueError, match="Did you mean `fit.loss`"):
        result.plot("fit.los")


def test_failed_points_are_gaps():
    def fn(point):
        x = point["a"]
        return {"x": eqx.error_if(x, x == 1, "one"), "n": jnp.int32(x)}

    result = ep.sweep(fn, {"a": A}, on_error="isolate")
    for name in ("x", "n"):
        y = result.plot(name).lines[0].get_ydata()
        assert np.isnan(y).tolist() == [False, False, True, False, False]
    result = ep.sweep(fn, {"a": A, "b": B}, on_error="isolate")
    assert mesh_of(result.plot("n")).mask.tolist() == [[0, 0, 1, 0, 0]] * 3


def test_axes_that_vary_together_are_parallel_coordinates():
    tree = ep.sobol({"rate": (0.0, 1.0), "shift": (2.0, 4.0), "w": (0.0, 1.0)}, 16)
    space = {**tree, "how": ep.Values([True, False] * 8, dim="sobol")}
    result = ep.sweep(lambda p: p["rate"] * p["shift"], space)
    ax = result.plot()
    labels = [text.get_text() for text in ax.get_xticklabels()]
    assert labels == ["rate", "shift", "w", "how", "value"]
    lines = ax.collections[0].get_segments()
    assert len(lines) == 16
    order = np.argsort(result.values, kind="stable")
    heights = np.array([line[:, 1] for line in lines])
    assert heights.min() == 0 and heights.max() == 1
    rates = np.array([result.space.point(int(i))["rate"] for i in order])
    np.testing.assert_allclose(
        heights[:, 0], (rates - rates.min()) / np.ptp(rates), rtol=1e-5
    )
    assert np.all(np.diff(heights[:, -1]) >= 0)
    assert np.array_equal(ax.collections[0].get_array(), result.values[order])


def test_a_slice_of_a_grid_is_drawn_across_its_axes():
    ax = ep.sweep(total, {"a": A, "b": B})[2:9].plot()
    assert len(ax.collections[0].get_segments()) == 7


def test_texts_and_positions_have_ticks():
    space = {"f": ep.Static([jnp.sin, jnp.cos]), "a": A}
    ax = ep.sweep(lambda p: p["f"](p["a"]), space).plot()
    assert [text.get_text() for text in ax.get_xticklabels()] == ["sin", "cos"]
    selected = ep.sweep(lambda p: p["f"](p["a"]), space).plot(sel={"f": "cos"})
    assert selected.lines[0].get_ydata()[0] == 1 and selected.get_title() == "f = cos"
    flags = ep.sweep(total, {"on": ep.Values([True, False])}).plot()
    assert [text.get_text() for text in flags.get_xticklabels()] == ["True", "False"]


def test_arrays_say_what_to_select():
    result = ep.sweep(lambda p: p["a"] * jnp.arange(3.0), {"a": A})
    with pytest.raises(ValueError, match=r"array at each point.*'value\.0': 0"):
        result.plot()
    ax = result.plot(sel={"value.0": 2})
    assert np.array_equal(ax.lines[0].get_ydata(), result.values[:, 2])
    assert np.array_equal(mesh_of(result.plot(dims=("a", "value.0"))), result.values.T)


def test_many_dims_say_what_to_select():
    space = {name: ep.Linspace(0, 1, 2) for name in "abcd"}
    result = ep.sweep(total, space)
    with pytest.raises(ValueError, match=r"4 dims.*sel=\{'d': 0\}.*dims=\('a', 'b'\)"):
        result.plot()
    with pytest.raises(ValueError, match="leaves out `c`"):
        result.plot(dims=("a", "b"))
    assert result.plot(dims=("b", "a"), sel={"c": 0, "d": 1}).get_xlabel() == "b"
    single = ep.sweep(total, {**space, "b": ep.Values([3.0]), "c": ep.Values([1])})
    ax = single.plot()  # dims of length 1 are selected by themselves
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_title()) == (
        "a", "d", "b = 3, c = 1",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"sel": {"z": 1}}, ValueError, "`sel` names 'z'.*Known names: `a`, `b`"),
        ({"sel": ["a"]}, TypeError, "Give a dict"),
        ({"dims": "z"}, ValueError, "`dims` names 'z'"),
        ({"dims": ("a", "a")}, ValueError, "different dims"),
        ({"ax": 3}, TypeError, "`ax` is 3.*plt.subplots"),
    ],
)
def test_what_cannot_be_drawn(options, error, says):
    with pytest.raises(error, match=says):
        ep.sweep(total, {"a": A, "b": B}).plot(**options)


def test_more_that_cannot_be_drawn(monkeypatch):
    three = ep.sweep(total, {"a": A, "b": B, "c": ep.Linspace(0, 1, 40)})
    with pytest.raises(ValueError, match="40 positions.*at most 36"):
        three.plot()
    with pytest.raises(ValueError, match="several panels.*sel="):
        three.plot(ax=plt.subplots()[1])
    with pytest.raises(TypeError, match="reduced them"):
        ep.sweep(total, {"a": A}, reduce=ep.Mean()).plot()
    with pytest.raises(ValueError, match="complex64.*absolute value"):
        ep.sweep(lambda p: jax.lax.complex(p["a"], p["a"]), {"a": A}).plot()
    wide = ep.Space({str(i): ep.Values([1, 2]) for i in range(21)}, "zip")
    with pytest.raises(ValueError, match="21 coordinates.*to_pandas"):
        ep.sweep(total, wide).plot()
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"matplotlib.*eqx_pipe\[sweep\]"):
        ep.sweep(total, {"a": A}).plot()
