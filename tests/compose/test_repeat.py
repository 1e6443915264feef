"""`repeat` against the loop that a user would write."""

import functools as ft

import equinox as eqx
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
import pytest
from hypothesis import given
from support.stages import SIZE, Counter, make_linear

import eqx_pipe as ep


class Affine(ep.Stage):
    """Acts on every leaf; carries a number and a string besides its arrays."""

    scale: jax.Array
    shift: float
    name: str

    def __init__(self, key, dtype=jnp.float32):
        self.scale = 1 + jr.normal(key, (), dtype) / 4
        self.shift = 0.5
        self.name = "affine"

    def __call__(self, x, *, key=None):
        return jtu.tree_map(lambda leaf: self.scale * leaf + self.shift, x)


class Noise(ep.Stage):
    """Adds noise drawn from its key."""

    def __call__(self, x, *, key=None):
        return x + jr.normal(key, x.shape, x.dtype)


def make_noisy(key):
    return ep.chain(Affine(key), Noise())


makers = {
    "linear": make_linear,
    "affine": Affine,
    "pytree": lambda key: jax.tree_util.Partial(jnp.add, jr.normal(key, (SIZE,))),
    "function": lambda key: jnp.tanh,
    "nested": lambda key: ep.repeat(make_linear, 2, key=key),
    "mlp": lambda key: eqx.nn.MLP(SIZE, SIZE, 4, 1, key=key),
    "noisy": make_noisy,
    "dropout": lambda key: eqx.nn.Dropout(0.5),
}


def loop(make, n, key, x, call_key=None):
    for i in range(n):
        stage = make(jr.fold_in(key, i))
        if isinstance(stage, eqx.Module):
            inner = None if call_key is None else jr.fold_in(call_key, i)
            x = stage(x, key=inner)
        else:
            x = stage(x)
    return x


@given(name=st.sampled_from(sorted(makers)), n=st.sampled_from([1, 3]))
def test_repeat_is_the_loop(name, n):
    make, x = makers[name], jnp.linspace(-1, 1, SIZE)
    pipe = ep.repeat(make, n, key=jr.key(1))
    np.testing.assert_allclose(
        pipe(x, key=jr.key(2)), loop(make, n, jr.key(1), x, jr.key(2)), rtol=1e-5
    )


@given(n=st.sampled_from([1, 3]))
def test_gradients_are_those_of_the_loop(n):
    x = jnp.linspace(-1, 1, SIZE)
    pipe = ep.repeat(make_linear, n, key=jr.key(1))
    stages = [make_linear(jr.fold_in(jr.key(1), i)) for i in range(n)]

    def by_hand(both):
        x, stages = both
        for stage in stages:
            x = stage(x)
        return jnp.sum(x**2)

    dx, dpipe = eqx.filter_grad(lambda b: jnp.sum(b[1](b[0]) ** 2))((x, pipe))
    dx_hand, dstages = eqx.filter_grad(by_hand)((x, stages))
    np.testing.assert_allclose(dx, dx_hand, rtol=1e-5)
    for i, d in enumerate(dstages):
        np.testing.assert_allclose(dpipe[i][0].weight, d[0].weight, rtol=1e-5)


@given(name=st.sampled_from(sorted(set(makers) - {"pytree"})))
def test_indexing_gives_the_stage_made_for_that_position(name):
    pipe = ep.repeat(makers[name], 3, key=jr.key(1))
    assert len(pipe) == 3 and len(list(pipe)) == 3
    for i in (0, 2, -1):
        made = makers[name](jr.fold_in(jr.key(1), i % 3))
        got, want = (
            jtu.tree_leaves(eqx.filter(s, eqx.is_array)) for s in (pipe[i], made)
        )
        for a, b in zip(got, want, strict=True):
            assert np.allclose(a, b)
    for i in (3, -4):
        with pytest.raises(IndexError, match="among 3"):
            pipe[i]
    for wrong in (0.5, True, jnp.ones(2)):
        with pytest.raises(TypeError, match="Give an integer"):
            pipe[wrong]


def test_the_program_does_not_grow():
    def lines(n):
        pipe = ep.repeat(make_linear, n, key=jr.key(0))
        x = jnp.ones(SIZE)
        grad = eqx.filter_grad(lambda p, x: jnp.sum(p(x)))
        forward = eqx.filter_jit(lambda p, x: p(x)).lower(pipe, x).as_text()
        backward = eqx.filter_jit(grad).lower(pipe, x).as_text()
        return len(forward.splitlines()), len(backward.splitlines())

    assert lines(64) == lines(4)


def test_make_stage_and_the_body_are_traced_once():
    made, called = [], []

    def make(key):
        made.append(1)

        def count(x):
            called.append(1)
            return x

        return ep.chain(Affine(key), count)

    pipe = ep.repeat(make, 50, key=jr.key(0))
    assert len(made) == 1
    eqx.filter_jit(pipe)(jnp.ones(SIZE))
    assert len(called) == 1


def test_no_stages_are_the_identity():
    x = {"a": jnp.ones(3)}
    pipe = ep.repeat(Affine, 0, key=jr.key(0))
    assert len(pipe) == 0 and pipe(x) is x
    with pytest.raises(IndexError):
        pipe[0]


