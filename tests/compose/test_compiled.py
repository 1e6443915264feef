"""`compiled`: a program made ahead of time that stays an ordinary stage."""

import copy
import pickle

import equinox as eqx
import hypothesis as hp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import pytest
from support.by_hand import child_key
from support.helpers import assert_agree, numbers
from support.stages import Count, draw

import eqx_pipe as ep
import eqx_pipe.testing as ept


def make_pipe():
    return ep.chain(eqx.nn.Linear(3, 3, key=jr.key(0)), jnp.tanh)


class Traced(eqx.Module):
    """Counts how often it is traced or called."""

    calls: list = eqx.field(static=True)

    def __call__(self, x, *, key=None):
        self.calls.append(None)
        return x + 1


@hp.given(st.data())
def test_it_computes_what_the_pipeline_computes(data):
    struct = data.draw(ept.structs())
    inner = data.draw(ept.pipelines(struct, max_depth=2))
    x, key = data.draw(ept.arrays(struct)), data.draw(ept.keys())
    pipe = ep.chain(inner)
    fast = ep.compiled(pipe, numbers(struct, 0), key=key)
    expected = eqx.filter_jit(pipe)(x, key=key)
    for _ in range(2):
        assert_agree(fast(x, key=key), expected)


def test_it_is_traced_once_and_never_called_again():
    calls = []
    fast = ep.compiled(ep.chain(Traced(calls)), jnp.zeros(2))
    assert len(calls) == 1
    for i in range(4):
        assert_agree(fast(jnp.full(2, i, jnp.float32)), jnp.full(2, i + 1.0))
    assert len(calls) == 1


def test_flattening_keeps_the_program_and_new_parameters_drop_it():
    calls = []
    pipe = ep.chain(Traced(calls), eqx.nn.Linear(2, 2, key=jr.key(0)))
    fast, x = ep.compiled(pipe, jnp.zeros(2)), jnp.ones(2)
    same = jtu.tree_map(lambda leaf: leaf, fast)
    assert_agree(same(x), pipe(x))
    assert len(calls) == 2  # the plain call of `pipe` was the second
    moved = jtu.tree_map(lambda v: v * 2 if eqx.is_array(v) else v, fast)
    assert_agree(moved(x), moved.pipe(x))
    assert len(calls) == 4
    assert_agree(copy.copy(fast)(x), pipe(x))
    assert len(calls) == 5


def test_under_transformations_it_is_the_pipeline():
    pipe, x = make_pipe(), jnp.arange(3.0)
    fast = ep.compiled(pipe, x)
    xs = jnp.stack([x, -x])
    assert_agree(jax.vmap(fast)(xs), jax.vmap(pipe)(xs))
    assert_agree(jax.jit(lambda x: fast(x))(x), pipe(x))
    assert_agree(eqx.filter_jit(fast)(x), pipe(x))
    for transform in (jax.jacfwd, jax.jacrev):
        assert_agree(transform(fast)(x), transform(pipe)(x))

    def loss(stage):
        return jnp.sum(stage(x) ** 2)

    ours, theirs = eqx.filter_grad(loss)(fast), eqx.filter_grad(loss)(pipe)
    assert_agree(ours.pipe, theirs)
    trained = eqx.apply_updates(fast, ours)
    assert_agree(trained(x), eqx.apply_updates(pipe, theirs)(x))
    carry, _ = jax.lax.scan(lambda c, _: (fast(c), None), x, length=3)
    assert_agree(carry, pipe(pipe(pipe(x))))
    assert eqx.filter_eval_shape(fast, x).shape == (3,)
    ensemble = eqx.filter_vmap(lambda s: s(x))
    doubled = jtu.tree_map(lambda v: jnp.stack([v, v]) if eqx.is_array(v) else v, fast)
    assert_agree(ensemble(doubled)[0], pipe(x))


def test_it_is_an_ordinary_stage(tmp_path):
    pipe, x, key = make_pipe(), jnp.arange(3.0), jr.key(0)
    fast = ep.compiled(pipe, x)
    assert_agree(ep.chain(fast, jnp.sin)(x), jnp.sin(pipe(x)))
    assert_agree(ep.parallel(fast, fast, merge="sum")(x, key=key), 2 * pipe(x))
    assert_agree(eqx.nn.Sequential([fast, fast])(x, key=key), pipe(pipe(x)))
    assert list(ep.outputs(ep.chain(a=fast), x)) == ["a.0", "a.1", "a"]
    assert list(ep.outputs(fast, x)) == ["0", "1"]
    eqx.tree_serialise_leaves(tmp_path / "a.eqx", fast)
    loaded = eqx.tree_deserialise_leaves(tmp_path / "a.eqx", fast)
    assert_agree(loaded(x), pipe(x))
    ep.describe(ep.chain(fast))
    _, state = eqx.nn.make_with_state(Count)()
    y, same = fast(x, state)
    assert_agree(y, pipe(x))
    assert eqx.tree_equal(same, state)
    assert_agree(fast(x), pipe(x))


