"""Labels and units of axes: told to people, and part of nothing else."""

import jax.numpy as jnp
import jax.random as jr
import pytest

import eqx_pipe as ep
import eqx_pipe.testing as ept

xarray = pytest.importorskip("xarray")


def space(name):
    """Return a space with an axis of each kind, all named."""
    named = {"label": f"{name} label", "unit": "days"}
    draw = ep.Random(jr.normal, 2, dim="draw", **named)
    tree = {
        "lin": ep.Linspace(0, 1, 2, dim="grid", **named),
        "geo": ep.Geomspace(1, 2, 2, dim="grid", **named),
        "val": ep.Values([1.0, 5.0], dim="grid", **named),
        "how": ep.Static(["a", "b"], dim="grid", **named),
        "draw": draw,
        "map": ep.Mapped(jnp.exp, draw, **named),
        "two": ep.Mapped(lambda x: {"x": x, "y": -x}, draw, **named),
        "one": ep.sobol(ep.Uniform(0, 1, **named), 2, dim="design").tree,
    }
    return ep.Space(tree, key=jr.key(0))


def fn(p):
    return p["lin"] * p["map"] + p["one"]


def attrs(data):
    return {n: c.attrs for n, c in data.coords.items() if n != "status"}


def test_every_axis_has_them_in_xarray():
    found = attrs(ep.sweep(fn, space("A")).to_xarray())
    assert set(found) == {*space("A").axes(), "two.x", "two.y"} - {"two"}
    assert all(a == {"long_name": "A label", "units": "days"} for a in found.values())
    sliced = ep.sweep(fn, space("A"))[1:3].to_xarray()
    assert attrs(sliced) == found
    bare = ep.sweep(jnp.sin, ep.Linspace(0, 1, 2)).to_xarray()
    assert bare["x"].attrs == {}


def test_what_is_mapped_has_its_own():
    axis = ep.Mapped(jnp.exp, ep.Linspace(0, 1, 2, label="log", unit="1"))
    assert axis.attrs == {} and axis.axis.attrs["long_name"] == "log"


def test_they_survive_files(tmp_path):
    result = ep.sweep(fn, space("A"))
    path = tmp_path / "r.zarr"
    result.save(path)
    loaded = ep.SweepResult.load(path)
    assert attrs(loaded.to_xarray()) == attrs(result.to_xarray())
    assert loaded.space.axes()["lin"].attrs == space("A").axes()["lin"].attrs


def test_they_are_no_part_of_a_store(tmp_path):
    path = tmp_path / "s.zarr"
    first = ep.sweep(fn, space("A"), store=path)
    again = ep.sweep(fn, space("B"), store=path)
    assert attrs(again.to_xarray())["lin"]["long_name"] == "B label"  # of this call
    # A unit of time is no request to read times.
    assert first.to_xarray()["lin"].dtype == jnp.float32
    assert attrs(ep.SweepResult.load(path).to_xarray()) == attrs(first.to_xarray())


def test_they_are_no_part_of_a_program():
    ep.sweep(fn, space("A"))
    with ept.assert_compiles(0):
        result = ep.sweep(fn, space("B"))
    assert result.to_xarray()["lin"].attrs["long_name"] == "B label"


def test_own_axes_take_them_too():
    class Powers(ep.Axis):
        dim: str | None = None

        def __len__(self):
            return 3

        def value(self, i, key):
            return i

    powers = Powers(label="size", unit="bytes")
    data = ep.sweep(lambda p: p["s"], {"s": powers}).to_xarray()
    assert data["s"].attrs == {"long_name": "size", "units": "bytes"}
