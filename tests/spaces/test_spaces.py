"""Spaces: what their points are, in which order, and which spaces there cannot be."""

import itertools as it
import os
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import eqx_pipe as ep

ROOT = Path(__file__).parents[2]


def axis(kind, n):
    """Return one of some axes of a given length."""
    return [
        lambda: ep.Linspace(-1.5, 2, n),
        lambda: ep.Geomspace(1e-3, 10, n),
        lambda: ep.Values(list(range(3, 3 + n))),
        lambda: ep.Values([i % 2 == 0 for i in range(n)]),
        lambda: ep.Values(np.arange(2.0 * n).reshape(n, 2)),
        lambda: ep.Values(jr.split(jr.key(n), n)),
    ][kind]()


def build(recipe):
    """Make a space of what was drawn.

    It is not made while drawing: the type checker picks at random what it looks at,
    and hypothesis forbids that there.
    """
    kinds, shape, mode, cut = recipe
    lengths = [3, 3, 3] if mode == "zip" else [3, 1, 2]
    first, second, third = (axis(k, n) for k, n in zip(kinds, lengths, strict=True))
    tree = [
        first,
        {"b": first, "a": second},
        {"z": [first, None, "text"], "a": {"y": second, "x": 7, "b": third}},
        (second, {"q": jnp.arange(2)}, (first,)),
    ][shape]
    space = ep.Space(tree, mode)
    return space if cut is None or space.size < 2 else space[cut]


recipes = st.tuples(
    st.tuples(*[st.integers(0, 5)] * 3),
    st.integers(0, 3),
    st.sampled_from(["product", "zip"]),
    st.sampled_from([None, slice(1, None), slice(None, None, -2)]),
)


def bits(leaf):
    """Return an array as bytes, so that keys, NaNs and signed zeros can be compared."""
    if not eqx.is_array_like(leaf):
        return leaf
    if eqx.is_array(leaf) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jr.key_data(leaf)
    leaf = np.asarray(leaf)
    return leaf.shape, leaf.dtype, leaf.tobytes()


def same(a, b):
    assert jtu.tree_structure(a) == jtu.tree_structure(b)
    assert [bits(x) for x in jtu.tree_leaves(a)] == [
        bits(x) for x in jtu.tree_leaves(b)
    ]


def by_name(space):
    return [
        {
            jtu.keystr(path, simple=True, separator=".") or "x": bits(leaf)
            for path, leaf in jtu.tree_flatten_with_path(point)[0]
        }
        for point in space
    ]


@given(recipes)
def test_points_are_the_product_of_the_axes(recipe):
    space = build(recipe)
    names = list(space.axes())
    values = [
        [bits(axis.value(jnp.int32(i), None)) for i in range(len(axis))]
        for axis in space.axes().values()
    ]
    combine = zip if space.mode == "zip" else it.product
    grid = [dict(zip(names, row, strict=True)) for row in combine(*values)]
    if space.span is not None:
        start, count = space.span
        grid = grid[start : start + count]
    if space.rows is not None:
        places = np.ravel_multi_index(space.rows.T, space.geometry.lengths)
        grid = [grid[i] for i in places]
    found = [{name: point[name] for name in names} for point in by_name(space)]
    assert found == grid
    assert space.size == len(space) == len(grid) == np.prod(list(space.dims.values()))


@given(recipes)
def test_a_traced_index_gives_the_same_point_bit_for_bit(recipe):
    space = build(recipe)
    dynamic = jax.jit(lambda i: eqx.filter(space.point(i), eqx.is_array))
    for i in range(space.size):
        same(eqx.filter(space.point(i), eqx.is_array), dynamic(i))