def test_it_can_be_copied_and_pickled():
    linear, x = eqx.nn.Linear(3, 3, key=jr.key(0)), jnp.arange(3.0)
    fast = ep.compiled(linear, x)
    for other in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        assert_agree(other(x), linear(x))


def test_draws_are_those_of_the_pipeline():
    pipe = ep.chain(ep.identity, draw, eqx.nn.Dropout(0.5))
    x = jnp.zeros(3)
    fast = ep.compiled(pipe, x, key=jr.key(0))
    for key in (jr.key(1), jr.key(2)):
        assert_agree(fast(x, key=key), pipe(x, key=key))
        outer = ep.chain(fast)
        assert_agree(outer(x, key=key), pipe(x, key=child_key(key, 0)))
    raw = jr.PRNGKey(0)
    assert_agree(fast(x, key=raw), pipe(x, key=raw))
    with pytest.raises(ep.MissingKeyError) as caught:
        fast(x)
    assert caught.value.path == "1"
    with pytest.raises(ep.MissingKeyError):
        ep.compiled(pipe, x)


def test_a_key_is_heard_also_when_none_was_compiled():
    def maybe(x, key):
        return x if key is None else draw(x, key=key)

    pipe, x, key = ep.chain(maybe), jnp.ones(2), jr.key(0)
    fast = ep.compiled(pipe, x)
    for _ in range(2):
        assert_agree(fast(x), x)
        assert_agree(fast(x, key=key), pipe(x, key=key))


def test_inference_mode_takes_effect():
    x = jnp.ones(3)
    fast = ep.compiled(ep.chain(eqx.nn.Dropout(0.5)), x, key=jr.key(0))
    assert_agree(eqx.nn.inference_mode(fast)(x), x)
    still = ep.compiled(eqx.nn.inference_mode(ep.chain(eqx.nn.Dropout(0.5))), x)
    assert_agree(still(x), x)


def test_state_is_threaded():
    pipe, state = eqx.nn.make_with_state(lambda: ep.chain(Count(), Count()))()
    x = jnp.zeros(1)
    fast = ep.compiled(pipe, x, state)
    for calls in (1.0, 2.0, 3.0):
        y, state = fast(x, state)
        assert_agree(y, jnp.full(1, 2 * calls))
    with pytest.raises(ValueError, match="make_with_state"):
        fast(x)


def test_numbers_may_change_and_text_may_not():
    fast = ep.compiled(lambda x: {**x, "b": x["a"] + 1}, {"a": 1.0, "text": "s"})
    assert fast({"a": 2.0, "text": "s"})["b"].item() == 3.0
    assert fast({"a": 2.0, "text": "s"})["text"] == "s"
    for _ in range(2):
        with pytest.raises(ep.StructureError, match="`.text`: 's'"):
            fast({"a": 2.0, "text": "t"})


def test_an_example_may_be_a_struct():
    fast = ep.compiled(make_pipe(), jax.ShapeDtypeStruct((3,), jnp.float32))
    assert_agree(fast(jnp.ones(3)), make_pipe()(jnp.ones(3)))


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (jnp.ones(4), "float32[3] against float32[4]"),
        (jnp.ones(3, "int32"), "float32[3] against int32[3]"),
        (jnp.ones((1, 3)), "float32[3] against float32[1,3]"),
        ({"a": jnp.ones(3)}, "`.a` is only in the second"),
        (None, "float32[3] is only in the first"),
    ],
)
def test_another_input_raises(x, words):
    fast = ep.compiled(make_pipe(), jnp.ones(3))
    nested = ep.chain(deep=ep.compiled(make_pipe(), jnp.ones(3)))
    for _ in range(2):
        for stage in (fast, nested):
            with pytest.raises(ep.StructureError, match="eqx_pipe.compiled") as caught:
                stage(x)
            assert words in str(caught.value)
            assert "Make another with `compiled`" in str(caught.value)
        assert "at `deep`" in str(caught.value)
    assert_agree(fast(jnp.ones(3)), make_pipe()(jnp.ones(3)))


def test_a_failure_of_the_program_itself_is_passed_on():
    def check(x):
        return eqx.error_if(x, jnp.any(x < 0), "negative")

    fast = ep.compiled(ep.chain(check), jnp.ones(2))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="negative"):
            jax.block_until_ready(fast(-jnp.ones(2)))
    assert_agree(fast(jnp.ones(2)), jnp.ones(2))


def test_bad_arguments(unchecked):
    pipe, x = make_pipe(), jnp.ones(3)
    with pytest.raises(TypeError, match="`pipe` is 3"):
        ep.compiled(3, x)
    with pytest.raises(TypeError, match="single PRNG key"):
        ep.compiled(pipe, x, key=3)
    with pytest.raises(TypeError, match="an `equinox.nn.State`"):
        ep.compiled(pipe, x, 3)
    with pytest.raises(ValueError, match="outside; inside, call the pipeline"):
        jax.jit(lambda x: ep.compiled(pipe, x)(x))(x)
    fast = ep.compiled(pipe, x)
    with pytest.raises(TypeError, match="single PRNG key"):
        fast(x, key=3)
    with pytest.raises(TypeError, match="an `equinox.nn.State`"):
        fast(x, 3)
