"""`tied`: one part in several places, which training does not part."""

import functools as ft

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
import pytest
from support.helpers import assert_agree

import eqx_pipe as ep
import eqx_pipe.testing as ept

A, B = (eqx.nn.Linear(3, 3, key=jr.key(i)) for i in range(2))
X = jnp.arange(3.0)


def total(pipe, x=X):
    return jnp.sum(pipe(x) ** 2)


slopes = eqx.filter_jit(eqx.filter_grad(total))


def test_a_tied_parameter_is_one_and_its_gradient_the_sum_over_its_places():
    pipe = ep.tied(
        ep.chain(a=A, b=B), lambda p: p["b"].weight, lambda p: p["a"].weight.T
    )
    plain = ep.chain(a=A, b=eqx.tree_at(lambda b: b.weight, B, A.weight.T))
    np.testing.assert_array_equal(pipe(X), plain(X))
    ours, apart = slopes(pipe), slopes(plain)
    np.testing.assert_allclose(
        ours.kept["a"].weight,
        apart["a"].weight + apart["b"].weight.T,
        rtol=1e-5,
    )
    assert ep.summary(pipe).parameters == 9 + 3 + 3
    moved = eqx.apply_updates(pipe, jtu.tree_map(lambda g: -0.1 * g, ours)).pipe
    np.testing.assert_array_equal(moved["b"].weight, moved["a"].weight.T)
    assert not np.array_equal(moved["a"].weight, A.weight)


def test_the_same_layer_in_two_places_is_one_only_if_tied():
    edges = {"left": "l", "right": "r", "far": ["left", "right"]}
    nodes = {"left": A, "right": A, "far": jnp.subtract}
    apart = ep.graph(nodes, edges, "far", inputs=("l", "r"))
    pipe = ep.tied(apart, lambda p: p["right"], lambda p: p["left"])
    inputs = {"l": X, "r": X[::-1]}
    np.testing.assert_array_equal(pipe(inputs), apart(inputs))
    assert list(ep.outputs(pipe)(inputs)[1]) == ["left", "right", "far"]
    assert "left: Linear" in str(ep.summary(pipe, inputs))
    moved = eqx.apply_updates(apart, slopes(apart, inputs))
    assert not np.array_equal(moved["left"].weight, moved["right"].weight)
    count = len(jax.tree.leaves(eqx.filter(pipe, eqx.is_array)))
    assert (count, len(jax.tree.leaves(eqx.filter(apart, eqx.is_array)))) == (2, 4)


def test_draws_state_and_files_are_those_of_the_pipeline(tmp_path):
    def make(key):
        norm = eqx.nn.BatchNorm(3, "batch", mode="batch")
        a, b = (eqx.nn.Linear(3, 3, key=k) for k in jr.split(key))
        inner = ep.chain(a=a, drop=eqx.nn.Dropout(), norm=norm, b=b)
        return ep.tied(inner, lambda p: p["b"], lambda p: p["a"])

    pipe, state = eqx.nn.make_with_state(make)(jr.key(0))
    batch = ep.batched(pipe, axis_name="batch")
    plain = ep.batched(pipe.pipe, axis_name="batch")
    xs, key = jnp.stack([X, -X]), jr.key(4)
    ours, theirs = (eqx.filter_jit(p)(xs, state, key=key) for p in (batch, plain))
    assert_agree(ours, theirs, tolerance=1e-5)
    eqx.tree_serialise_leaves(tmp_path / "pipe.eqx", pipe)
    like, _ = eqx.nn.make_with_state(make)(jr.key(9))
    back = eqx.tree_deserialise_leaves(tmp_path / "pipe.eqx", like)
    np.testing.assert_array_equal(back.pipe["b"].weight, pipe.pipe["a"].weight)


def test_trees_of_the_same_form_are_shown():
    pipe = ep.tied(ep.chain(a=A, b=jnp.tanh, c=B), lambda p: p["c"], lambda p: p["a"])
    assert "weight=True" in repr(ep.trainable(pipe, "a"))
    assert "weight float32[3,3]" in repr(slopes(pipe))


def builds(kind):
    """Return two builds of one function, with functions and policies made anew."""

    def make(key):
        a, b = (eqx.nn.Linear(3, 3, key=k) for k in jr.split(key))
        if kind == "repeat":
            policy = jax.checkpoint_policies.save_only_these_names("kept")
            return ep.repeat([a, b], remat=policy)
        names = ("a", "b")
        get = ft.partial(lambda name, p: p[name].weight.T, names[0])
        return ep.tied(ep.chain(a=a, b=b), lambda p: p[names[1]].weight, get)

    return make(jr.key(0)), make(jr.key(1))


@pytest.mark.parametrize("kind", ["tied", "repeat"])
def test_two_builds_have_one_structure(kind):
    one, two = builds(kind)
    mean = jax.tree.map(lambda a, b: (a + b) / 2, *arrays_of(one, two))
    both = eqx.combine(mean, one)(X)
    assert np.all(np.isfinite(both)) and not np.array_equal(both, one(X))
    run = eqx.filter_jit(lambda pipe: pipe(X))
    run(one)
    wanted = two(X)
    with ept.assert_compiles(0):
        np.testing.assert_allclose(run(two), wanted, rtol=1e-5)
    stacked = ep.ensemble([one, two], merge="stack")
    np.testing.assert_allclose(stacked(X), [one(X), two(X)], rtol=1e-5)
    np.testing.assert_allclose(ep.repeat([one, two])(X), two(one(X)), rtol=1e-4)


def arrays_of(*pipes):
    return [eqx.filter(pipe, eqx.is_array) for pipe in pipes]


def test_functions_that_differ_make_other_structures():
    pipe = ep.chain(a=A, b=B)

    def build(scale):
        return ep.tied(pipe, lambda p: p["b"].weight, lambda p: scale * p["a"].weight)

    one, same, other = build(2.0), build(2.0), build(-2.0)
    assert jax.tree.structure(one) == jax.tree.structure(same)
    assert jax.tree.structure(one) != jax.tree.structure(other)
    run = eqx.filter_jit(lambda pipe: pipe(X))
    assert not np.allclose(run(one), run(other))
