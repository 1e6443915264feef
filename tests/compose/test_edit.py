"""`replace` and slices: other pipelines from one."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.helpers import few
from support.pipelines import pipelines

import eqx_pipe as ep

KEY = jr.key(0)
X = jnp.linspace(-1.0, 1.0, 3)


def linear(seed=0):
    return eqx.nn.Linear(3, 3, key=jr.key(seed))


def block(key):
    return ep.chain(lin=eqx.nn.Linear(3, 3, key=key), act=jnp.tanh)


def noise(x, *, key):
    return x + jr.normal(key, x.shape)


def is_pipeline(stage):
    return hasattr(type(stage), "children")


def at_path(stage, path):
    for segment in path.split("."):
        stage = stage.child(segment)
    return stage


ONE, TWO = linear(1), linear(2)
NESTED = ep.chain(
    body=ep.parallel({"a": ONE, "b": noise}, merge="sum"),
    blocks=ep.repeat(block, 3, key=KEY),
    head=TWO,
)


@few
@given(st.data())
def test_the_laws_of_a_lens_hold_for_every_path(data):
    pipe = data.draw(pipelines(jnp.zeros(3)))
    if not is_pipeline(pipe):
        return
    paths = [row.path for row in ep.summary(pipe).rows[1:]]
    if not paths:
        return
    path = data.draw(st.sampled_from(paths))
    there = at_path(pipe, path)
    assert eqx.tree_equal(pipe.replace({path: there}), pipe)
    doubled = jax.tree.map(lambda x: 2 * x if eqx.is_inexact_array(x) else x, there)
    put = pipe.replace({path: doubled})
    assert eqx.tree_equal(at_path(put, path), doubled)
    assert eqx.tree_equal(put.replace({path: there}), pipe)


def test_other_stages_keep_paths_and_draws():
    before = ep.outputs(NESTED)(X, key=KEY)[1]
    edited = NESTED.replace({"body.a": jnp.sin, "blocks.1.lin": linear(5)})
    after = ep.outputs(edited)(X, key=KEY)[1]
    assert np.array_equal(after["body.b"], before["body.b"])
    assert not np.array_equal(after["body.a"], before["body.a"])
    # The recipe for one more stage: named stages draw by their names.
    longer = ep.chain(**{"first": jnp.cos, **dict(NESTED.items())})
    after = ep.outputs(longer)(X, key=KEY)[1]
    draw = before["body.b"] - X
    assert np.allclose(after["body.b"] - jnp.cos(X), draw, atol=1e-6)


def test_a_stage_of_a_repeat_is_replaced():
    pipe = ep.repeat(block, 2, key=KEY)
    new = pipe.replace({"1.lin": TWO})
    assert np.array_equal(new[1]["lin"].weight, TWO.weight)
    assert eqx.tree_equal(new[0], pipe[0])


def test_a_pipeline_may_be_edited_while_it_is_traced():
    shape = eqx.filter_eval_shape(
        lambda stage: NESTED.replace({"blocks.2": stage})[:2], block(jr.key(7))
    )
    assert shape["blocks"].stages["lin"].weight.shape == (3, 3, 3)


FUNCTIONS = (jnp.sin, jnp.cos, jnp.tanh, jnp.square)


def made(kind, places, named):
    """Return a chain or a residual of the stages at some positions."""
    if not named:
        return kind(*(FUNCTIONS[i] for i in places))
    stages = {"abcd"[i]: FUNCTIONS[i] for i in places}
    return kind(**stages) if kind is ep.chain else kind(stages)


SLICES = st.builds(
    slice,
    st.none() | st.integers(-5, 5),
    st.none() | st.integers(-5, 5),
    st.sampled_from([None, 1, 2, -1]),
)


@pytest.mark.parametrize("kind", [ep.chain, ep.residual])
@given(size=st.integers(1, 4), named=st.booleans(), part=SLICES)
def test_a_slice_is_built_of_the_stages_of_the_slice(kind, size, named, part):
    pipe, kept = made(kind, range(size), named), range(size)[part]
    if not kept and kind is not ep.chain:
        with pytest.raises(ValueError, match="It needs at least 1"):
            pipe[part]
        return
    assert eqx.tree_equal(pipe[part], made(kind, kept, named and bool(kept)))


def test_a_slice_of_a_repeat_is_the_repeat_of_the_slice_and_draws_by_its_positions():
    def noisy(key):
        return ep.chain(lin=eqx.nn.Linear(3, 3, key=key), noise=noise)

    pipe = ep.repeat(noisy, 4, key=KEY)
    stages = list(pipe)
    for part in (slice(2, None), slice(None, None, -2), slice(1, 3)):
        assert eqx.tree_equal(pipe[part], ep.repeat(stages[part]))
    run = eqx.filter_jit(lambda pipe: pipe(X, key=KEY))
    assert np.allclose(run(pipe[2:]), run(ep.chain(*stages[2:])), atol=1e-6)
    assert ep.ensemble(stages, merge="max")[:2].merge == "max"
