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
from support.helpers import assert_agree
from support.stages import SIZE, Counter, make_linear

import eqx_pipe as ep

KEY, X = jr.key(1), jnp.linspace(-1, 1, SIZE)


class Affine(ep.Stage):
    """Acts on every leaf; carries a number and a string besides its arrays."""

    scale: jax.Array
    shift: float = 0.5
    name: str = "affine"

    def __init__(self, key, dtype=jnp.float32):
        self.scale = 1 + jr.normal(key, (), dtype) / 4

    def __call__(self, x, *, key=None):
        return jtu.tree_map(lambda leaf: self.scale * leaf + self.shift, x)


def noise(x, *, key):
    return x + jr.normal(key, x.shape, x.dtype)


MAKERS = {
    "partial": ft.partial(eqx.nn.Linear, SIZE, SIZE),  # which takes `key` by name
    "affine": Affine,
    "pytree": lambda key: jtu.Partial(jnp.add, jr.normal(key, (SIZE,))),
    "function": lambda key: jnp.tanh,
    "nested": lambda key: ep.repeat(make_linear, 2, key=key),
    "noisy": lambda key: ep.chain(Affine(key), noise),
    "jitted": lambda key: jax.jit(jnp.negative),
}


def stage_of(name, i):
    maker = MAKERS[name]
    key = jr.fold_in(KEY, i)
    return maker(key=key) if isinstance(maker, ft.partial) else maker(key)


@given(name=st.sampled_from(sorted(MAKERS)), n=st.sampled_from([1, 3]))
def test_repeat_is_the_loop_over_the_stages_of_its_positions(name, n):
    pipe, key, y = ep.repeat(MAKERS[name], n, key=KEY), jr.key(2), X
    assert len(pipe) == len(list(pipe)) == n
    for i in range(n):
        made = stage_of(name, i)
        arrays = (eqx.filter(s, eqx.is_array) for s in (pipe[i], made))
        found, wanted = map(jtu.tree_leaves, arrays)
        assert_agree(found, wanted)
        y = made(y, key=jr.fold_in(key, i)) if name in ("noisy", "nested") else made(y)
    np.testing.assert_allclose(pipe(X, key=key), y, rtol=1e-5)


def test_an_index_is_an_integer_among_the_positions():
    pipe = ep.repeat(make_linear, 3, key=KEY)
    assert eqx.tree_equal(pipe[-1], pipe[2])
    for i in (3, -4):
        with pytest.raises(IndexError, match="out of range for 3 stages"):
            pipe[i]
    for wrong in (0.5, jnp.ones(2)):
        with pytest.raises(TypeError, match="integer"):
            pipe[wrong]


@pytest.mark.parametrize(
    "settings",
    [{}, {"remat": True}, {"remat": jax.checkpoint_policies.dots_saveable}],
)
def test_the_program_does_not_grow(settings):
    def lines(n):
        pipe = ep.repeat(make_linear, n, key=KEY, **settings)
        slope = eqx.filter_grad(lambda pipe: jnp.sum(pipe(X)))
        return len(str(eqx.filter_make_jaxpr(slope)(pipe)[0]).splitlines())

    assert lines(64) == lines(4)


@pytest.mark.parametrize("remat", [True, jax.checkpoint_policies.dots_saveable])
def test_remat_and_unroll_change_the_program_and_not_its_values(remat):
    def slope(pipe):
        return eqx.filter_grad(lambda pipe: jnp.sum(pipe(X) ** 2))(pipe).stages

    plain = ep.repeat(make_linear, 4, key=KEY)
    other = ep.repeat(make_linear, 4, key=KEY, remat=remat, unroll=2)
    np.testing.assert_allclose(slope(other)[0].weight, slope(plain)[0].weight, 1e-5)
    text = str(jax.make_jaxpr(lambda x: other(x))(X))
    assert "unroll=2" in text and ("checkpoint" in text or "remat" in text)


def test_the_maker_is_traced_once():
    made = []

    def make(key):
        made.append(1)
        return Affine(key)

    ep.repeat(make, 50, key=KEY)
    assert len(made) == 1


def test_pytrees_constants_and_dtypes_pass_through():
    x = {"a": jnp.ones(2, jnp.bfloat16), "b": (jnp.zeros((), jnp.bfloat16),)}
    pipe = ep.repeat(ft.partial(Affine, dtype=jnp.bfloat16), 3, key=KEY)
    assert {leaf.dtype.name for leaf in jtu.tree_leaves(pipe(x))} == {"bfloat16"}
    assert pipe[1].name == "affine" and pipe[1].shift == 0.5
    labelled = ep.repeat(lambda key: lambda t: (t[0] + 1, t[1]), 3, key=KEY)
    assert labelled((1.0, "label")) == (4.0, "label")
    assert ep.repeat(lambda key: jnp.sin, 2, key=KEY)(np.float32(0)) == 0
    raw = ep.repeat(make_linear, 2, key=jr.PRNGKey(0))
    assert raw(X).shape == (SIZE,)


@pytest.mark.parametrize("wrap", [False, True])
def test_state_of_each_stage_is_updated(wrap):
    def build(key):
        pipe = ep.repeat(Counter, 3, key=key)
        return eqx.nn.Sequential([pipe]) if wrap else pipe

    pipe, state = eqx.nn.make_with_state(build)(KEY)
    inner = pipe[0] if wrap else pipe
    steps = inner.stages.step
    y, state = pipe(jnp.zeros(()), state)
    y, state = eqx.filter_jit(pipe)(jnp.zeros(()), state)
    assert np.allclose(y, 2 * steps.sum())
    part = jtu.tree_map(lambda leaf: leaf[1], state.substate(inner))
    y, part = inner[1](jnp.zeros(()), part)
    assert np.allclose(y, 3 * steps[1])


