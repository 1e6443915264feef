"""Pictures of results: lines, meshes, points, panels, and points without a number."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.plots import A, B, C, closed, legend_of, matplotlib, mesh_of, plt, total

import eqx_pipe as ep

__all__ = ["closed"]  # a fixture


def abc():
    return ep.sweep(total, {"a": A, "b": B, "c": C})


def ticks_of(ax):
    return [text.get_text() for text in ax.get_xticklabels()]


def test_one_dim_is_a_line_in_order():
    result = ep.sweep(total, {"c": C})
    ax = result.plot()
    assert [list(d) for d in ax.lines[0].get_data()] == [[1, 4], [1, 4]]
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_xscale()) == (
        "c",
        "value",
        "linear",
    )


def test_two_dims_are_a_heat_map_with_the_first_along_x():
    result = ep.sweep(total, {"a": A, "b": B})
    ax = result.plot()
    np.testing.assert_allclose(mesh_of(ax), result.grid().T)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("a", "b")
    assert (ax.get_xscale(), ax.get_yscale()) == ("linear", "log")
    np.testing.assert_allclose(mesh_of(result.plot(x="b")), result.grid())
    norm = matplotlib.colors.LogNorm()
    mesh = result.plot(norm=norm, cmap="magma").collections[0]
    assert mesh.get_cmap().name == "magma" and mesh.norm is norm


def test_more_dims_are_panels_with_the_same_colours():
    axes, grid = abc().plot(), abc().grid()
    assert [ax.get_title() for ax in axes.flat] == ["c = 1.0", "c = 4.0"]
    for ax, k in zip(axes.flat, (1, 0), strict=True):
        np.testing.assert_allclose(mesh_of(ax), grid[:, :, k].T)
        assert ax.collections[0].get_clim() == (grid.min(), grid.max())
    both = abc().plot(row="b", col="c")
    assert both.shape == (3, 2)
    np.testing.assert_allclose(both[2, 1].lines[0].get_ydata(), grid[:, 2, 0])


def test_selecting_takes_the_nearest():
    ax = abc().plot(sel={"b": 0.09, "c": 4})
    np.testing.assert_allclose(ax.lines[0].get_ydata(), abc().grid()[:, 1, 0])
    assert ax.get_title() == "b = 0.1, c = 4.0"
    given = plt.subplots()[1]
    assert abc().plot(hue="c", sel={"b": 1}, ax=given) is given
    assert legend_of(given) == ["1.0", "4.0"]


def test_outputs_are_chosen_by_path():
    result = ep.sweep(lambda p: {"fit": {"loss": p["a"], "on": p["a"] > 1}}, {"a": A})
    assert result.plot("fit.on").lines[0].get_ydata().tolist() == [0, 0, 0, 1, 1]
    with pytest.raises(ValueError, match="`variable` chooses none.*`fit.loss`"):
        result.plot()


def test_two_axes_of_one_dim_are_points_in_colour():
    draw = ep.Random(jax.random.uniform, 30, dim="draw")
    rate = ep.Mapped(lambda u: 10 ** (-4 * u), draw, label="rate", unit="1/s")
    space = ep.Space({"rate": rate, "drop": draw}, key=jax.random.key(0))
    result = ep.sweep(lambda p: p["rate"] + p["drop"], space)
    ax = result.plot(x="rate", y="drop")
    data = result.to_xarray()
    points = np.stack([data["rate"], data["drop"]], axis=1)
    np.testing.assert_allclose(ax.collections[0].get_offsets(), points)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("rate [1/s]", "drop")
    assert len(result.plot(x="drop").lines[0].get_xdata()) == 30
    part = ep.sweep(total, ep.Space({"a": A, "b": B}))[2:9].plot(x="a", y="b")
    assert len(part.collections[0].get_offsets()) == 7 and part.get_yscale() == "log"


def test_curves_are_lines_with_a_hue():
    def decay(p):
        return jnp.exp(-p["r"] * jnp.arange(60.0))

    rate = ep.Geomspace(0.01, 1, 3, label="rate", unit="1/s")
    ax = ep.sweep(decay, {"r": rate}).plot()
    assert legend_of(ax) == ["0.01", "0.1", "1.0"]
    assert ax.get_legend().get_title().get_text() == "rate [1/s]"
    many = ep.sweep(decay, {"r": ep.Geomspace(0.01, 1, 12, label="rate")}).plot()
    assert len(many.lines) == 12 and many.get_legend() is None


def test_names_stand_at_ticks_and_in_titles():
    space = {"f": ep.Static([jnp.sin, jnp.cos], label="kind"), "a": A}
    result = ep.sweep(lambda p: p["f"](p["a"]), space)
    assert ticks_of(result.plot()) == ["sin", "cos"]
    assert legend_of(result.plot(hue="f")) == ["sin", "cos"]
    assert [ax.get_title() for ax in result.plot(col="f").flat] == [
        "f = sin",
        "f = cos",
    ]
    for cos in ("cos", jnp.cos):
        assert result.plot(sel={"f": cos}).lines[0].get_ydata()[0] == 1
    dots = ep.sweep(total, {"on": ep.Values([True, False])}).plot()
    assert ticks_of(dots) == ["True", "False"]
    assert dots.lines[0].get_linestyle() == "None"


@pytest.mark.parametrize("kind", ["seeds", "keys"])
def test_replicates_are_a_mean_and_a_band(kind):
    def noisy(p, key):
        draw = jax.random.normal(p["s"] if kind == "keys" else key)
        return p["a"] + p["c"] * draw

    keys = ep.Values(jax.random.split(jax.random.key(0), 4))
    space = {"a": A, "c": C, "s": keys if kind == "keys" else ep.Seeds(4)}
    result = ep.sweep(noisy, space, key=jax.random.key(1))
    ax, mean = result.plot(hue="c"), result.grid().mean(2)
    np.testing.assert_allclose(ax.lines[0].get_ydata(), mean[:, 1], rtol=1e-5)
    assert len(ax.collections) == 2 and ax.get_ylabel() == "value, mean of 4"
    heat = result.plot()
    np.testing.assert_allclose(mesh_of(heat), mean[:, ::-1].T, rtol=1e-5)
    if kind == "seeds":
        assert len(result.plot(x="a", hue="s", sel={"c": 1}).lines) == 4


def test_a_loaded_result_is_drawn_like_the_one_that_was_saved(tmp_path):
    """Rates are on a log scale, replicates averaged, named dims of outputs curves."""
    pytest.importorskip("zarr")
    space = {"rate": ep.Geomspace(0.01, 1, 3), "s": ep.Seeds(4)}
    named = {"value": {"step": [0, 1, 2]}}
    noisy = lambda p, key: p["rate"] * jax.random.normal(key, (3,))  # noqa: E731
    result = ep.sweep(noisy, space, key=jax.random.key(0), output_coords=named)
    result.save(tmp_path / "noisy.zarr")
    for each in (result, ep.SweepResult.load(tmp_path / "noisy.zarr")):
        curves = each.plot()
        assert legend_of(curves) == ["0.01", "0.1", "1.0"]
        assert curves.get_xlabel() == "step"
        assert curves.get_ylabel() == "value, mean of 4"
        assert each.plot(sel={"step": 0}).get_xscale() == "log"


def test_a_reduction_over_replicates_is_drawn():
    space = {"a": A, "s": ep.Seeds(4)}
    mean = ep.sweep(total, space, reduce=ep.reduce.Mean(over="s"))
    y = mean.plot().lines[0].get_ydata()
    np.testing.assert_allclose(y, np.linspace(0, 2, 5) + 1.5)


def test_a_reduction_of_all_points_is_drawn():
    def curve(p):
        return p["a"] * jnp.arange(4.0)

    reducers = {
        "mean": ep.reduce.Mean(),
        "band": ep.reduce.Quantile([0.25, 0.75]),
        "bins": ep.reduce.Histogram([0, 1, 2], lambda y: y[1]),
    }
    named = {"value": {"t": [0.0, 0.1, 0.2, 0.3]}}
    result = ep.sweep(curve, {"a": A}, reduce=reducers, output_coords=named)
    ax = result.plot("mean")
    assert ax.get_xlabel() == "t" and ax.lines[0].get_ydata().tolist() == [0, 1, 2, 3]
    assert legend_of(result.plot("band")) == ["0.25", "0.75"]
    steps = result.plot("bins.counts", drawstyle="steps-post").lines[0]
    assert steps.get_xdata().tolist() == [0, 1] and steps.get_ydata().tolist() == [2, 3]


def test_a_histogram_is_drawn_between_its_edges():
    edges = [0.0, 1.0, 1.5, 4.0]
    space = {"a": A, "b": ep.Values([1.0, 2.0])}
    for over in (None, "a"):
        result = ep.sweep(
            lambda p: p["a"] * p["b"],
            space,
            reduce=ep.reduce.Histogram(edges, over=over),
        )
        counts = np.atleast_2d(result.values.counts)
        for ax in (result.plot(), result.plot("counts")):
            assert ax.get_xlabel() == "bin" and len(ax.patches) == len(counts)
            for patch, line, expected in zip(ax.patches, ax.lines, counts, strict=True):
                assert patch.get_data().edges.tolist() == edges
                assert patch.get_data().values.tolist() == expected.tolist()
                assert line.get_drawstyle() == "steps-post"
    assert legend_of(result.plot()) == ["1.0", "2.0"]
    # Outputs that share the names of a histogram's are drawn as any other.
    curves = ep.sweep(lambda p: {"counts": p["a"], "edges": p["a"]}, {"a": A})
    assert not curves.plot("counts").patches


def broken(point):
    """Return a value, NaN, inf or -inf, or fail."""
    x = point["i"]
    y = jnp.select([x == 1, x == 2, x == 3], [jnp.nan, jnp.inf, -jnp.inf], x)
    return eqx.error_if(y + 0 * point.get("b", 0.0), x == 4, "four")


LINE = ep.Linspace(0, 6, 7)


def test_points_without_a_number_are_gaps(tmp_path):
    kept = [True, False, False, False, False, True, True]
    y = ep.sweep(broken, {"i": LINE}, on_error="mark").plot().lines[0].get_ydata()
    assert np.isfinite(y).tolist() == kept
    heat = ep.sweep(broken, {"i": LINE, "b": B}, on_error="mark").plot()
    assert (~np.ma.getmaskarray(mesh_of(heat)))[0].tolist() == kept
    nothing = ep.sweep(lambda p: total(p) * jnp.nan, {"a": A, "b": B}).plot()
    assert np.ma.getmaskarray(mesh_of(nothing)).all()
    space, path = {"a": ep.Linspace(0, 1, 8)}, tmp_path / "r.zarr"
    ep.sweep(total, space, store=path, shard=(0, 2))
    half = ep.SweepResult.load(path).plot().lines[0].get_ydata()
    assert np.isnan(half).tolist() == [False] * 4 + [True] * 4
    counts = ep.sweep(lambda p: jnp.int32(3), space, store=tmp_path / "n", shard=(0, 2))
    assert np.isnan(counts.plot().lines[0].get_ydata()).sum() == 4


def test_curves_of_axes_that_vary_together_are_lines_by_the_dim_that_is_named():
    pairs = {
        "a": ep.Values([1.0, 2.0], dim="run"),
        "b": ep.Values([3.0, 5.0], dim="run"),
    }
    result = ep.sweep(lambda p: p["a"] * jnp.arange(3.0), pairs)
    with pytest.raises(ValueError, match="`hue='run'` draws a curve for each"):
        result.plot()
    assert [line.get_ydata()[1] for line in result.plot(hue="run").lines] == [1, 2]
