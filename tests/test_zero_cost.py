"""A composed program costs what the same maths costs when written by hand."""

import equinox as eqx
import hypothesis as hp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import pytest
import strategies as strats
from helpers import assert_agree

import eqx_pipe as ep


def _forward(call):
    return lambda pipe, x, key: call(pipe, x, key)


def _backward(call):
    def total(both, key):
        y = call(*both, key)
        leaves = [leaf for leaf in jtu.tree_leaves(y) if eqx.is_inexact_array(leaf)]
        return sum(jnp.sum(leaf.astype(jnp.float32) ** 2) for leaf in leaves)

    return lambda pipe, x, key: eqx.filter_grad(total)((pipe, x), key)


def _costs(fn, pipe, x, key):
    """Flops, bytes accessed and temporary memory of the compiled program."""
    # Nothing is baked in: a constant would be folded, or not, as XLA likes.
    program = eqx.filter_jit(fn).lower(pipe, x, key).compile().compiled
    analysis = program.cost_analysis()
    memory = program.memory_analysis().temp_size_in_bytes
    return analysis.get("flops", 0.0), analysis.get("bytes accessed", 0.0), memory


def _check_cost(case, x, key):
    def composed(pipe, x, key):
        return pipe(x, key=key)

    key = key if case.random else None
    pipe = case.stage if isinstance(case.stage, eqx.Module) else ep.lift(case.stage)
    for direction in (_forward, _backward):
        ours = _costs(direction(composed), pipe, x, key)
        theirs = _costs(direction(case.by_hand), pipe, x, key)
        assert ours[0] <= theirs[0], (direction.__name__, "flops", ours, theirs)
        for name, a, b in zip(("bytes", "temp"), ours[1:], theirs[1:], strict=True):
            assert a <= 1.02 * b + 4096, (direction.__name__, name, ours, theirs)


WIDE = jax.ShapeDtypeStruct((64,), jnp.float32)
LINEAR = [strats._linear(WIDE, seed) for seed in range(3)]
NOISY = strats._dropout(WIDE, 0)

COMBINATORS = {
    "chain": strats.in_chain(*LINEAR),
    "named chain": strats.in_chain(*LINEAR[:2], names=("a", "b")),
    "random chain": strats.in_chain(LINEAR[0], NOISY, LINEAR[1]),
    **{
        f"parallel {merge}": strats.in_parallel(*LINEAR, merge=merge)
        for merge in [*strats._FOLDS, "tuple", "stack", "concat", "own"]
    },
    "parallel dict": strats.in_parallel(*LINEAR, merge="dict", names=("c", "a", "b")),
    **{
        f"weighted {normalize} {gate}": strats.in_weighted(
            *LINEAR, normalize=normalize, gate=gate
        )
        for normalize in ("none", "sum", "softmax")
        for gate in (False, True)
    },
    "at": strats.focused(LINEAR[0], (), lambda x: x, lambda x, y: y),
    "repeat": strats.repeated(WIDE, 3, random=False),
    "batched": strats.over_batch(LINEAR[0]),
    "graph": strats.in_diamond(*LINEAR),
}


@pytest.mark.parametrize("name", COMBINATORS)
def test_each_combinator_costs_what_its_maths_costs(name, getkey):
    case, x = COMBINATORS[name], strats.make_value(WIDE, 2)
    _check_cost(case, x, getkey())


@hp.given(st.data())
def test_nestings_cost_what_their_maths_costs(data):
    struct = data.draw(strats.structs())
    case = data.draw(strats.pipelines(struct, max_depth=2))
    _check_cost(case, strats.make_value(struct, 2), jr.key(0))


@hp.given(st.data())
def test_nestings_compute_what_their_maths_computes(data):
    struct = data.draw(strats.structs())
    case = data.draw(strats.pipelines(struct, max_depth=3, branches=True))
    x, key = data.draw(strats.values(struct)), data.draw(strats.keys())
    pipe = ep.chain(case.stage)
    inner = strats.child_key(key, 0)
    assert_agree(
        eqx.filter_jit(pipe)(x, key=key),
        eqx.filter_jit(case.by_hand)(pipe[0], x, inner),
    )


def _count(jaxpr):
    return len(jaxpr.jaxpr.eqns)


def test_a_long_chain_has_the_equations_of_the_loop():
    layers = [eqx.nn.Linear(4, 4, key=jr.key(i)) for i in range(128)]
    stages = [stage for layer in layers for stage in (layer, jnp.tanh)]
    pipe = ep.chain(*stages)

    def by_hand(x):
        for layer in layers:
            x = jnp.tanh(layer.weight @ x + layer.bias)
        return x

    x = jnp.ones(4)
    assert len(pipe) == 256
    assert _count(jax.make_jaxpr(lambda x: pipe(x))(x)) == _count(
        jax.make_jaxpr(by_hand)(x)
    )


def test_a_repeat_does_not_grow():
    x = jnp.ones(4)
    sizes = []
    for n in (4, 64):
        pipe = ep.repeat(lambda key: eqx.nn.Linear(4, 4, key=key), n, key=jr.key(0))
        sizes.append(len(str(jax.make_jaxpr(lambda x, pipe=pipe: pipe(x))(x))))
    assert sizes[1] <= sizes[0] + 8  # "64" has one more digit than "4"