@given(recipes, st.data())
def test_slices_are_those_of_the_list_of_points(recipe, data):
    space = build(recipe)
    n = space.size
    bound = st.none() | st.integers(-n - 1, n + 1)
    step = st.none() | st.sampled_from([-3, -1, 1, 2])
    cut = slice(data.draw(bound), data.draw(bound), data.draw(step))
    same(space[-1], space[n - 1])
    expected = by_name(space)[cut]
    assert by_name(space[cut]) == expected
    assert space[cut].dims == {"point": len(expected)}
    assert by_name(space[cut][::-1]) == expected[::-1]


def test_dims_come_in_the_order_written():
    inner = {"z": ep.Values([1]), "c": ep.Values([2])}
    space = ep.Space({"b": ep.Linspace(0, 1, 2), "a": inner})
    assert list(space.dims.items()) == [("b", 2), ("a.z", 1), ("a.c", 1)]
    again = jax.tree.map(lambda x: x, space)
    assert list(again.dims) == ["b", "a.z", "a.c"]
    assert list(space[1:].geometry.grid_dims) == ["b", "a.z", "a.c"]


def test_axes_that_share_a_dim_vary_together():
    tree = {
        "a": ep.Linspace(0, 1, 3, dim="g"),
        "b": ep.Values([1, 2]),
        "c": ep.Geomspace(1, 100, 3, dim="g"),
    }
    space = ep.Space(tree)
    assert dict(space.dims) == {"g": 3, "b": 2}
    assert [p["c"].item() for p in space] == pytest.approx([1, 1, 10, 10, 100, 100])
    assert ep.Space(ep.Linspace(0, 1, 2)).dims == {"x": 2}


def test_a_module_with_an_axis_in_it_is_a_space():
    model = eqx.nn.MLP(2, "scalar", 4, 1, key=jr.key(0))
    axis = ep.Values(jnp.stack([model.layers[0].bias + i for i in range(3)]))
    space = ep.Space(eqx.tree_at(lambda m: m.layers[0].bias, model, axis))
    assert dict(space.dims) == {"layers.0.bias": 3}
    x = jnp.ones(2)
    assert space[0](x) == model(x) != space[1](x)


