"""The built-in merges against the same merge written with `jnp`."""

import equinox as eqx
import hypothesis as hp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
import pytest
from jax.experimental import sparse
from support.helpers import assert_agree
from support.stages import Count
from support.strategies import one_stage, structs

import eqx_pipe as ep
import eqx_pipe.testing as ept

REDUCTIONS = ("sum", "mean", "max", "min", "prod")
OF_DTYPES = [
    ("sum", "bool"),
    ("mean", "bool"),
    ("max", "bool"),
    ("sum", "int8"),
    ("prod", "uint8"),
    ("mean", "int32"),
    ("min", "int32"),
    ("mean", "bfloat16"),
    ("max", "float16"),
    ("prod", "float32"),
]


def constants(*outputs):
    """Stages that ignore their input, one for each output."""
    return [lambda x, y=y: y for y in outputs]


@pytest.mark.parametrize(("merge", "dtype"), OF_DTYPES)
def test_reductions_give_the_dtype_and_value_of_jnp(merge, dtype):
    rng = np.random.default_rng(0)
    ys = [jnp.asarray(rng.integers(0, 3, (2, 3)), dtype) for _ in range(3)]
    got = ep.parallel(*constants(*ys), merge=merge)(None)
    expected = getattr(jnp, merge)(jnp.stack(ys), axis=0)
    assert got.dtype == expected.dtype
    assert np.allclose(got.astype(float), expected.astype(float), rtol=2e-2)


@pytest.mark.parametrize(("merge", "dtype"), OF_DTYPES)
def test_a_closed_stage_changes_no_reduction(merge, dtype):
    x = jnp.asarray([0, 1, 1], dtype)
    doors = (lambda x: True, lambda x: jnp.array(False))
    both = ep.gated(*constants(x, x), gates=doors, merge=merge)(x)
    assert_agree(both, ep.gated(*constants(x), gates=doors[:1], merge=merge)(x))
    assert_agree(both, ep.parallel(*constants(x), merge=merge)(x))


# Each has another value if it is accumulated in its own dtype.
HALVES = [
    ("mean", "float16", [60000.0, 60000.0]),
    ("mean", "bfloat16", [1.0] * 300),
    ("sum", "float16", [60000.0, 60000.0, -60000.0]),
    ("prod", "float16", [300.0, 300.0, 0.001]),
]


@pytest.mark.parametrize(("merge", "dtype", "values"), HALVES)
def test_half_precision_is_accumulated_as_jnp_does(merge, dtype, values):
    x = jnp.asarray(values, dtype)
    stages, n = [lambda x, i=i: x[i] for i in range(len(x))], len(x)
    got = [
        ep.parallel(*stages, merge=merge)(x),
        ep.gated(*stages, gates=[lambda x: True] * n, merge=merge)(x),
    ]
    if merge != "prod":
        weights = jnp.full(n, 1 / n if merge == "mean" else 1.0, "float32")
        got.append(ep.weighted(*stages, weights=weights)(x))
    expected = getattr(jnp, merge)(x)
    assert all(y.dtype == dtype for y in got)
    assert_agree(got, [expected] * len(got), tolerance=1e-2)


MATRIX = sparse.BCOO.fromdense(jnp.array([[0.0, 1.0], [2.0, 0.0]]))
SUMS = {
    "parallel": lambda f: ep.parallel(f, f, merge="sum"),
    "concat": lambda f: ep.parallel(f, f, merge="concat"),
    "gated": lambda f: ep.gated(f, f, gates=[lambda x: True] * 2),
    "weighted": lambda f: ep.weighted(f, f),
    "residual": lambda f: ep.residual(f),
    "ensemble": lambda f: ep.ensemble([f, f]),
}


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("matrix", [MATRIX, sparse.BCSR.from_bcoo(MATRIX)])
def test_sparse_matrices_are_not_added_leaf_by_leaf(name, matrix):
    with pytest.raises(TypeError, match="a sparse B.*float32.2,2.*merge=") as caught:
        SUMS[name](eqx.nn.Identity())({"m": matrix} if name == "concat" else matrix)
    assert ("`.m` of the output" in str(caught.value)) == (name == "concat")