def test_states_of_stages_that_there_are():
    pipe, state = eqx.nn.make_with_state(
        lambda: ep.repeat([Counter(jr.key(i)) for i in range(3)])
    )()
    _, state = pipe(jnp.zeros(()), state)
    y, state = pipe(jnp.zeros(()), state)
    steps = pipe.stages.step
    np.testing.assert_allclose(y, 2 * steps.sum(), rtol=1e-6)
    first = jtu.tree_map(lambda leaf: leaf[:2], state.substate(pipe))
    y, _ = pipe[:2](jnp.zeros(()), first)
    np.testing.assert_allclose(y, 3 * steps[:2].sum(), rtol=1e-6)
    with pytest.raises(ValueError, match="leading axis sizes"):
        pipe[:2](jnp.zeros(()), state)
    other = eqx.tree_at(lambda stage: stage.step, pipe[1], jnp.float32(5))
    y, _ = pipe.replace({1: other})(jnp.zeros(()), state)
    np.testing.assert_allclose(y, 3 * steps.sum() + 5 - steps[1], rtol=1e-6)


def test_it_is_made_of_stages_that_there_are():
    made = ep.repeat(MAKERS["noisy"], 3, key=KEY)
    again, key = ep.repeat(list(made)), jr.key(2)
    np.testing.assert_allclose(again(X, key=key), made(X, key=key), rtol=1e-5)
    assert len(made[3:]) == 0 and made[3:](X) is X


def test_stages_that_one_function_made_hold_functions_that_do_the_same():
    def make(seed, power=2):
        lin = eqx.nn.Linear(3, 3, key=jr.key(seed))
        return ep.chain(lin, lambda x: x**power)

    stages = [make(0), make(1)]
    np.testing.assert_allclose(ep.repeat(stages)(X), ep.chain(*stages)(X), rtol=1e-6)
    with pytest.raises(ep.StructureError, match="share functions"):
        ep.repeat([make(0), make(1, power=3)])


def test_a_shared_stage_is_one_and_others_are_copies():
    layer = ep.chain(lin=make_linear(KEY), noise=noise)
    shared, plain = ep.repeat(layer, 4, shared=True), ep.chain(*[layer] * 4)
    count = ep.summary(layer).parameters
    assert ep.summary(shared).parameters == count
    for copies in (ep.repeat([layer] * 4), ep.repeat(lambda key: layer, 4, key=KEY)):
        assert ep.summary(copies).parameters == 4 * count

    def loss(pipe):
        return jnp.sum(pipe(X, key=KEY) ** 2)

    slope = eqx.filter_grad(loss)(shared).stage["lin"][0].weight
    apart = eqx.filter_grad(loss)(plain)
    np.testing.assert_allclose(slope, sum(s["lin"][0].weight for s in apart), rtol=1e-4)
    assert ep.outputs(shared)(X, key=KEY)[1]["stage.lin"].shape == (4, SIZE)
    assert ep.repeat(layer, 0, shared=True)(X) is X


@pytest.mark.parametrize(
    ("make", "x", "lines"),
    [
        (lambda key: eqx.nn.Linear(3, 4, key=key), jnp.ones(3), ["float32[3]"]),
        (lambda key: lambda t: {"a": t["a"] > 0}, {"a": 1}, ["`.a`"]),
        (lambda key: lambda t: t["a"], {"a": 1.0}, ["`.a` is only in the first"]),
        (lambda key: lambda t: (t, t), jnp.ones(2), ["only in the second"]),
        (lambda key: lambda x: x.astype(jnp.int32), jnp.ones(2), ["int32[2]"]),
    ],
)
def test_a_stage_must_return_what_it_takes(make, x, lines):
    pipe = ep.chain(deep=ep.repeat(make, 2, key=KEY))
    with pytest.raises(ep.StructureError, match="(?s)`deep`.*use `chain`") as caught:
        pipe(x)
    assert all(line in str(caught.value) for line in lines)


def make_closure(key):
    weight = jr.normal(key, (SIZE,))
    return lambda x, bias=weight: x * weight + bias


@pytest.mark.filterwarnings("ignore:\nPossibly assigning")
@pytest.mark.parametrize(
    "make",
    [
        make_closure,
        lambda key: ep.chain(jnp.tanh, make_closure(key)),
        lambda key: jax.jit(make_closure(key)),
        lambda key: ft.partial(jnp.add, jr.normal(key, (SIZE,))),
        lambda key: ep.frozen(eqx.nn.Linear(SIZE, SIZE, key=key)),
    ],
)
def test_arrays_made_from_the_key_must_not_be_hidden(make):
    with pytest.raises(jax.errors.UnexpectedTracerError):
        ep.repeat(make, 2, key=KEY)(jnp.ones(SIZE))


def test_a_function_may_close_over_what_all_stages_share():
    shared = jnp.arange(SIZE, dtype=jnp.float32)
    pipe = ep.repeat(lambda key: lambda x: x + shared, 3, key=KEY)
    np.testing.assert_allclose(pipe(jnp.zeros(SIZE)), 3 * shared)
