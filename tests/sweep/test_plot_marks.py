"""What is drawn of points that failed, have no number or are not computed yet."""

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest
from support.plots import A, B, C, closed, legend_of, mesh_of, total

import eqx_pipe as ep

__all__ = ["closed"]  # a fixture


def test_failed_points_are_gaps():
    def fn(point):
        x = point["a"]
        return {"x": eqx.error_if(x, x == 1, "one"), "n": jnp.int32(x)}

    result = ep.sweep(fn, {"a": A}, on_error="mark")
    for name in ("x", "n"):
        y = result.plot(name).lines[0].get_ydata()
        assert np.isnan(y).tolist() == [False, False, True, False, False]
    result = ep.sweep(fn, {"a": A, "b": B}, on_error="mark")
    assert mesh_of(result.plot("n")).mask.tolist() == [[0, 0, 1, 0, 0]] * 3


def broken(point):
    """A value, NaN, inf, -inf and a failure."""
    x = point["i"]
    y = jnp.select([x == 1, x == 2, x == 3], [jnp.nan, jnp.inf, -jnp.inf], x)
    return eqx.error_if(y + 0 * sum(jtu.tree_leaves(point)), x == 4, "four")


FROM_0_TO_6 = ep.Linspace(0, 6, 7)


KINDS = ["failed", "NaN", "inf", "-inf"]


def test_failed_nan_and_infinite_look_different_in_lines():
    ax = ep.sweep(broken, {"i": FROM_0_TO_6}, on_error="mark").plot()
    assert legend_of(ax) == KINDS
    dots = ax.collections
    assert [d.get_offsets()[:, 0].tolist() for d in dots] == [[4], [1], [2], [3]]
    looks = {(p.get_paths()[0].vertices.tobytes(), *p.get_edgecolor()[0]) for p in dots}
    assert len(looks) == 4


@pytest.mark.slow
def test_failed_nan_and_infinite_look_different_in_heat_maps():
    ax = ep.sweep(broken, {"i": FROM_0_TO_6, "b": B}, on_error="mark").plot()
    assert legend_of(ax) == KINDS
    patches = ax.get_legend().get_patches()
    assert len({(p.get_facecolor(), p.get_hatch()) for p in patches}) == 4
    cells = {c.get_label(): c for c in ax.collections[1:]}
    assert list(cells) == KINDS
    for name, column in zip(KINDS, (4, 1, 2, 3), strict=True):
        x = np.concatenate([path.vertices[:, 0] for path in cells[name].get_paths()])
        assert (x.min(), x.max()) == (column - 0.5, column + 0.5)
    assert mesh_of(ax).mask[0].tolist() == [0, 1, 1, 1, 1, 0, 0]
    assert [bool(c.get_hatch()) for c in cells.values()] == [True, False, False, False]
    panels = ep.sweep(
        broken, {"i": FROM_0_TO_6, "b": B, "c": C}, on_error="mark"
    ).plot()
    (legend,) = panels.flat[0].figure.legends
    assert [text.get_text() for text in legend.get_texts()] == KINDS


def test_failed_nan_and_infinite_look_different_in_designs():
    space = {**ep.sobol({"0": (0.0, 1.0)}, 7), "i": ep.Linspace(0, 6, 7, dim="sobol")}
    ax = ep.sweep(broken, space, on_error="mark").plot()
    assert legend_of(ax) == KINDS
    dots = [c for c in ax.collections if hasattr(c, "get_sizes")]
    assert [len(c.get_offsets()) for c in dots[-4:]] == [1] * 4


def test_points_not_computed_yet_are_told_from_failed_ones(tmp_path):
    space, path = {"a": ep.Linspace(0, 1, 8)}, tmp_path / "r.zarr"
    ep.sweep(total, space, store=path, shard=(0, 2))
    assert legend_of(ep.SweepResult.load(path).plot()) == ["not computed"]


@pytest.mark.slow
def test_where_nothing_is_a_number_there_is_no_colour_bar():
    result = ep.sweep(lambda p: total(p) * jnp.nan, {"a": A, "b": B})
    ax = result.plot()
    assert len(ax.figure.axes) == 1 and legend_of(ax) == ["NaN"]


@pytest.mark.slow
def test_a_curve_that_ends_is_marked_where_it_does():
    def curve(p):
        y = jnp.where(jnp.arange(60) < 40, p["i"] + 1, jnp.nan)
        return eqx.error_if(jnp.where(p["i"] > 0, y, 1.0), p["i"] == 2, "two")

    ax = ep.sweep(curve, {"i": ep.Values([0.0, 1.0, 2.0])}, on_error="mark").plot()
    shown = [text.get_text() for text in ax.artists[0].get_texts()]
    assert shown == ["0", "1", "2 (failed)"] and legend_of(ax) == ["failed", "NaN"]
    assert ax.collections[1].get_offsets().tolist() == [[40, 2]]
