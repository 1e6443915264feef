"""What is drawn of a result: lines, meshes, points, panels, parallel axes; scales."""

import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
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


@pytest.mark.one_of(3)
@pytest.mark.parametrize(
    "axis",
    [
        B,
        ep.Geomspace(1, 2, 2),
        ep.Values([1, 10, 100]),
        ep.Values(10.0 ** np.linspace(0, 3, 14) ** 1.1),
    ],
)
def test_geometric_axes_are_logarithmic(axis):
    assert ep.sweep(total, {"b": axis}).plot().get_xscale() == "log"


@pytest.mark.slow
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
    turned = result.plot(x="b")
    assert np.array_equal(mesh_of(turned), result.grid())
    bars = [other.get_ylabel() for other in ax.figure.axes if other is not ax]
    assert bars == ["value"]


def ticks_of(ax, which="x"):
    """Where ticks are, and what they say."""
    ax.figure.canvas.draw()
    axis = getattr(ax, f"{which}axis")
    return list(axis.get_ticklocs()), [t.get_text() for t in axis.get_ticklabels()]


@pytest.mark.one_of(3)
@pytest.mark.parametrize(
    ("values", "scale", "places"),
    [
        ([4, 16], "linear", [4, 16]),
        ([3, 7, 100], "linear", [0, 1, 2]),
        ([1, 2, 4, 8, 16], "log", [1, 2, 4, 8, 16]),
        ([0.1, 0.25, 0.5], "linear", [0, 1, 2]),
        ([0, 1, 2, 3], "linear", [0, 1, 2, 3]),
        ([-1000, -100, -10], "linear", [0, 1, 2]),
        ([1.0, 1.00001, 1.5], "linear", [0, 1, 2]),
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


def test_three_dims_are_small_multiples_with_the_same_colours():
    result = ep.sweep(total, {"a": A, "b": B, "c": C})
    axes = result.plot()
    shown = [ax for ax in axes.flat if ax.axison]
    grid = result.grid()
    assert [ax.get_title() for ax in shown] == ["c = 1", "c = 4"]
    for ax, k in zip(shown, (1, 0), strict=True):
        assert np.array_equal(mesh_of(ax), grid[:, :, k].T)
        assert ax.collections[0].get_clim() == (grid.min(), grid.max())
    assert len(result.plot(x="c", col="a").flat) == 6
    rows = result.plot(row="b")
    assert rows.shape == (3, 1) and mesh_of(rows[0, 0]).shape == (2, 5)
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


def broken(point):
    """A value, NaN, inf, -inf and a failure."""
    x = point["i"]
    y = jnp.select([x == 1, x == 2, x == 3], [jnp.nan, jnp.inf, -jnp.inf], x)
    return eqx.error_if(y + 0 * sum(jtu.tree_leaves(point)), x == 4, "four")


FROM_0_TO_6 = ep.Linspace(0, 6, 7)
KINDS = ["failed", "NaN", "inf", "-inf"]


def legend_of(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_failed_nan_and_infinite_look_different_in_lines():
    ax = ep.sweep(broken, {"i": FROM_0_TO_6}, on_error="isolate").plot()
    assert legend_of(ax) == KINDS
    dots = ax.collections
    assert [d.get_offsets()[:, 0].tolist() for d in dots] == [[4], [1], [2], [3]]
    looks = {(p.get_paths()[0].vertices.tobytes(), *p.get_edgecolor()[0]) for p in dots}
    assert len(looks) == 4


@pytest.mark.slow
def test_failed_nan_and_infinite_look_different_in_heat_maps():
    ax = ep.sweep(broken, {"i": FROM_0_TO_6, "b": B}, on_error="isolate").plot()
    assert legend_of(ax) == KINDS
    patches = ax.get_legend().get_patches()
    assert len({(p.get_facecolor(), p.get_hatch()) for p in patches}) == 4
    meshes = [c for c in ax.collections if hasattr(c, "get_coordinates")]
    assert len(meshes) == 5
    for mesh, column in zip(meshes[1:], (4, 1, 2, 3), strict=True):
        assert np.argwhere(~mesh.get_array().mask[0]).tolist() == [[column]]
    (hatched,) = [c for c in ax.collections if c.get_hatch()]
    assert hatched.get_paths()[0].vertices[:, 0].min() == 3.5
    panels = ep.sweep(
        broken, {"i": FROM_0_TO_6, "b": B, "c": C}, on_error="isolate"
    ).plot()
    (legend,) = panels.flat[0].figure.legends
    assert [text.get_text() for text in legend.get_texts()] == KINDS


@pytest.mark.parametrize("sizes", [2, 3])
def test_failed_nan_and_infinite_look_different_in_designs(sizes):
    space = {**ep.sobol({str(k): (0.0, 1.0) for k in range(sizes - 1)}, 7)}
    space["i"] = ep.Linspace(0, 6, 7, dim="sobol")
    ax = ep.sweep(broken, space, on_error="isolate").plot()
    assert legend_of(ax) == KINDS
    dots = [c for c in ax.collections if hasattr(c, "get_sizes")]
    assert [len(c.get_offsets()) for c in dots[-4:]] == [1] * 4


def test_points_not_computed_yet_are_told_from_failed_ones(tmp_path):
    space, path = {"a": ep.Linspace(0, 1, 8)}, tmp_path / "r.zarr"
    ep.sweep(total, space, store=path, part=(0, 2))
    assert legend_of(ep.load_result(path).plot()) == ["not computed"]


@pytest.mark.slow
def test_where_nothing_is_a_number_there_is_no_colour_bar():
    result = ep.sweep(lambda p: total(p) * jnp.nan, {"a": A, "b": B})
    ax = result.plot()
    assert len(ax.figure.axes) == 1 and legend_of(ax) == ["NaN"]


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
    turned = result.plot(x="drop", y="rate")
    np.testing.assert_allclose(turned.collections[0].get_offsets(), points[:, ::-1])


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
    labels = [text.get_text() for text in cloud.plot().get_xticklabels()]
    assert labels == ["w.0", "w.1", "w.2", "value"]
    assert cloud.plot(x="w.0", y="w.2").get_ylabel() == "w.2"


@pytest.mark.slow
def test_axes_that_rise_and_fall_together_are_one():
    pair = {"n": ep.Values([8, 16, 64], dim="s"), "r": ep.Values([3.0, 2, 1], dim="s")}
    ax = ep.sweep(total, pair).plot()
    assert ticks_of(ax)[1] == ["8, 3", "16, 2", "64, 1"] and ax.get_xlabel() == "n, r"
    assert ep.sweep(total, pair).plot(x="r").lines[0].get_linestyle() == "-"
    long = ep.Space({"u": ep.Linspace(0, 1, 20), "v": ep.Geomspace(1, 9, 20)}, "zip")
    ax = ep.sweep(total, long).plot()
    assert len(ax.lines[0].get_xdata()) == 20 and ax.get_xlabel() == "u (with it v)"


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


@pytest.mark.slow
def test_a_curve_that_ends_is_marked_where_it_does():
    def curve(p):
        y = jnp.where(jnp.arange(60) < 40, p["i"] + 1, jnp.nan)
        return eqx.error_if(jnp.where(p["i"] > 0, y, 1.0), p["i"] == 2, "two")

    ax = ep.sweep(curve, {"i": ep.Values([0.0, 1.0, 2.0])}, on_error="isolate").plot()
    shown = [text.get_text() for text in ax.artists[0].get_texts()]
    assert shown == ["0", "1", "2 (failed)"] and legend_of(ax) == ["failed", "NaN"]
    assert ax.collections[1].get_offsets().tolist() == [[40, 2]]


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


def test_axes_that_vary_together_are_parallel_coordinates():
    tree = ep.sobol({"rate": (0.0, 1.0), "shift": (2.0, 4.0), "w": (0.0, 1.0)}, 16)
    space = {**tree, "how": ep.Values([True, False] * 8, dim="sobol")}
    result = ep.sweep(lambda p: p["rate"] * p["shift"], space)
    ax = result.plot()
    labels = [text.get_text() for text in ax.get_xticklabels()]
    assert labels == ["rate", "shift", "w", "how", "value"]
    lines = ax.collections[0].get_segments()
    assert len(lines) == 16 and ax.figure.axes[1].get_ylabel() == "value"
    order = np.argsort(result.values, kind="stable")
    heights = np.array([line[:, 1] for line in lines])
    assert heights.min() == 0 and heights.max() == 1
    rates = np.array([result.space.point(int(i))["rate"] for i in order])
    np.testing.assert_allclose(
        heights[:, 0], (rates - rates.min()) / np.ptp(rates), rtol=1e-5
    )
    assert np.all(np.diff(heights[:, -1]) >= 0)
    assert np.array_equal(ax.collections[0].get_array(), result.values[order])


@pytest.mark.slow
def test_a_slice_of_a_grid_is_drawn_across_its_axes():
    ax = ep.sweep(total, {"a": A, "b": B})[2:9].plot()
    assert len(ax.collections[0].get_offsets()) == 7
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_yscale()) == ("a", "b", "log")


@pytest.mark.slow
def test_texts_and_positions_have_ticks():
    space = {"f": ep.Static([jnp.sin, jnp.cos]), "a": A}
    ax = ep.sweep(lambda p: p["f"](p["a"]), space).plot()
    assert [text.get_text() for text in ax.get_xticklabels()] == ["sin", "cos"]
    selected = ep.sweep(lambda p: p["f"](p["a"]), space).plot(sel={"f": "cos"})
    assert selected.lines[0].get_ydata()[0] == 1 and selected.get_title() == "f = cos"
    flags = ep.sweep(total, {"on": ep.Values([True, False])}).plot()
    assert [text.get_text() for text in flags.get_xticklabels()] == ["True", "False"]


@pytest.mark.slow
def test_arrays_are_drawn_by_their_own_dims():
    result = ep.sweep(lambda p: p["a"] * jnp.arange(3.0), {"a": A})
    ax = result.plot(sel={"value.0": 2})
    assert np.array_equal(ax.lines[0].get_ydata(), result.values[:, 2])
    assert np.array_equal(mesh_of(result.plot(y="value.0")), result.values.T)
    image = ep.sweep(lambda p: p["c"] * jnp.arange(6.0).reshape(2, 3), {"c": C})
    panels = image.plot()
    assert np.array_equal(mesh_of(panels.flat[0]), image.values[1])
    cube = ep.sweep(lambda p: p["c"] * jnp.zeros((2, 2, 2)), {"c": C})
    with pytest.raises(ValueError, match=r"array at each point.*'value\.0': 0.*`row=`"):
        cube.plot()


def test_many_dims_say_what_to_select():
    space = {name: ep.Linspace(0, 1, 2) for name in "abcd"}
    result = ep.sweep(total, space)
    with pytest.raises(ValueError, match=r"4 dims.*sel=\{'d': 0\}.*`hue=` for"):
        result.plot()
    with pytest.raises(ValueError, match="4 dims.*`row=`"):
        result.plot(x="a", y="b")
    assert result.plot(row="c", col="d").shape == (2, 2)
    assert result.plot(x="b", sel={"c": 0, "d": 1}).get_xlabel() == "b"
    with pytest.raises(ValueError, match="one value.*1.*Leave a dim out"):
        result.plot(sel={"a": 0, "b": 0, "c": 0, "d": 1})
    single = ep.sweep(total, {**space, "b": ep.Values([3.0]), "c": ep.Values([1])})
    ax = single.plot()  # dims of length 1 are selected by themselves
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_title()) == (
        "a", "d", "b = 3, c = 1",
    )  # fmt: skip


NORM = matplotlib.colors.LogNorm()


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"sel": {"z": 1}}, ValueError, "`sel` names 'z'.*Known names: `a`, `b`"),
        ({"sel": ["a"]}, TypeError, "Give a dict"),
        ({"x": "z"}, ValueError, "`x` is 'z'.*Known names: `a`, `b`"),
        ({"x": "a", "y": "a"}, ValueError, "`x` and `y` are both `a`.*different"),
        ({"hue": "a", "col": "a"}, ValueError, "both along the dim `a`.*different"),
        ({"hue": "a", "y": "b"}, ValueError, "`hue` and `y`.*Leave one out"),
        ({"hue": "a", "row": "b"}, ValueError, "no dim is left for the x axis.*Leave"),
        ({"dims": ("a", "b")}, TypeError, "no keyword `dims`.*`x=`, `y=`, `hue=`"),
        ({"log": True}, TypeError, 'no keyword `log`.*norm="log"'),
        ({"figsize": (3, 3)}, TypeError, "no keyword `figsize`.*ax=plt.subplots"),
        ({"cmpa": "magma"}, TypeError, "Did you mean `cmap`.*`hue`.*`vmax`"),
        ({"norm": NORM, "vmin": 1}, ValueError, r"`norm` is given.*LogNorm\(vmin="),
        ({"sel": {"a": 0}, "vmin": 1}, ValueError, "`vmin` is given.*set_ylim"),
        ({"ax": 3}, TypeError, "`ax` is 3.*plt.subplots"),
    ],
)
def test_what_cannot_be_drawn(unchecked, options, error, says):
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
    wide = ep.Space({str(i): ep.Values([1, 3, 2]) for i in range(21)}, "zip")
    with pytest.raises(ValueError, match="21 coordinates.*`x='0'`, `y='1'`"):
        ep.sweep(total, wide).plot()
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"matplotlib.*eqx_pipe\[sweep\]"):
        ep.sweep(total, {"a": A}).plot()
