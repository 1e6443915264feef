"""The unit cube of a space, and the rounds of a search joined."""

import equinox as eqx
import hypothesis as hp
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from support.helpers import few

import eqx_pipe as ep

KEY = jr.key(2)
TREE = {
    "z": ep.Linspace(-1, 3, 5),
    "rate": ep.Geomspace(1e-4, 1e-1, 3),
    "debt": ep.Geomspace(-1, -8, 2),
    "width": ep.Values([3, 1, 4]),
    "act": ep.Static(["relu", jnp.tanh]),
    "noise": ep.Random(jr.normal, 4),
    "size": ep.Mapped(jnp.exp, ep.Linspace(0, 1, 2)),
    "line": ep.Linspace(jnp.zeros(2), jnp.array([1.0, -2.0]), 3),
    "fixed": "text",
}
SPACE = ep.Space(TREE, key=KEY)
CATEGORIES = {"width": 3, "act": 2, "noise": 4}
NAMES = [name for name in TREE if name != "fixed"]

numbers = st.floats(0, 1) | st.sampled_from([0.0, 1 / 3, 0.5, 1.0])


@few
@hp.given(hnp.arrays(float, (3, len(NAMES)), elements=numbers))
def test_into_the_cube_and_out_of_it(u):
    points = SPACE.from_unit(u)
    assert points.dims == {"point": 3} and list(points.axes()) == NAMES
    back = SPACE.to_unit(points)
    for k, name in enumerate(NAMES):
        if name in CATEGORIES:
            n = CATEGORIES[name]
            middle = (np.minimum(np.floor(u[:, k] * n), n - 1) + 0.5) / n
            np.testing.assert_allclose(back[:, k], middle)
        else:
            np.testing.assert_allclose(back[:, k], u[:, k], atol=1e-6)


def test_the_ends_are_the_corners_and_points_are_points():
    whole = ep.Space(TREE, key=KEY)
    corners = whole.from_unit([[0.0] * len(NAMES), [1.0] * len(NAMES)])
    for corner, point in zip(corners, (whole[0], whole[-1]), strict=True):
        assert eqx.tree_equal(corner, point, rtol=1e-6)
    assert whole.to_unit(whole[:0]).shape == (0, len(NAMES))
    some = whole[[0, 777, 4000]]
    assert eqx.tree_equal(
        list(whole.from_unit(whole.to_unit(some))), list(some), rtol=1e-5
    )
    assert whole.from_unit(np.zeros((0, len(NAMES)))).size == 0


def test_values_are_spaced_as_the_axis_is():
    u = np.linspace(0, 1, 5)
    space = ep.Space({"a": ep.Geomspace(1, 16, 2), "b": ep.Linspace(8, 0, 9)})
    frame = space.from_unit(np.stack([u, u], axis=1)).to_pandas()
    np.testing.assert_allclose(frame["a"], [1, 2, 4, 8, 16], rtol=1e-6)
    np.testing.assert_allclose(frame["b"], [8, 6, 4, 2, 0])


def test_equal_values_are_the_first_of_them():
    space = ep.Space(ep.Values([1, 1, 2]))
    back = space.to_unit(space.from_unit([[0.1], [0.5], [0.9]]))
    np.testing.assert_allclose(back[:, 0], [1 / 6, 1 / 6, 5 / 6])


def test_a_value_of_the_other_sign_is_none_of_a_geomspace():
    space = ep.Space({"x": ep.Geomspace(0.01, 1, 3)})
    with pytest.raises(ValueError, match="point 0 has -0.1.*outside"):
        space.to_unit(ep.Space({"x": ep.Values([-0.1, 0.1])}))


GRID = ep.Space(
    {
        "b": ep.Linspace(0, 1, 3),
        "m": ep.Mapped(lambda v: {"p": v, "q": -v}, ep.Values([1.0, 2.0])),
        "f": ep.Static([2, 3]),
        "r": ep.Random(jr.normal, 2),
        "c": 3.0,
    },
    key=KEY,
)


def model(p, key):
    return {"v": p["f"] * p["b"] + p["r"] * p["m"]["p"], "key": key}


class Given:
    """A method that proposes given spaces."""

    def __init__(self, *rounds):
        self.rounds = rounds

    def init(self, space, key):
        return 0

    def ask(self, state, num):
        return self.rounds[state], state + 1

    def tell(self, state, losses, result):
        return state


def test_the_rounds_of_a_search_are_joined_to_a_table():
    other = ep.Space({**GRID.tree, "b": ep.Values([7.0])}, key=jr.key(9))
    method = Given(GRID[:2], other[[3, 0, 1]])
    options = {"rounds": 2, "num": 3, "by": "v", "key": KEY}
    found = ep.search.explore(model, GRID, method, **options)
    both, (first, second) = found.result, found.sweeps
    assert both.space.mode == "zip" and len(both) == 5
    for i, (result, k) in enumerate([(first, 0), (first, 1), (second, 0), (second, 1)]):
        assert eqx.tree_equal(both[i], result[k])
        assert eqx.tree_equal(both.space.point(i), result.space.point(k))


def test_points_of_a_search_that_failed_stay_so():
    def wrong(p):
        return eqx.error_if(p["a"], p["a"] == 2, "two")

    space = ep.Space({"a": ep.Values([1.0, 2.0])})
    options = {"rounds": 2, "num": 2, "on_error": "mark"}
    found = ep.search.explore(wrong, space, Given(space, space[::-1]), **options)
    assert found.result.status.tolist() == [1, 2, 2, 1]
    assert found.result.missing is None and list(found.result.errors) == [1, 2]


@pytest.mark.parametrize("wrong", [np.nan, -0.1, 1.5])
def test_numbers_outside_of_the_cube(wrong):
    with pytest.raises(ValueError, match=r"`u\[1, 0\]` is .*from 0 to 1"):
        ep.Space(ep.Linspace(0, 1, 2)).from_unit([[0.5], [wrong]])
