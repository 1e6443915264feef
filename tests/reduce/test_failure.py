"""Reduced sweeps whose points fail, and those with `Static` axes."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.reducers import REDUCERS, agree, reducers
from support.sweeps import make_mesh

import eqx_pipe as ep
import eqx_pipe.testing as ept

REDUCE = reducers(["mean", "argmin", "digits"])


def failing(x, bad):
    return eqx.error_if(x * 7 % 101, jnp.any(x == bad), "bad point")


SOME = st.lists(st.sampled_from(sorted(REDUCERS)), min_size=1, max_size=2, unique=True)
HOW = {
    "two devices": {"mesh": make_mesh(2)},
    "eight devices": {"mesh": make_mesh(8)},
    "single points": {"batch_size": 1},
    "odd batches": {"batch_size": 7, "mesh": make_mesh(2)},
}


@given(
    names=SOME,
    how=st.sampled_from(sorted(HOW)),
    n=st.sampled_from([5, 57, 700]),
    bad=st.lists(st.integers(2, 699), max_size=6),
    sliced=st.booleans(),
)
def test_failed_points_do_not_count(names, how, n, bad, sliced):
    space = ep.Space(ep.Values(np.arange(700.0, dtype=np.float32)))
    points = np.arange(700.0)
    part = slice(n - 1, None, -1) if sliced and n < 100 else slice(n)
    space, points = space[part], points[part]
    numbers = jnp.array([*bad, *[-1] * (6 - len(bad))], jnp.float32)
    result = ep.sweep(
        lambda x: failing(x, numbers) / 16,
        space,
        reduce=reducers(names),
        on_error="mark",
        **HOW[how],
    )
    ok = ~np.isin(points, bad)
    values = np.float32((points * 7 % 101) / 16)
    agree(result.values, values[ok], np.flatnonzero(ok))
    assert np.array_equal(result.ok, ok) and result.points == len(points)


@pytest.mark.slow
def test_other_points_that_fail_compile_nothing():
    def run(bad):
        bad = jnp.array(bad) + 0.1
        return ep.sweep(
            lambda x: failing(x + 0.1, bad),
            ep.Linspace(0, 99, 100),
            reduce={"var": ep.reduce.Var(), "sum": ep.reduce.Sum()},
            on_error="mark",
            batch_size=3,
            mesh=make_mesh(2),
        )

    for bad in ([3.0, 4, 50, 99], [3.0, 4, 50, 98]):  # literals, then arguments
        run(bad)
    with ept.assert_compiles(0):
        other = run([10.0, 20, 30, 40])
    assert np.flatnonzero(~other.ok).tolist() == [10, 20, 30, 40]


def test_the_repr_lists_failed_points():
    space = ep.Linspace(0, 49, 50)
    numbers = jnp.array([3.0, 9, 11, 40, 41, 42])
    asked = {"reduce": ep.reduce.Mean(), "on_error": "mark"}
    result = ep.sweep(lambda x: failing(x, numbers), space, **asked)
    assert "6 points failed: 3, 9, 11, 40, 41, ..." in repr(result)
    clean = ep.sweep(jnp.sin, space, **asked)
    assert clean.ok.all() and "failed" not in repr(clean)
    plain = ep.sweep(jnp.sin, space, reduce=ep.reduce.Mean())
    np.testing.assert_allclose(clean.values, plain.values, rtol=2e-5)


def test_the_error_names_the_failed_point():
    bad = jnp.array([77.0, 500.0])
    with pytest.raises(ep.SweepError, match=r"at point 77: .*bad point") as error:
        ep.sweep(
            lambda x: failing(x, bad),
            ep.Linspace(0, 999, 1000),
            reduce=ep.reduce.Mean(),
        )
    assert error.value.indices == (77,)
    space = {"f": ep.Static([lambda x: x, lambda x: -x]), "x": ep.Linspace(0, 99, 100)}
    with pytest.raises(ep.SweepError, match="at point 177") as error:
        ep.sweep(
            lambda p: failing(p["f"](p["x"]), -bad), space, reduce=ep.reduce.Mean()
        )
    assert error.value.indices == (177,)


@pytest.mark.parametrize(
    ("order", "isolated"),
    [("both", False), pytest.param("slice", True, marks=pytest.mark.slow)],
)
def test_static_axes_are_reduced_in_the_order_of_the_index(order, isolated):
    line = ep.Linspace(0, 99, 100)
    shift = ep.Static([0, 1000, 0, 50])
    if order == "both":
        space = ep.Space({"s": shift, "x": line, "t": ep.Static(["a", "bcd"])})
    else:
        space = ep.Space({"x": line, "s": shift})[390:5:-3]

    def value(point):
        x = point["x"] * 3 % 7 + point["s"] + len(point.get("t", ""))
        return eqx.error_if(x, isolated & (point["x"] == 13), "thirteen")

    result = ep.sweep(
        value,
        space,
        reduce=REDUCE,
        batch_size=5,
        on_error="mark" if isolated else "raise",
    )
    points = list(space)
    ok = np.array([not isolated or p["x"] != 13 for p in points])
    values = [float(p["x"] * 3 % 7 + p["s"] + len(p.get("t", ""))) for p in points]
    agree(result.values, np.float32(values)[ok], np.flatnonzero(ok))
    assert np.array_equal(result.ok, ok)


def test_static_axes_agree_on_structure_first():
    with pytest.raises(ep.StructureError, match=r"float32\[2\]"):
        space = {"s": ep.Static([1, 2]), "x": ep.Linspace(0, 1, 10)}
        ep.sweep(lambda p: jnp.zeros(p["s"]), space, reduce=ep.reduce.Mean())


def test_keys_and_random_points_are_those_of_the_whole_sweep():
    key = jr.key(5)
    space = ep.Space({"s": ep.Static([0.0, 1.0]), "x": ep.Linspace(0, 1, 30)})[7:53]

    def fn(p, key):
        x = jr.normal(key) + p["s"]
        return {"x": eqx.error_if(x, p["x"] == 0, "zero"), "k": key}

    kept = ep.reduce.Reducer(
        init=lambda s: (False, jr.key(0)),
        update=lambda a, v: (jnp.array(True), jax.lax.select(a[0], a[1], v["k"])),
        merge=lambda a, b: (a[0] | b[0], jnp.where(a[0], a[1], b[1])),
        finish=lambda a: jr.key_data(a[1]),
    )
    asked = {"key": key, "on_error": "mark", "batch_size": 4}
    plain = ep.sweep(fn, space, **asked)
    reduce = {"m": ep.reduce.Mean("x"), "best": ep.reduce.ArgMax("x"), "first": kept}
    values = ep.sweep(fn, space, reduce=reduce, **asked).values
    assert values["best"].index == plain.best("x", "max").index
    expected = plain.values["x"][plain.ok].mean()
    np.testing.assert_allclose(values["m"], expected, rtol=1e-5)
    assert np.array_equal(values["first"], jr.key_data(plain.values["k"][0]))


def test_invalid_floats_are_isolated_too():
    with jax.debug_nans(True):
        result = ep.sweep(
            lambda x: jnp.log(x),
            ep.Values([1.0, -1.0, 1.0]),
            reduce=ep.reduce.Sum(),
            on_error="mark",
        )
        assert result.ok.tolist() == [True, False, True] and result.values == 0
        with pytest.raises(FloatingPointError, match="point 1 is nan"):
            ep.sweep(jnp.log, ep.Values([1.0, -1.0]), reduce=ep.reduce.Sum())
