"""Mistakes of other libraries that explore spaces, which must not happen here."""

import functools as ft
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqx_pipe as ep


@pytest.mark.parametrize("n", [1, 9])
def test_no_point_is_invented_whatever_the_number_of_devices(n):
    """No tail of NaNs or zeros; the extremes are those of real points."""
    line = ep.Linspace(1, n, n)
    result = ep.sweep(lambda x: {"down": -x, "i": x.astype(jnp.int32)}, line)
    assert len(result) == len(list(result)) == len(result.to_pandas()) == n
    assert int(np.argmax(result.values["down"])) == 0
    assert int(np.argmin(result.values["i"])) == 0
    assert result.values["i"].tolist() == list(range(1, n + 1))
    assert result.best("down", "max").index == 0
    reduce = {"top": ep.reduce.ArgMax("down"), "low": ep.reduce.ArgMin("i")}
    reduced = ep.sweep(
        lambda x: {"down": -x, "i": x.astype(jnp.int32)}, line, reduce=reduce
    )
    assert reduced.values["top"].index == reduced.values["low"].index == 0


def test_what_changed_since_the_last_sweep_is_seen():
    settings = {"scale": jnp.float32(1)}
    space = {"x": ep.Linspace(0, 1, 3)}

    def fn(point):
        return point["x"] * settings["scale"] + point.get("shift", 0.0)

    first = ep.sweep(fn, space).values.tolist()
    settings["scale"] = jnp.float32(2)
    second = ep.sweep(fn, space).values.tolist()
    space["shift"] = 1.0
    third = ep.sweep(fn, space).values.tolist()
    assert (first, second, third) == ([0, 0.5, 1], [0, 1, 2], [1, 2, 3])


def test_more_arguments_come_by_name_and_none_is_swallowed():
    def simulate(state, duration, *, rate=1.0):
        return state["gain"] * duration * rate

    space = {"gain": ep.Linspace(0, 1, 3)}
    given = ft.partial(simulate, duration=10.0, rate=2.0)
    assert ep.sweep(given, space).values.tolist() == [0, 10, 20]
    with pytest.raises(TypeError, match="duration"):
        ep.sweep(simulate, space)
    with pytest.raises(TypeError, match="positional arguments"):
        ep.sweep(simulate, space, 10.0)


def test_names_keep_the_order_in_which_they_were_written():
    space = ep.Space({"z": ep.Values([1, 2]), "a": ep.Values([1, 2, 3])})
    result = ep.sweep(lambda p: p["z"] * 10 + p["a"], space)
    assert result.grid().tolist() == [[11, 12, 13], [21, 22, 23]]
    assert result.to_xarray()["value"].dims == ("z", "a")
    assert list(result.to_pandas().columns) == ["z", "a", "value", "status"]


def test_two_loops_over_one_space_or_result_do_not_disturb_each_other():
    space = ep.Space({"x": ep.Values([0, 1, 2])})
    pairs = [(int(p["x"]), int(q["x"])) for p in space for q in space]
    assert pairs == [(i, j) for i in range(3) for j in range(3)]
    again = iter(space)
    assert int(next(again)["x"]) == 0 and len(list(space)) == 3


def test_arrays_and_groups_stand_in_a_product():
    space = {
        "w": ep.Values(np.arange(6.0).reshape(2, 3)),
        "low": ep.Values([0.0, 1.0], dim="range"),
        "high": ep.Values([1.0, 5.0], dim="range"),
    }
    frame = ep.sweep(lambda p: p["w"].sum() + p["high"], space).to_pandas()
    names = ["w.0", "w.1", "w.2", "low", "high", "value", "status"]
    assert list(frame.columns) == names
    assert frame["value"].tolist() == [4, 8, 13, 17]


def test_one_result_of_many_is_taken_from_what_is_there():
    """No program runs for `result[i]`, and no grid is made for `space[i]`."""
    result = ep.sweep(lambda x: {"y": x, "z": x * 2}, ep.Linspace(0, 1, 100))
    assert isinstance(result[3]["y"], np.generic)
    long = ep.Space({str(k): ep.Linspace(0, 1, 1000) for k in range(20)})
    assert long[10**50]["0"] == 0 and len(long[-3:]) == 3


def test_best_and_grid_with_failed_points_and_with_none_left():
    def fn(x):
        return eqx.error_if(x, x < 3, "small")

    result = ep.sweep(fn, ep.Linspace(0, 4, 5), on_error="mark")
    assert result.best().index == 3 and result.best(mode="max").index == 4
    assert np.isnan(result.grid()[:3]).all()
    whole = ep.sweep(
        lambda x: fn(x).astype(jnp.int32), ep.Linspace(0, 4, 5), on_error="mark"
    )
    assert whole.best().value == 3  # not the 0 that stands for a failure
    with pytest.raises(ValueError, match="every point failed"):
        whole[:3].best()


def test_types_within_a_sweep_name_no_mesh():
    """As under `vmap`: lineax and Equinox compare types with those of the trace."""
    seen = []

    @jax.custom_batching.custom_vmap
    def double(x):
        return 2 * x

    @double.def_vmap
    def _(size, batched, x):
        seen.append(jax.typeof(x).sharding.mesh.empty)
        return 2 * x, batched[0]

    space = {"x": ep.Values([1.0, 2.0, 3.0])}
    values = ep.sweep(lambda p: double(p["x"]), space, batch_size=3).values
    assert values.tolist() == [2, 4, 6]
    ep.sweep(lambda p: double(p["x"]), space, reduce=ep.reduce.Sum(), batch_size=3)
    assert len(seen) >= 2 and all(seen)


POINTS = {"n": ep.Values([2, 3]), "a": {"x": ep.Linspace(0, 1, 3)}, "k": jnp.int32(2)}


@pytest.mark.parametrize(
    ("fn", "wanted"),
    [
        (lambda p: jnp.zeros(p["n"]).sum(), "p['n']"),
        (lambda p: sum(range(p["n"])), "p['n']"),
        (lambda p: 1 if p["a"]["x"] > 0 else 0, "p['a']['x']"),
        (lambda p: math.sin(p["n"]), "p['n']"),
        (lambda p: np.sin(p["n"]), "p['n']"),
        (lambda p: jnp.ones(3)[: p["n"]], ""),
        (lambda p: jnp.ones(3)[jnp.ones(3) > p["a"]["x"]].sum(), ""),
        (lambda p: {1: 2}[p["n"]], ""),
    ],
)
def test_a_value_that_is_not_known_is_named_with_the_fix(fn, wanted):
    for swept in (ep.sweep, ep.vmap_space):
        with pytest.raises((TypeError, IndexError)) as caught:
            swept(fn, POINTS)
        assert any("ep.Static([...])" in note for note in caught.value.__notes__)
        assert wanted in str(caught.value) or swept is ep.vmap_space