def test_pytrees_constants_and_dtypes_pass_through():
    x = {"a": jnp.ones(2, jnp.bfloat16), "b": (jnp.zeros((), jnp.bfloat16),)}
    pipe = ep.repeat(ft.partial(Affine, dtype=jnp.bfloat16), 3, key=jr.key(0))
    y = pipe(x)
    assert jtu.tree_map(lambda leaf: leaf.dtype, y) == {
        "a": jnp.bfloat16,
        "b": (jnp.bfloat16,),
    }
    assert pipe[1].name == "affine" and pipe[1].shift == 0.5
    labelled = ep.repeat(lambda key: lambda t: (t[0] + 1, t[1]), 3, key=jr.key(0))
    assert labelled((1.0, "label"))[1] == "label"
    assert labelled((1.0, "label"))[0] == 4.0
    assert ep.repeat(lambda key: jnp.sin, 2, key=jr.key(0))(np.float32(0)) == 0


@pytest.mark.parametrize("wrap", [False, True])
def test_state_of_each_stage_is_updated(wrap):
    def build(key):
        pipe = ep.repeat(Counter, 3, key=key)
        return eqx.nn.Sequential([pipe]) if wrap else pipe

    pipe, state = eqx.nn.make_with_state(build)(jr.key(0))
    inner = pipe[0] if wrap else pipe
    steps = inner.stages.step
    assert np.allclose(inner[1].step, Counter(jr.fold_in(jr.key(0), 1)).step)
    y, state = pipe(jnp.zeros(()), state)
    assert np.allclose(y, steps.sum())
    y, state = eqx.filter_jit(pipe)(jnp.zeros(()), state)
    assert np.allclose(y, 2 * steps.sum())
    part = jtu.tree_map(lambda leaf: leaf[1], state.substate(inner))
    y, part = inner[1](jnp.zeros(()), part)
    assert np.allclose(y, 3 * steps[1])


