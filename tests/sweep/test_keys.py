"""The law of keys: a point draws by its position on each dim, in every sweep.

Outputs are the keys themselves, so that one bit that differs is seen.
"""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.helpers import slow_unless

import eqx_pipe as ep

KEY = jr.key(7)
SPACES = [
    lambda n=4: ep.Linspace(0, 1, n),
    lambda n=4: {"a": ep.Linspace(0, 1, 3), "b": ep.Linspace(0, 1, n)},
    lambda n=4: ep.Space([ep.Linspace(0, 1, n), ep.Linspace(2, 3, n)], "zip"),
    lambda n=4: {
        "a": ep.Linspace(0, 1, n, dim="t"),
        "b": ep.Static([1, 2]),
        "c": ep.Linspace(0, 1, n, dim="t"),
        "d": ep.Linspace(0, 1, 3),
    },
]
which = st.integers(0, len(SPACES) - 1)
ends = st.none() | st.integers(-30, 30)
slices = st.builds(slice, ends, ends, st.sampled_from([None, 1, 2, 3, -1, -2, -5]))


def drawn(point, key):
    return jr.key_data(key)


def total(point):
    return point["a"]


def by_hand(space):
    """Return the keys of all points, by their definition."""
    keys = []
    for digits in np.ndindex(*space.dims.values()):
        key = KEY
        for digit in digits:
            key = jr.fold_in(key, digit)
        keys.append(jr.key_data(key))
    return np.array(keys)


def as_space(tree):
    return tree if isinstance(tree, ep.Space) else ep.Space(tree)


def said(space):
    """Return what `point_key` gives for all points."""
    indices = range(space.size)
    return np.array([jr.key_data(space.point_key(i, key=KEY)) for i in indices])


def cut(whole, first, second):
    """Return a slice of a slice, and the indices of its points in the whole."""
    index = np.arange(whole.size)[first][second]
    return (whole[first][second] if len(index) else None), index


@pytest.mark.parametrize("make", slow_unless(SPACES[3:], SPACES[2:]))
def test_a_key_is_folded_with_one_digit_after_the_other(make):
    space = as_space(make())
    expected = by_hand(space)
    np.testing.assert_array_equal(said(space), expected)
    np.testing.assert_array_equal(ep.sweep(drawn, space, key=KEY).values, expected)
    at = jax.vmap(lambda i: space.point_key(i, key=KEY))(jnp.arange(space.size))
    np.testing.assert_array_equal(jr.key_data(at), expected)


@given(which, slices, slices)
def test_a_slice_keeps_the_keys_of_the_space(i, first, second):
    whole = as_space(SPACES[i]())
    part, index = cut(whole, first, second)
    if part is not None:
        np.testing.assert_array_equal(said(part), by_hand(whole)[index])


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    st.lists(st.integers(0, 3), min_size=3, max_size=3),
)
def test_longer_axes_change_no_key(lengths, more):
    def keys(lengths):
        space = ep.Space([ep.Linspace(0, 1, n) for n in lengths])
        return said(space).reshape(*lengths, 2)

    longer = keys([n + k for n, k in zip(lengths, more, strict=False)])
    old = tuple(slice(n) for n in lengths)
    np.testing.assert_array_equal(longer[old], keys(lengths))


def test_it_is_so_behind_two_to_the_32_points():
    side, first = 2**20, 2**32 - 2
    space = ep.Space([ep.Linspace(0, 1, side), ep.Linspace(0, 1, side)])
    few = {"neighbours": space[first : first + 4], "apart": space[first::side][:4]}
    for step, part in zip((1, side), few.values(), strict=True):
        digits = [divmod(first + step * i, side) for i in range(4)]
        keys = [jr.fold_in(jr.fold_in(KEY, a), b) for a, b in digits]
        expected = [jr.key_data(key).tolist() for key in keys]
        assert ep.sweep(drawn, part, key=KEY).values.tolist() == expected
        listed = ep.sweep(drawn, part, key=KEY, order_by=np.arange(4.0)).values
        assert listed.tolist() == expected
        assert said(part).tolist() == expected


def test_a_key_is_no_key_where_there_is_none():
    space = as_space(SPACES[0]())
    assert space.point_key(1, key=None) is None
    raw = space.point_key(1, key=jr.PRNGKey(7))
    np.testing.assert_array_equal(raw, jr.key_data(space.point_key(1, key=KEY)))
