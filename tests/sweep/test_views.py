"""Spaces and results shown as text and in notebooks."""

import tracemalloc

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from support.helpers import slow_unless

import eqx_pipe as ep


def outputs(point):
    x = jnp.float32((point[1] if isinstance(point, list) else point)["x"])
    return {"<loss>": x, "k": jr.key(0), "z": jnp.bfloat16(1), "p": jnp.arange(3)}


SPACES = {
    "product": ep.Space({"x": ep.Linspace(0, 1, 3), "s": ep.Static(["<a>", "b"])}),
    "zip": ep.Space(
        {"x": ep.Values([1, 2]), "k": ep.Values(jr.split(jr.key(0)))}, "zip"
    ),
    "bare": {"x": ep.Random(jr.normal, 3)},
}


@pytest.mark.parametrize("name", slow_unless({"bare", "product"}, SPACES))
def test_every_result_and_space_is_shown(name):
    space = SPACES[name]
    space = space if name != "bare" else ep.Space(space, key=jr.key(1))
    result = ep.sweep(outputs, space)
    assert "points" in repr(space)
    for thing in (result, result[:1]):
        assert "points" in repr(thing) and "<loss>" in repr(thing)


@pytest.mark.parametrize(
    "reduce",
    [
        ep.reduce.Mean("<loss>"),
        {"a": ep.reduce.ArgMin("<loss>"), "h": ep.reduce.Histogram([0, 1], "<loss>")},
        pytest.param(
            ep.reduce.Reducer(
                lambda s: 0, lambda s, x: s + 1, lambda a, b: a + b, lambda s: "text"
            ),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_reduced_results_are_shown(reduce):
    result = ep.sweep(outputs, {"x": ep.Linspace(1, 2, 9)}, reduce=reduce)
    assert "reduced over 9 points" in repr(result)
    if isinstance(reduce, ep.reduce.Mean):
        assert "1.5" in repr(result)


def test_failures_are_shown():
    def fn(x):
        return eqx.error_if(x, x > 2, "large")

    result = ep.sweep(fn, ep.Linspace(0, 9, 10), on_error="mark")
    assert "7 points failed: 3, 4, 5, 6, 7, ..." in repr(result)


def test_gaps_are_counted_and_not_listed(tmp_path):
    pytest.importorskip("zarr")
    n = 2**22
    asked = {"store": tmp_path / "r", "shard": (0, 64), "batch_size": 2**11}
    result = ep.sweep(jnp.sin, ep.Linspace(0, 1, n), **asked)
    chunk = int(np.argmin(result.ok))
    tracemalloc.start()
    shown = repr(result)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert f"{n - result.ok.sum():,} points missing: {chunk}, {chunk + 1}" in shown
    assert most < n  # not even a byte for each


def test_a_space_of_any_size_is_shown_at_once():
    space = ep.Space({str(i): ep.Linspace(0, 1, 2**31 - 1) for i in range(9)})
    assert f"{(2**31 - 1) ** 9:,} points" in repr(space)
    assert "a part of" in repr(space[:5])


def test_attributes_say_what_made_it():
    result = ep.sweep(outputs, SPACES["product"], batch_size=2)
    made = result.to_xarray().attrs
    assert made["function"] == "outputs" and made["batch_size"] == 2
    assert made["devices"] == 8 and made["platform"] == "cpu"
    assert "Linspace(0, 1, 3)" in made["space"]
    assert all(made[n] for n in ("jax", "equinox", "eqx_pipe", "python", "started"))
    assert made["seconds"] > 0
    assert all(isinstance(v, str | int | float) for v in made.values())
