"""Parts of a space and of a result: masks, lists, values; empty ones too.

One law carries them: a sweep of a part is the whole sweep, at that part.
"""

import functools

import equinox as eqx
import hypothesis as hp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from support.sweeps import close

import eqx_pipe as ep

KEY = jr.key(5)
SPACE = ep.Space({"a": ep.Linspace(0, 1, 4), "b": ep.Values([1, 2, 3])})
STATIC = ep.Space({"n": ep.Static([1, 2, 3]), "a": ep.Linspace(0, 1, 4)})


@jax.tree_util.Partial
def noisy(p, key):
    return {"sum": p["a"] + p["b"].astype(jnp.float32), "draw": jr.normal(key)}


def scaled(p):
    return p["a"] * p["n"]


# Not when the file is imported, which every process of a run does.


@functools.cache
def swept():
    return ep.sweep(noisy, SPACE, key=KEY, batch_size=4)


@functools.cache
def all_scaled():
    return ep.sweep(scaled, STATIC)


def indices(size=12):
    listed = st.lists(st.integers(-size, size - 1), max_size=5)
    masks = st.lists(st.booleans(), min_size=size, max_size=size)
    grids = masks.map(lambda m: np.array(m).reshape(4, 3))
    return listed | listed.map(lambda x: jnp.asarray(x, int)) | masks | grids


def positions(some):
    """Return the points that NumPy takes for an index."""
    some = np.asarray(some, None if len(some) else int).reshape(-1)
    return np.arange(12)[some]


@hp.given(indices())
def test_a_sweep_of_a_part_is_the_whole_sweep_there(some):
    part = ep.sweep(noisy, SPACE[some], key=KEY, batch_size=4)
    chosen = swept()[some]
    at = positions(some)
    for got, also, all_of_it in zip(
        jax.tree.leaves(part.values),
        jax.tree.leaves(chosen.values),
        jax.tree.leaves(swept().values),
        strict=True,
    ):
        np.testing.assert_array_equal(also, all_of_it[at])
        # A sweep of a part is another program: floats agree to rounding.
        close(got, all_of_it[at])
    assert part.space.dims == chosen.space.dims == {"point": len(at)}
    table = SPACE.to_pandas().iloc[at].reset_index(drop=True)
    assert part.space.to_pandas().equals(table)
    assert chosen.space.to_pandas().equals(table)


def test_with_static_values_by_every_road():
    some = [11, 0, 5, 5]
    want = all_scaled().values[some]
    close(ep.sweep(scaled, STATIC[some]).values, want)
    total = ep.sweep(scaled, STATIC[some], reduce=ep.reduce.Sum()).values
    np.testing.assert_allclose(total, want.sum(), rtol=1e-6)
    with jax.disable_jit():
        np.testing.assert_allclose(ep.sweep(scaled, STATIC[some]).values, want)


def test_parts_of_parts():
    part = SPACE[1:9:2][[3, 0]][::-1]
    assert [int(p["b"]) for p in part] == [int(SPACE[i]["b"]) for i in (1, 7)]
    key = part.point_key(1, key=KEY)
    assert bool(key == SPACE.point_key(7, key=KEY))


def test_indices_are_those_of_a_list():
    size = SPACE.size
    for i in range(-size, size):
        assert eqx.tree_equal(SPACE[i], SPACE.point(i % size))
    negative = SPACE[[-1, -size, 2]]
    assert [
        eqx.tree_equal(p, SPACE[i]) for p, i in zip(negative, [11, 0, 2], strict=True)
    ] == ([True] * 3)
    for some in (size, -size - 1, [0, size], [-size - 1]):
        with pytest.raises(IndexError, match=r"is out of range.*12 points, 0 to 11"):
            SPACE[some]
    with pytest.raises(IndexError, match="index -1 is out of range"):
        SPACE.point(-1)


def test_points_are_data_of_a_program():
    traces = []

    @eqx.filter_jit
    def point(space, i):
        traces.append(i)
        return space.point(i)

    for some in ([3, 7], [8, 2]):
        found = point(SPACE[some], jnp.int32(1))
        assert int(found["b"]) == int(SPACE[some[1]]["b"])
    assert len(traces) == 1


def test_a_grid_beyond_every_integer():
    axis = ep.Linspace(0, 1, 2**31 - 1)
    space = ep.Space({"a": axis, "b": axis, "c": axis})
    some = [space.size - 1, 0, 2**40]
    part = ep.sweep(lambda p: p["a"] + p["b"] + p["c"], space[some])
    at = 2**40 / (2**31 - 1)
    np.testing.assert_allclose(part.values, [3, 0, at / 2**31], atol=1e-6)


EMPTY = SPACE[[]]


@pytest.mark.parametrize(
    "space",
    [EMPTY, SPACE[5:5], STATIC[[]]],
    ids=["list", "slice", "static"],
)
def test_an_empty_part_has_a_result_of_the_right_form(space):
    fn = scaled if space is not EMPTY and "n" in space.axes() else noisy
    whole = all_scaled() if fn is scaled else swept()
    key = None if fn is scaled else KEY
    result = ep.sweep(fn, space, key=key)
    want = jax.tree.map(lambda leaf: leaf[:0], whole.values)
    assert eqx.tree_equal(result.values, want, typematch=True)
    assert len(result) == len(list(result)) == len(result.ok) == 0
    assert len(result.to_pandas()) == result.to_xarray().sizes["point"] == 0
    assert len(space.to_pandas()) == 0


def test_nothing_by_every_road(tmp_path):
    def first(p):
        return p["a"]

    assert ep.vmap_space(first, EMPTY).shape == (0,)
    reduced = ep.sweep(
        first, EMPTY, reduce={"sum": ep.reduce.Sum(), "mean": ep.reduce.Mean()}
    )
    assert reduced.points == 0 and reduced.values["sum"] == 0
    assert np.isnan(reduced.values["mean"])
    with jax.disable_jit():
        by_hand = ep.sweep(noisy, EMPTY, key=KEY).values
    assert eqx.tree_equal(by_hand, ep.sweep(noisy, EMPTY, key=KEY).values)
    ep.sweep(first, EMPTY).save(tmp_path / "none.zarr")
    assert len(ep.SweepResult.load(tmp_path / "none.zarr")) == 0
