"""`parallel`: stages on the same input."""

import equinox as eqx
import hypothesis as hp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import pytest
from support.by_hand import child_key
from support.helpers import assert_agree
from support.stages import Count, draw
from support.strategies import one_stage, structs

import eqx_pipe as ep
import eqx_pipe.testing as ept


@hp.given(st.data())
def test_a_projection_of_the_tuple_is_the_part(data):
    struct = data.draw(structs())
    stages = [data.draw(one_stage(struct, random=False)) for _ in range(3)]
    x, i = data.draw(ept.arrays(struct)), data.draw(st.integers(0, 2))
    pipe = ep.chain(ep.parallel(*stages, merge="tuple"), lambda ys: ys[i])
    assert_agree(pipe(x), stages[i](x))


@hp.given(st.data())
def test_one_stage_is_itself(data):
    struct = data.draw(structs())
    stage = data.draw(one_stage(struct, random=False))
    x = data.draw(ept.arrays(struct))
    merges = ["sum", "mean", "max", "min", "prod"]
    merges += ["concat"] * all(v.ndim for v in jax.tree.leaves(x))
    merge = data.draw(st.sampled_from(merges))
    assert_agree(ep.parallel(stage, merge=merge)(x), stage(x))


def test_names_are_paths_under_every_merge():
    stages = {"a": jnp.sin, "b": jnp.cos}
    x = jnp.arange(3.0)
    assert_agree(ep.parallel(stages)(x), jnp.concatenate([jnp.sin(x), jnp.cos(x)]))
    assert_agree(ep.parallel(stages, merge="sum")(x), jnp.sin(x) + jnp.cos(x))
    assert_agree(
        ep.parallel(stages, merge="dict")(x), {"a": jnp.sin(x), "b": jnp.cos(x)}
    )
    assert list(ep.outputs(ep.parallel(stages))(x)[1]) == ["a", "b"]


def test_a_merge_may_be_a_function_or_have_parameters():
    x = jnp.arange(3.0)
    pipe = ep.parallel(jnp.sin, jnp.cos, merge=lambda ys: ys[0] * ys[1])
    assert_agree(pipe(x), jnp.sin(x) * jnp.cos(x))

    class Join(eqx.Module):
        weight: jax.Array

        def __call__(self, ys, *, key=None):
            return self.weight @ jnp.stack(ys)

    pipe = ep.parallel({"a": jnp.sin, "b": jnp.cos}, merge=Join(jnp.ones((1, 2))))
    assert_agree(pipe(x), (jnp.sin(x) + jnp.cos(x))[None])
    grads = eqx.filter_grad(lambda p: jnp.sum(p(x)))(pipe)
    assert_agree(
        grads.merge.stage.weight, jnp.array([[jnp.sin(x).sum(), jnp.cos(x).sum()]])
    )
    assert list(ep.outputs(pipe)(x)[1]) == ["a", "b", "merge"]


def test_each_branch_draws_for_itself():
    key, x = jr.key(0), jnp.zeros(3)
    by_position = ep.parallel(draw, draw, merge="tuple")(x, key=key)
    expected = [draw(x, key=child_key(key, i)) for i in range(2)]
    assert_agree(by_position, tuple(expected))
    longer = ep.parallel(draw, draw, draw, merge="tuple")(x, key=key)
    assert_agree(longer[:2], by_position)
    names = ("left", "right")
    by_name = ep.parallel({n: draw for n in names}, merge="dict")(x, key=key)
    assert_agree(by_name, {n: draw(x, key=child_key(key, n)) for n in names})
    swapped = ep.parallel({n: draw for n in names[::-1]}, merge="dict")(x, key=key)
    assert_agree(swapped, by_name)

    def merge(ys, key):
        return draw(ys[0], key=key)

    merged = ep.parallel(jnp.sin, merge=merge)(x, key=key)
    assert_agree(merged, draw(x, key=child_key(key, "merge")))


def test_no_branch_loses_its_state_or_gives_it_away():
    pipe, state = eqx.nn.make_with_state(
        lambda: ep.parallel(Count(), ep.chain(Count(), Count()), jnp.sin, Count())
    )()
    x = jnp.zeros(1)
    for calls in (1.0, 2.0, 3.0):
        y, state = eqx.filter_jit(pipe)(x, state)
        assert_agree(y, jnp.array([calls, 2 * calls, 0.0, calls]))
    counts = [state.get(s.index) for s in (pipe[0], pipe[1][0], pipe[1][1], pipe[3])]
    assert [c.item() for c in counts] == [3.0] * 4


def test_a_layer_shared_by_two_branches_updates_twice():
    def make():
        count = Count()
        return eqx.nn.Shared([count, count], lambda two: two[1], lambda two: two[0])

    shared, state = eqx.nn.make_with_state(make)()
    first, second = shared()
    pipe = ep.parallel(first, second, merge="tuple")
    y, state = pipe(jnp.zeros(1), state)
    assert_agree(y, (jnp.ones(1), jnp.full(1, 2.0)))


def test_batch_norm_in_branches():
    def norm():
        return eqx.nn.BatchNorm(3, axis_name="batch", mode="batch")

    pipe, state = eqx.nn.make_with_state(
        lambda: ep.parallel({"a": norm(), "b": ep.chain(jnp.exp, norm())}, merge="sum")
    )()
    xs = jr.normal(jr.key(0), (8, 3))
    alone, alone_state = eqx.nn.make_with_state(norm)()

    def run(stage, xs, state):
        call = jax.vmap(stage, in_axes=(0, None), out_axes=(0, None), axis_name="batch")
        return call(xs, state)

    ys, state = run(pipe, xs, state)
    left, left_state = run(alone, xs, alone_state)
    _, alone_state = eqx.nn.make_with_state(norm)()
    right, right_state = run(alone, jnp.exp(xs), alone_state)
    assert_agree(ys, left + right, tolerance=1e-3)
    for layer, other in ((pipe["a"], left_state), (pipe["b"][1], right_state)):
        mine = state.get(layer.batch_state_index)
        assert_agree(mine, other.get(alone.batch_state_index))


def test_length_iteration_and_indexing():
    pipe = ep.parallel({"a": jnp.sin, "b": jnp.cos})
    assert len(pipe) == 2 and list(pipe) == [pipe["a"], pipe["b"]]
    assert pipe[0] is pipe["a"] and pipe[-1] is pipe["b"]
    with pytest.raises(KeyError, match="Known names: `a`, `b`"):
        pipe["c"]
    with pytest.raises(KeyError, match="Give an integer from -1 to 0"):
        ep.parallel(jnp.sin)["a"]