@pytest.mark.parametrize("n", [2, 3, 1000, 65_536, 65_537, 10**6, 2**31 - 1])
def test_both_ends_are_hit_and_the_middle_is_right(n):
    for axis, exact in [
        (ep.Linspace(-0.1, 0.7, n), lambda i: -0.1 + 0.8 * i / (n - 1)),
        (ep.Geomspace(1e-4, 0.7, n), lambda i: 1e-4 * 7000 ** (i / (n - 1))),
    ]:
        space = ep.Space(axis)
        lo = -0.1 if isinstance(axis, ep.Linspace) else 1e-4
        assert (space[0], space[-1]) == (np.float32(lo), np.float32(0.7))
        for i in {1, n // 3, n - 2}:
            np.testing.assert_allclose(space[i], exact(i), rtol=3e-7)


def test_spaces_may_be_larger_than_any_integer():
    space = ep.Space({name: ep.Values(jnp.arange(7)) for name in "abcdef"})
    long = ep.Linspace(0, 1, 2**31 - 1)
    space = ep.Space({"v": long, **space.tree, "u": long})
    assert space.size == 7**6 * (2**31 - 1) ** 2
    with pytest.raises(OverflowError):
        len(space)
    last = space[-1]
    assert last["a"] == last["f"] == 6 and last["u"] == 1
    part = space[space.size - 2 :: -(10**18)][:5]
    traced = jax.jit(part.point)
    for i in range(5):
        same(traced(i), part[i])
        flat = (space.size - 2 - i * 10**18) // (2**31 - 1)
        assert part[i]["f"] == flat % 7 and part[i]["e"] == flat // 7 % 7


def test_a_traced_index_out_of_range_is_clamped():
    space = ep.Space(ep.Values([5, 6, 7]))[1:]
    assert jax.vmap(space.point)(jnp.array([-3, 0, 1, 9])).tolist() == [6, 6, 7, 7]


def test_ends_may_be_traced_and_are_differentiable():
    def total(lo, hi):
        ends = ep.Linspace(lo, hi, 5), ep.Geomspace(lo, hi, 3)
        return sum(jnp.sum(point) for axis in ends for point in ep.Space(axis))

    # The middle of the geometric one is the root of lo * hi.
    expected = [2.5 + 1 + 0.5 * 2, 2.5 + 1 + 0.5 * 0.5]
    got = jax.jit(jax.grad(total, argnums=(0, 1)))(0.5, 2.0)
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_dtypes_are_kept():
    cases = [
        (ep.Values([1, 2]), jnp.int32),
        (ep.Values([True]), jnp.bool_),
        (ep.Values(np.float16([1, 2])), jnp.float16),
        (ep.Values([1j]), jnp.complex64),
        (ep.Linspace(0, 4, 3), jnp.float32),
        (ep.Linspace(jnp.bfloat16(0), 4, 3), jnp.bfloat16),
        (ep.Linspace(jnp.float16(0), jnp.float16(4), 3), jnp.float16),
        (ep.Linspace(np.zeros(2), np.ones(2), 3), jnp.float32),
    ]
    for axis, dtype in cases:
        assert ep.Space(axis)[0].dtype == dtype
    assert ep.Space(ep.Linspace(np.zeros(2), np.ones(2), 3))[2].tolist() == [1, 1]
    # Deliberately under 64 bits: an integer that needs them.
    with jax.enable_x64(True):
        assert ep.Space(ep.Values([2**40]))[0].dtype == jnp.int64
        assert ep.Space(ep.Linspace(0, 1, 11))[3] == 0.3


def test_repr_says_what_is_in_it():
    space = ep.Space({"rate": ep.Geomspace(1e-3, 1, 4), "on": ep.Values([True, False])})
    assert repr(space) == (
        "Space(product, 8 points; rate: 4, on: 2)\n"
        "  rate  Geomspace(0.001, 1, 4)\n"
        "  on    Values([True, False])"
    )
    assert "a part of {'rate': 4, 'on': 2}" in repr(space[2:])
    assert repr(ep.Values(range(9), dim="g")) == (
        "Values([0, 1, 2, 3, 4, 5, ...], dim='g')"
    )
    assert repr(ep.Values(jnp.ones((2, 3)))) == "Values(float32[2, 3])"


def test_to_pandas_has_a_row_for_each_point():
    space = ep.Space({"b": ep.Linspace(0, 1, 2), "a": {"w": ep.Values(np.eye(2))}})
    frame = space.to_pandas()
    assert list(frame.columns) == ["b", "a.w.0", "a.w.1"]
    assert frame["b"].tolist() == [0, 0, 1, 1]
    assert frame["a.w.1"].tolist() == [0, 1, 0, 1]
    assert space[::-2].to_pandas()["b"].tolist() == [1, 0]


def test_decimal_steps_are_the_nearest_floats():
    tens = [point.item() for point in ep.Space(ep.Geomspace(1e-4, 1, 5))]
    assert tens == [np.float32(x) for x in (1e-4, 1e-3, 1e-2, 1e-1, 1)]
    for lo, hi, n in [(-1, 2, 4), (-3, 3, 7), (0, 1, 11)]:
        values = ep.Space(ep.Linspace(lo, hi, n)).to_pandas()["x"]
        np.testing.assert_array_equal(values, np.float32(np.linspace(lo, hi, n)))


FIRST_USE = """
import jax
import eqx_pipe as ep
traces = []
half = jax.jit(lambda x: traces.append(1) or x / 2)
half(1.0)
ep.Space({"x": ep.Linspace(0, 1, 3)}), ep.sweep, ep.data.Loader, ep.sharding.AxisRules
half(1.0)
assert len(traces) == 1
"""


def test_no_first_use_makes_functions_compile_again():
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    env = os.environ | {"PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", FIRST_USE], env=env, check=True)
