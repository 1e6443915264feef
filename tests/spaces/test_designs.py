"""Joint designs: points that fill a box evenly."""

import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import qmc

import eqx_pipe as ep

TREE = {"b": (0.0, 2.0), "a": [(5, 3), (np.zeros(2), np.ones(2))]}
LO, HI = np.array([0.0, 5, 0, 0]), np.array([2.0, 3, 1, 1])
DESIGNS = [ep.sobol, ep.latin_hypercube]


def columns(tree):
    """The values of all axes, one column for each number, in the order written."""
    leaves = [axis.values for axis in ep.Space(tree).axes().values()]
    return np.concatenate([np.asarray(x).reshape(len(x), -1) for x in leaves], axis=1)


@given(st.sampled_from(DESIGNS), st.sampled_from([1, 2, 5, 16]), st.integers(0, 3))
def test_values_are_those_of_scipy_within_the_bounds(make, n, seed):
    tree = make(TREE, n, seed=seed)
    assert list(tree) == ["b", "a"] and isinstance(tree["a"], list)
    assert ep.Space(tree).dims == {make.__name__: n}
    if make is ep.sobol:
        cube = qmc.Sobol(4, seed=seed).random_base2(4)[:n]
    else:
        cube = qmc.LatinHypercube(4, seed=seed).random(n)
    got = columns(tree)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, LO + (HI - LO) * cube, rtol=1e-6, atol=1e-7)
    assert np.all(got >= np.minimum(LO, HI)) and np.all(got <= np.maximum(LO, HI))
    assert np.array_equal(got, columns(make(TREE, n, seed=seed)))


@given(st.integers(0, 3))
def test_a_longer_sobol_sequence_begins_with_a_shorter_one(seed):
    whole = columns(ep.sobol(TREE, 21, seed=seed))
    assert np.array_equal(whole[:6], columns(ep.sobol(TREE, 6, seed=seed)))
    assert not np.array_equal(whole, columns(ep.sobol(TREE, 21, seed=seed + 1)))


@given(st.integers(1, 9), st.integers(0, 3))
def test_a_latin_hypercube_has_one_point_in_every_part(n, seed):
    cube = (columns(ep.latin_hypercube(TREE, n, seed=seed)) - LO) / (HI - LO)
    parts = np.sort(np.floor(np.clip(cube, 0, 1 - 1e-6) * n + 1e-5), axis=0)
    assert np.array_equal(parts, np.tile(np.arange(n)[:, None], 4))


def test_what_is_a_pair_and_what_a_node():
    design = ep.sobol(((0, 1), (2, 3)), 4)
    assert len(design) == 2 and all(isinstance(axis, ep.Axis) for axis in design)
    assert isinstance(ep.sobol((0, 1), 4), ep.Axis)
    assert isinstance(ep.sobol([0, 1], 4), ep.Axis)
    assert [len(x) for x in ep.sobol([[0, 1], (1, 2), [2, 3]], 4)] == [4, 4, 4]
    assert ep.sobol({"a": None, "b": (0, 1)}, 4)["a"] is None


def test_a_design_is_one_dim_of_a_product():
    space = ep.Space(
        {
            **ep.sobol({"a": (0, 1), "b": (0, 1)}, 4),
            "c": ep.Values([1.0, 2.0]),
            "d": ep.latin_hypercube((0, 1), 3),
        }
    )
    assert space.dims == {"sobol": 4, "c": 2, "latin_hypercube": 3}
    result = ep.sweep(lambda p: p["a"] + p["b"] * p["c"] + p["d"], space)
    assert result.grid().shape == (4, 2, 3)
    assert result.to_xarray()["b"].dims == ("sobol",)
    two = [ep.sobol((0, 1), 4), ep.sobol((0, 1), 2, seed=1, dim="other")]
    assert ep.Space(two).dims == {"sobol": 4, "other": 2}


def test_bounds_may_be_traced():
    def total(hi):
        return sum(jnp.sum(x) for x in ep.Space(ep.sobol((0.0, hi), 4)))

    cube = qmc.Sobol(1, seed=0).random_base2(2)
    np.testing.assert_allclose(jax.jit(jax.grad(total))(2.0), cube.sum(), rtol=1e-6)


@pytest.mark.parametrize("make", DESIGNS)
@pytest.mark.parametrize(
    ("bounds", "n", "settings", "error", "says"),
    [
        ({"a": 3}, 4, {}, TypeError, "at `a`.*pairs"),
        ({"a": (1, 2, 3)}, 4, {}, TypeError, "at `a.0`"),
        ({"a": ("lo", "hi")}, 4, {}, TypeError, "at `a.0`"),
        ({}, 4, {}, ValueError, "at least one pair"),
        ({"a": (0, np.inf)}, 4, {}, ValueError, "`a`.*`hi` is inf"),
        ({"a": (0, 1j)}, 4, {}, TypeError, "`a`.*real"),
        ({"a": (np.zeros(2), 1)}, 4, {}, ValueError, "`a`.*same shape"),
        ((0, 1), 0, {}, ValueError, "at least 1"),
        ((0, 1), 2.0, {}, TypeError, "integer"),
        ((0, 1), 2, {"seed": -1}, ValueError, "`seed`"),
        ((0, 1), 2, {"seed": jr.key(0)}, TypeError, "`seed`"),
        ((0, 1), 2, {"dim": ""}, ValueError, "non-empty"),
    ],
)
def test_misuse_says_what_to_do(make, bounds, n, settings, error, says, unchecked):
    with pytest.raises(error, match=says):
        make(bounds, n, **settings)


def test_a_sobol_sequence_ends():
    with pytest.raises(ValueError, match=r"2\*\*30"):
        ep.sobol((0, 1), 2**30 + 1)


def test_designs_are_pytrees_of_axes():
    leaves = jtu.tree_leaves(
        ep.sobol(TREE, 4), is_leaf=lambda x: isinstance(x, ep.Axis)
    )
    assert all(isinstance(axis, ep.Axis) for axis in leaves)


def test_two_designs_are_two_dims():
    one, two = ep.sobol({"a": (0, 1)}, 8), ep.sobol({"b": (0, 1)}, 8)
    for tree in ({"p": one, "q": two}, {"p": one, "q": one}):
        with pytest.raises(ValueError, match="two joint designs.*one design of all"):
            ep.Space(tree)
    other = ep.sobol({"b": (0, 1)}, 4, dim="other")
    assert ep.Space({"p": one, "q": other}).dims == {"sobol": 8, "other": 4}
    # What is no design may vary with one.
    assert ep.Space({"p": one, "seed": ep.Values(range(8), dim="sobol")}).size == 8