def test_batch_norm_inside_and_a_state_given_to_a_stateless_stage():
    def make(key):
        norm = eqx.nn.BatchNorm(SIZE, "batch", mode="batch")
        return ep.chain(eqx.nn.Linear(SIZE, SIZE, key=key), norm)

    pipe, state = eqx.nn.make_with_state(ep.repeat)(make, 2, key=jr.key(0))
    over = jax.vmap(pipe, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
    y, state = over(jr.normal(jr.key(1), (8, SIZE)), state)
    np.testing.assert_allclose(y.mean(0), jnp.zeros(SIZE), atol=1e-5)
    frozen = eqx.nn.inference_mode(pipe)
    assert frozen[0][1].inference and not pipe[0][1].inference
    y, again = ep.repeat(make_linear, 2, key=jr.key(0))(jnp.ones(SIZE), state)
    assert eqx.tree_equal(state, again)


def test_transformations_inside_and_outside(tmp_path):
    pipe = ep.repeat(make_noisy, 3, key=jr.key(0))
    x, key = jnp.ones(SIZE), jr.key(1)
    plain = pipe(x, key=key)
    np.testing.assert_allclose(eqx.filter_jit(pipe)(x, key=key), plain, rtol=1e-6)
    rows = jax.vmap(lambda x, k: pipe(x, key=k))(jnp.stack([x, x]), jr.split(key))
    one = pipe(x, key=jr.split(key)[1])
    np.testing.assert_allclose(rows[1], one, rtol=1e-5)
    saved = eqx.filter_checkpoint(lambda p, x: p(x, key=key))(pipe, x)
    np.testing.assert_allclose(saved, plain, rtol=1e-6)
    last, _ = jax.lax.scan(lambda c, _: (pipe(c, key=key), None), x, None, 2)
    np.testing.assert_allclose(last, pipe(plain, key=key), rtol=1e-5)
    eqx.tree_serialise_leaves(tmp_path / "pipe.eqx", pipe)
    other = ep.repeat(make_noisy, 3, key=jr.key(5))
    back = eqx.tree_deserialise_leaves(tmp_path / "pipe.eqx", other)
    np.testing.assert_array_equal(back(x, key=key), plain)
    pipes = eqx.filter_vmap(lambda k: ep.repeat(make_linear, 3, key=k))(jr.split(key))
    both = eqx.filter_vmap(lambda p: p(x))(pipes)
    alone = ep.repeat(make_linear, 3, key=jr.split(key)[1])(x)
    np.testing.assert_allclose(both[1], alone, rtol=1e-5)


def test_a_missing_key_names_the_path():
    pipe = ep.chain(a=ep.repeat(makers["dropout"], 2, key=jr.key(0)))
    with pytest.raises(ep.MissingKeyError) as caught:
        pipe(jnp.ones(3))
    assert caught.value.path == "a.0"


def test_it_is_made_of_stages_that_there_are():
    made = ep.repeat(make_noisy, 3, key=jr.key(1))
    shared = made[0][1]  # functions are shared between the stages
    stages = [ep.chain(stage[0], shared) for stage in made]
    again = ep.repeat(stages)
    x, key = jnp.linspace(-1, 1, SIZE), jr.key(2)
    np.testing.assert_allclose(again(x, key=key), made(x, key=key), rtol=1e-5)
    first = made[:2]
    wanted = made[1](made[0](x, key=jr.fold_in(key, 0)), key=jr.fold_in(key, 1))
    np.testing.assert_allclose(first(x, key=key), wanted, rtol=1e-6)
    assert len(first) == 2 and len(made[3:]) == 0 and made[3:](x) is x


def test_states_of_stages_that_there_are():
    pipe, state = eqx.nn.make_with_state(
        lambda: ep.repeat([Counter(jr.key(i)) for i in range(3)])
    )()
    y, state = pipe(jnp.zeros(()), state)
    y, state = pipe(jnp.zeros(()), state)
    np.testing.assert_allclose(y, 2 * pipe.stages.step.sum(), rtol=1e-6)
    first = jtu.tree_map(lambda leaf: leaf[:2], state.substate(pipe))
    y, _ = pipe[:2](jnp.zeros(()), first)
    np.testing.assert_allclose(y, 3 * pipe.stages.step[:2].sum(), rtol=1e-6)
    with pytest.raises(ValueError, match="leading axis sizes"):
        pipe[:2](jnp.zeros(()), state)
    other = eqx.tree_at(lambda stage: stage.step, pipe[1], jnp.float32(5))
    y, _ = pipe.replace({1: other})(jnp.zeros(()), state)
    steps = pipe.stages.step
    np.testing.assert_allclose(y, 3 * steps.sum() + 5 - steps[1], rtol=1e-6)


@pytest.mark.parametrize("remat", [True, jax.checkpoint_policies.dots_saveable])
def test_remat_and_unroll_change_the_program_and_not_its_values(remat):
    x = jnp.linspace(-1, 1, SIZE)

    def slope(pipe):
        return eqx.filter_grad(lambda pipe: jnp.sum(pipe(x) ** 2))(pipe).stages

    def lines(n, **settings):
        pipe = ep.repeat(make_linear, n, key=jr.key(0), **settings)
        return len(str(jax.make_jaxpr(lambda x: pipe(x))(x)).splitlines())

    plain = ep.repeat(make_linear, 4, key=jr.key(0))
    other = ep.repeat(make_linear, 4, key=jr.key(0), remat=remat, unroll=2)
    np.testing.assert_allclose(slope(other)[0].weight, slope(plain)[0].weight, 1e-5)
    text = str(jax.make_jaxpr(lambda x: other(x))(x))
    assert "unroll=2" in text and ("checkpoint" in text or "remat" in text)
    assert lines(64, remat=remat) == lines(4, remat=remat)


def test_stages_that_one_function_made_hold_functions_that_do_the_same():
    def make(seed, power=2):
        lin = eqx.nn.Linear(3, 3, key=jr.key(seed))
        return ep.chain(lin, lambda x: x**power)

    stages = [make(0), make(1)]
    x = jnp.arange(3.0)
    np.testing.assert_allclose(ep.repeat(stages)(x), ep.chain(*stages)(x), rtol=1e-6)
    with pytest.raises(ep.StructureError, match="share functions"):
        ep.repeat([make(0), make(1, power=3)])


def test_a_shared_stage_is_one_and_others_are_copies():
    linear, x, key = make_linear(jr.key(5)), jnp.linspace(-1, 1, SIZE), jr.key(2)
    layer = ep.chain(lin=linear, noise=lambda x, *, key: x + jr.normal(key, x.shape))
    shared = ep.repeat(layer, 4, shared=True)
    plain = ep.chain(*[layer] * 4)
    np.testing.assert_allclose(shared(x, key=key), plain(x, key=key), rtol=1e-5)
    count = ep.summary(layer).row.parameters
    assert ep.summary(shared).row.parameters == count
    for copies in (ep.repeat([layer] * 4), ep.repeat(lambda key: layer, 4, key=key)):
        assert ep.summary(copies).row.parameters == 4 * count

    def loss(pipe):
        return jnp.sum(pipe(x, key=key) ** 2)

    slope = eqx.filter_grad(loss)(shared).stage["lin"][0].weight
    apart = eqx.filter_grad(loss)(plain)
    np.testing.assert_allclose(slope, sum(s["lin"][0].weight for s in apart), rtol=1e-4)
    assert ep.outputs(shared)(x, key=key)[1]["stage.lin"].shape == (4, SIZE)
    assert ep.repeat(layer, 0, shared=True)(x) is x


def test_the_state_of_a_shared_stage_goes_from_pass_to_pass():
    pipe, state = eqx.nn.make_with_state(
        lambda: ep.repeat(Counter(jr.key(0)), 3, shared=True)
    )()
    plain = [pipe.stage] * 3
    y, after = eqx.filter_jit(pipe)(jnp.zeros(()), state)
    want = jnp.zeros(())
    for stage in plain:
        want, state = stage(want, state)
    np.testing.assert_allclose(y, want, rtol=1e-6)
    assert eqx.tree_equal(jtu.tree_leaves(after), jtu.tree_leaves(state))