def test_sparse_matrices_are_stacked_and_added_as_the_messages_say():
    stack = ep.ensemble([eqx.nn.Identity()] * 2, merge="stack")
    y, values = ep.outputs(stack)(MATRIX)
    assert_agree(y.todense(), jnp.stack([MATRIX.todense()] * 2))
    assert_agree(values["1"].todense(), MATRIX.todense())
    add = ep.parallel(jnp.negative, jnp.negative, merge=lambda ys: ys[0] + ys[1])
    assert_agree(sparse.sparsify(add)(MATRIX).todense(), -2 * MATRIX.todense())


@hp.given(st.data())
def test_merges_act_leaf_by_leaf(data):
    struct = data.draw(structs())
    ys = [data.draw(ept.arrays(struct)) for _ in range(3)]
    merges = ["stack", *REDUCTIONS]
    merges += ["concat"] * all(v.ndim for v in jtu.tree_leaves(ys))
    merge, axis = (
        data.draw(st.sampled_from(merges)),
        data.draw(st.sampled_from([0, -1])),
    )
    got = ep.parallel(*constants(*ys), merge=merge, axis=axis)(None)
    over = {"concat": jnp.concatenate, "stack": jnp.stack}.get(merge)
    for path, leaf in jtu.tree_leaves_with_path(got):
        leaves = [dict(jtu.tree_leaves_with_path(y))[path] for y in ys]
        if over is None:
            expected = getattr(jnp, merge)(jnp.stack(leaves), axis=0)
        else:
            expected = over(leaves, axis=axis)
        assert_agree(leaf, expected, tolerance=1e-3)


def test_reductions_never_stack():
    pipe = ep.parallel(*[jnp.sin] * 4, merge="sum")
    jaxpr = jax.make_jaxpr(lambda x: pipe(x))(jnp.ones(3))
    assert max(v.aval.size for e in jaxpr.eqns for v in e.outvars) == 3


def test_concat_joins_different_sizes_along_its_axis_only():
    a, b = jnp.ones((2, 3)), jnp.zeros((2, 5))
    assert ep.parallel(*constants(a, b))(None).shape == (2, 8)
    with pytest.raises(ep.StructureError, match="Append a stage"):
        ep.parallel(*constants(a, b), axis=0)(None)


@hp.given(st.data())
def test_one_stage_is_itself(data):
    struct = data.draw(structs())
    stage = data.draw(one_stage(struct, random=False))
    x = data.draw(ept.arrays(struct))
    merges = [*REDUCTIONS, *["concat"] * all(v.ndim for v in jtu.tree_leaves(x))]
    merge = data.draw(st.sampled_from(merges))
    assert_agree(ep.parallel(stage, merge=merge)(x), stage(x))


def test_a_layer_shared_by_two_branches_updates_twice():
    def make():
        count = Count()
        return eqx.nn.Shared([count, count], lambda two: two[1], lambda two: two[0])

    shared, state = eqx.nn.make_with_state(make)()
    pipe = ep.parallel(*shared(), merge="tuple")
    y, state = pipe(jnp.zeros(1), state)
    assert_agree(y, (jnp.ones(1), jnp.full(1, 2.0)))


def test_python_and_numpy_numbers_are_merged_as_arrays():
    assert ep.parallel(*constants(2, 3), merge="sum")(None).item() == 5
    stack = ep.parallel(*constants(np.ones(2), np.zeros(2)), merge="stack")
    assert isinstance(stack(None), jax.Array)


def test_keys_can_be_stacked():
    keys = [jr.key(0), jr.key(1)]
    stacked = ep.parallel(*constants(*keys), merge="stack")(None)
    assert jnp.issubdtype(stacked.dtype, jax.dtypes.prng_key) and stacked.shape == (2,)


