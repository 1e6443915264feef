"""Results to draw, and what is read of a picture, for tests of `plot`."""

import jax.numpy as jnp
import pytest

import eqx_pipe as ep

matplotlib = pytest.importorskip("matplotlib")
plt = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(autouse=True)
def closed():
    """Draw what was plotted, which finds more errors, and close it."""
    yield
    for number in plt.get_fignums():
        plt.figure(number).canvas.draw()
    plt.close("all")


def total(point):
    return sum(jnp.float32(x) for x in point.values())


A, B, C = ep.Linspace(0, 2, 5), ep.Geomspace(0.01, 1, 3), ep.Values([4.0, 1.0])


def mesh_of(ax):
    """Return the values of a heat map's cells, rows from below."""
    return ax.collections[0].get_array()


def legend_of(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]
