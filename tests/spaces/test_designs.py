"""Designs: points that fill a space evenly, as spaces."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import qmc

import eqx_pipe as ep

BOX = {"b": ep.Uniform(0, 2), "a": [ep.Uniform(5, 3), ep.Linspace(0, 1, 2)]}
LO, HI = np.array([0.0, 5, 0]), np.array([2.0, 3, 1])


@given(
    st.sampled_from([1, 2, 5, 16]),
    st.integers(0, 3),
)
def test_values_are_those_of_scipy_within_the_bounds(n, seed):
    key = jr.key(seed) if seed else None
    design = ep.sobol(BOX, n, key=key)
    seed = int(jr.bits(key, dtype=jnp.uint32)) if seed else 0
    assert design.dims == {"point": n} and design.names == ("b", "a.0", "a.1")
    # Also the first points of a longer sequence.
    cube = qmc.Sobol(3, seed=seed).random_base2(4)[:n]
    got = design.to_pandas().to_numpy()
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, LO + (HI - LO) * cube, rtol=1e-6, atol=1e-7)
    assert np.all(got >= np.minimum(LO, HI)) and np.all(got <= np.maximum(LO, HI))


def test_a_design_takes_values_of_every_axis_as_the_unit_cube_does():
    axes = {
        "rate": ep.LogUniform(1e-4, 1e-1, label="rate"),
        "act": ep.Static(["a", "b", "c"]),
        "size": ep.Mapped(jnp.exp, ep.Uniform(0, 1), unit="s"),
    }
    cube = qmc.Sobol(3, seed=0).random_base2(3)
    design = ep.sobol(axes, 8)
    frame = design.to_pandas()
    np.testing.assert_allclose(frame["rate"], 10 ** (-4 + 3 * cube[:, 0]), rtol=1e-5)
    assert frame["act"].tolist() == ["abc"[int(3 * x)] for x in cube[:, 1]]
    np.testing.assert_allclose(frame["size"], np.exp(cube[:, 2]), rtol=1e-5)
    assert design.axes()["rate"].label == "rate" and design.axes()["size"].unit == "s"


def test_a_plain_sweep_over_a_range_says_what_to_write():
    for axis in (ep.Uniform(0, 1), ep.Mapped(jnp.exp, ep.LogUniform(1, 2))):
        with pytest.raises(ValueError, match="a range has no values") as caught:
            ep.sweep(lambda p: p["rate"], {"rate": axis})
        assert "`Random(sampler, num)`" in str(caught.value)
        assert "Raised by the axis `rate` of the space." in caught.value.__notes__


def test_designs_over_logarithmic_ranges_are_drawn_on_a_logarithmic_scale():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    rates = {"rate": ep.LogUniform(1e-4, 1e-1)}
    design = ep.sobol(rates, 8)
    for some in (design, design[:3]):
        assert ep.sweep(lambda p: p["rate"], some).plot().get_xscale() == "log"
    line = ep.sobol({"rate": ep.Uniform(1e-4, 1e-1)}, 8)
    assert ep.sweep(lambda p: p["rate"], line).plot().get_xscale() == "linear"
    ordinary = ep.sweep(lambda p: p["x"], {"x": ep.Values([1, 10, 100], is_log=True)})
    assert ordinary.plot().get_xscale() == "log"
    pyplot.close("all")
