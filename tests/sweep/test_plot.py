"""What is drawn of a result: lines, meshes, points, panels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.plots import A, B, C, closed, legend_of, matplotlib, mesh_of, plt, total

import eqx_pipe as ep

__all__ = ["closed"]  # a fixture


def test_one_dim_is_a_line():
    result = ep.sweep(total, {"a": A})
    ax = result.plot()
    x, y = ax.lines[0].get_data()
    assert np.array_equal(x, [0, 0.5, 1, 1.5, 2]) and np.array_equal(y, result.values)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("a", "value")
    assert ax.get_xscale() == ax.get_yscale() == "linear"


def test_two_dims_are_a_heat_map_with_the_first_along_x():
    result = ep.sweep(total, {"a": A, "b": B})
    ax = result.plot()
    assert np.array_equal(mesh_of(ax), result.grid().T)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("a", "b")
    assert (ax.get_xscale(), ax.get_yscale()) == ("linear", "log")
    edges = ax.collections[0].get_coordinates()
    np.testing.assert_allclose(edges[0, :, 0], np.arange(-0.25, 2.5, 0.5))
    np.testing.assert_allclose(edges[:, 0, 1], 10.0 ** np.arange(-2.5, 1))
    turned = result.plot(x="b")
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
    both = result.plot(row="b", col="c")
    assert both.shape == (3, 2) and both[2, 1].get_title() == "b = 1, c = 4"
    assert np.array_equal(both[2, 1].lines[0].get_ydata(), grid[:, 2, 0])
    # The last panel of each column has the labels, also above an empty place.
    five = ep.sweep(total, {"a": A, "b": B, "d": ep.Linspace(0, 1, 5)}).plot()
    assert [ax.get_xlabel() for ax in five.flat[:5]] == ["", "", "a", "a", "a"]
    assert [ax.get_ylabel() for ax in five.flat[:5]] == ["b", "", "", "b", ""]


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


def test_two_random_parameters_are_points_in_colour():
    draw = ep.Random(jax.random.uniform, 30, dim="draw")
    rate = ep.Mapped(lambda u: 10 ** (-4 * u), draw, label="rate", unit="1/s")
    space = ep.Space({"rate": rate, "drop": draw}, key=jax.random.key(0))
    result = ep.sweep(lambda p: p["rate"] + p["drop"], space)
    ax = result.plot()
    data = result.to_xarray()
    order = np.argsort(result.values, kind="stable")
    points = np.stack([data["rate"], data["drop"]], axis=1)[order]
    np.testing.assert_allclose(ax.collections[0].get_offsets(), points)
    assert np.array_equal(ax.collections[0].get_array(), result.values[order])
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("rate [1/s]", "drop")
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "linear")
    assert ax.figure.axes[1].get_ylabel() == "value"
    # One of several coordinates does not decide the value: no line joins them.
    alone = result.plot(x="drop").lines[0]
    assert alone.get_linestyle() == "None"


@pytest.mark.slow
def test_designs_beside_other_axes():
    design = ep.sobol({"p": (0.0, 1.0), "q": (0.0, 1.0)}, 8)
    panels = ep.sweep(total, {**design, "c": C}).plot()
    assert [ax.get_title() for ax in panels.flat] == ["c = 1", "c = 4"]
    assert all(len(ax.collections[0].get_offsets()) == 8 for ax in panels.flat)
    over = ep.sweep(total, {**design, "t": ep.Linspace(0, 1, 20)}).plot()
    assert len(over.lines) == 8 and over.get_xlabel() == "t"
    dots = ep.sweep(total, {**design, "c": C}).plot(x="p")  # a panel for each of `c`
    assert [ax.lines[0].get_linestyle() for ax in dots.flat] == ["None", "None"]
    hued = ep.sweep(total, {**design, "c": C}).plot(hue="c")
    assert [line.get_linestyle() for line in hued.lines] == ["None", "None"]
    entries = ep.Values(np.random.default_rng(0).random((9, 3), np.float32))
    cloud = ep.sweep(lambda p: p["w"].sum(), {"w": entries})
    assert cloud.plot(x="w.0", y="w.2").get_ylabel() == "w.2"


def test_curves_are_lines_with_a_hue():
    rate = ep.Geomspace(0.01, 1, 3, label="rate", unit="1/s")
    result = ep.sweep(lambda p: jnp.exp(-p["r"] * jnp.arange(60.0)), {"r": rate})
    ax = result.plot()
    for line, row in zip(ax.lines, result.values, strict=True):
        assert np.array_equal(line.get_ydata(), row)
    assert legend_of(ax) == ["0.01", "0.1", "1"]
    assert ax.get_legend().get_title().get_text() == "rate [1/s]"
    figure = ax.figure
    figure.canvas.draw()
    assert ax.get_legend().get_window_extent().x0 >= ax.get_window_extent().x1
    names = ep.sweep(lambda p: p["f"](jnp.arange(3.0)), {"f": ep.Static([jnp.sin])})
    assert names.plot(hue="f").lines[0].get_linestyle() == "-"


@pytest.mark.slow
def test_many_curves_have_a_colour_bar_instead():
    space = {"r": ep.Geomspace(0.01, 1, 12, label="rate"), "c": C}
    result = ep.sweep(lambda p: p["c"] * p["r"] * jnp.arange(4.0), space)
    panels = result.plot()
    assert [len(ax.lines) for ax in panels.flat] == [12, 12]
    (bar,) = [ax for ax in panels.flat[0].figure.axes if ax not in list(panels.flat)]
    assert bar.get_ylabel() == "rate" and bar.get_yscale() == "log"
    colors = [line.get_color() for line in panels.flat[0].lines]
    assert len(set(colors)) == 12


def test_repeats_by_keys_are_thin_lines_and_their_mean():
    keys = ep.Values(jax.random.split(jax.random.key(0), 4))
    result = ep.sweep(lambda p: p["a"] + jax.random.normal(p["k"]), {"a": A, "k": keys})
    ax = result.plot()
    assert legend_of(ax) == ["each", "mean of 4"]
    np.testing.assert_allclose(
        ax.lines[-1].get_ydata(), result.grid().mean(axis=1), rtol=1e-6
    )
    alone = ep.sweep(lambda p: jax.random.normal(p["k"]), {"k": keys}).plot()
    assert alone.lines[0].get_linestyle() == "None"


@pytest.mark.slow
def test_hue_gives_lines_of_a_grid():
    result = ep.sweep(total, {"a": A, "b": B, "c": C})
    ax = result.plot(hue="c", sel={"b": 1})
    assert [list(line.get_ydata()) for line in ax.lines] == (
        result.grid()[:, 2, ::-1].T.tolist()
    )
    assert len(result.plot(hue="b", col="c").flat) == 2
    space = {"f": ep.Static([jnp.sin, jnp.cos]), "a": A}
    names = ep.sweep(lambda p: p["f"](p["a"]), space).plot(hue="f")
    assert names.lines[0].get_linestyle() == "-" and legend_of(names) == ["sin", "cos"]


@pytest.mark.slow
def test_colours_pass_through():
    result = ep.sweep(total, {"a": A, "b": B, "c": C})
    ax = result.plot(sel={"c": 1}, cmap="magma", vmin=1.5, vmax=2.5)
    mesh = ax.collections[0]
    assert mesh.get_cmap().name == "magma" and mesh.get_clim() == (1.5, 2.5)
    (bar,) = [axes._colorbar for axes in ax.figure.axes if axes is not ax]
    assert bar.extend == "both"
    centred = matplotlib.colors.CenteredNorm(2)
    panels = result.plot(norm=centred)
    limits = {ax.collections[0].get_clim() for ax in panels.flat}
    assert len(limits) == 1 and sum(*limits) == 4 and centred.halfrange is None
    log = result.plot(sel={"c": 1}, norm="log").collections[0]
    assert isinstance(log.norm, matplotlib.colors.LogNorm)
    hue = result.plot(hue="a", sel={"c": 1}, cmap="plasma")
    assert len(hue.figure.axes) == 2 and hue.figure.axes[1].get_ylabel() == "a"
    zero = ep.sweep(lambda p: p["a"] * p["b"], {"a": A, "b": B}).plot(norm="log")
    zero.figure.canvas.draw()
    shown = zero.collections[0].get_facecolors().reshape(3, 5, 4)
    assert np.all(shown[..., 3] == 1)  # nothing is left blank


@pytest.mark.slow
def test_a_slice_of_a_grid_is_drawn_across_its_axes():
    ax = ep.sweep(total, {"a": A, "b": B})[2:9].plot()
    assert len(ax.collections[0].get_offsets()) == 7
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_yscale()) == ("a", "b", "log")


@pytest.mark.slow
def test_arrays_are_drawn_by_their_own_dims():
    result = ep.sweep(lambda p: p["a"] * jnp.arange(3.0), {"a": A})
    ax = result.plot(sel={"value.0": 2})
    assert np.array_equal(ax.lines[0].get_ydata(), result.values[:, 2])
    last = result.plot(sel={"value.0": -1})
    assert last.get_title() == "value.0 = 2"
    with pytest.raises(TypeError, match="is 0.5 .*no values. Give a position"):
        result.plot(sel={"value.0": 0.5})
    with pytest.raises(ValueError, match="`value.0` goes from 0 to 2"):
        result.plot(sel={"value.0": 3})
    assert np.array_equal(mesh_of(result.plot(y="value.0")), result.values.T)
    image = ep.sweep(lambda p: p["c"] * jnp.arange(6.0).reshape(2, 3), {"c": C})
    panels = image.plot()
    assert np.array_equal(mesh_of(panels.flat[0]), image.values[1])
    cube = ep.sweep(lambda p: p["c"] * jnp.zeros((2, 2, 2)), {"c": C})
    with pytest.raises(ValueError, match=r"array at each point.*'value\.0': 0.*`row=`"):
        cube.plot()