def test_tuple_and_dict_take_anything():
    ys = ["text", {"a": jnp.ones(2)}, None]
    assert ep.parallel(*constants(*ys), merge="tuple")(None) == tuple(ys)
    named = dict(zip("xyz", constants(*ys), strict=True))
    got = ep.parallel(named, merge="dict")(None)
    assert list(got) == ["x", "y", "z"] and got["x"] == "text"


@pytest.mark.parametrize("merge", ["concat", "stack", "mean"])
@pytest.mark.parametrize(
    ("left", "right", "words"),
    [
        (
            {"a": jnp.ones(2)},
            {"b": jnp.ones(2)},
            ["`.a` is only in", "`.b` is only in"],
        ),
        ((jnp.ones(2),), [jnp.ones(2)], ["tuple against list"]),
        ({"a": jnp.ones((2, 3))}, {"a": jnp.ones((4, 5))}, ["`.a`", "[2,3]", "[4,5]"]),
        (
            {"a": jnp.ones(2)},
            {"a": jnp.ones((2, 1))},
            ["float32[2] against float32[2,1]"],
        ),
        (jnp.ones(2), jnp.ones(2, "int32"), ["float32[2] against int32[2]"]),
    ],
)
def test_outputs_that_disagree_are_named(merge, left, right, words):
    branches = dict(zip(("low", "high"), constants(left, right), strict=True))
    pipe = ep.chain(split=ep.parallel(branches, merge=merge, axis=0))
    for call in (pipe, eqx.filter_jit(pipe)):
        with pytest.raises(ep.StructureError, match="eqx_pipe.parallel") as caught:
            call(None)
        text = str(caught.value)
        assert "`split.low`" in text and "`split.high`" in text
        assert "Append a stage to one of them" in text
        assert all(word in text for word in words)


def test_all_misfits_are_in_one_error():
    left = {"a": jnp.ones(2), "b": jnp.ones(3)}
    right = {"a": jnp.ones(4), "b": jnp.ones(3, "int32")}
    with pytest.raises(ep.StructureError) as caught:
        ep.parallel(*constants(left, right), merge="sum")(None)
    assert "`.a`" in str(caught.value) and "`.b`" in str(caught.value)


@pytest.mark.parametrize("merge", ["concat", "sum"])
@pytest.mark.parametrize("leaf", ["text", np.array(["text"]), object()])
def test_leaves_that_are_no_arrays_cannot_be_merged(merge, leaf):
    record = {"image": jnp.ones((2, 2)), "label": leaf}
    with pytest.raises(TypeError, match="eqx_pipe.at") as caught:
        ep.parallel(jnp.sin, *constants(record, record), merge=merge)(jnp.ones((2, 2)))
    assert "`.label` of the output of `1`" in str(caught.value)


@pytest.mark.parametrize("merge", REDUCTIONS)
def test_keys_cannot_be_reduced(merge):
    with pytest.raises(TypeError, match="key<fry>.*eqx_pipe.at"):
        ep.parallel(*constants(jr.key(0), jr.key(1)), merge=merge)(None)


@pytest.mark.parametrize(
    ("merge", "axis", "cure"),
    [
        ("concat", -2, "`axis` from -1 to 0"),
        ("concat", 1, "`axis` from -1 to 0"),
        ("stack", -3, "`axis` from -2 to 1"),
        ("stack", 2, "`axis` from -2 to 1"),
    ],
)
def test_an_axis_out_of_range_names_the_leaf(merge, axis, cure):
    ys = {"a": jnp.ones(3)}
    pipe = ep.chain(ep.parallel(*constants(ys, ys), merge=merge, axis=axis))
    with pytest.raises(ValueError, match=cure) as caught:
        pipe(None)
    assert "`.a` of the output of `0.0`" in str(caught.value)
