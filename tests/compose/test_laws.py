"""Every combinator, and every nesting of them, keeps every law of a stage.

The stages come from the kit that users have; what they should compute, from
`by_hand.py`.
"""

import equinox as eqx
import hypothesis as hp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import pytest
from support.by_hand import by_hand
from support.helpers import assert_agree, few, numbers
from support.strategies import graphs, structs

import eqx_pipe as ep
import eqx_pipe.testing as ept

KEY = jr.key(0)
X = numbers(jax.ShapeDtypeStruct((4,), jnp.float32))
LINEAR = eqx.nn.Linear(4, 4, key=KEY)
DROPOUT = eqx.nn.Dropout(0.5)


def positive(x):
    return x[0] > 0.03


def never(x):
    return False


def noisy_gate(x, *, key):
    return jr.bernoulli(key)


def gate(x):
    return jax.nn.sigmoid(x[:2])


def several(a, b, *, key):
    return a * b + jr.normal(key, a.shape, a.dtype)


def plus_sine(a, b):
    return a + jnp.sin(b)


def twice(x):
    return jnp.stack([x, -x])


def in_record(stage):
    return ep.chain(lambda x: {"a": x, "b": (x, 1.0)}, stage)


def with_mask(stage):
    return ep.chain(lambda x: {"x": x, "mask": x}, stage)


def masked(key=KEY):
    return ep.graph(
        {"a": linear(key), "drop": ep.chain(DROPOUT), "end": plus_sine},
        {"a": "x", "drop": "a", "end": {"a": "drop", "b": "mask"}},
        "end",
        inputs=("x", "mask"),
    )


def noisy_cell():
    return ep.graph(
        {"sum": several, "out": LINEAR},
        {"sum": ["carry", "x"], "out": ["sum"]},
        ("out", "sum"),
        inputs=("carry", "x"),
    )


def linear(key):
    return eqx.nn.Linear(4, 4, key=key)


def in_residual(key):
    return ep.residual(linear(key), jnp.tanh)


# Draws take most of the compilation, so few of them draw.
COMBINATORS = {
    "identity": eqx.nn.Identity(),
    "chain": ep.chain(LINEAR, jnp.tanh),
    "parallel module": ep.parallel(
        LINEAR, jnp.sin, merge=ep.chain(lambda ys: ys[0] * ys[1], LINEAR)
    ),
    "weighted by a gate": ep.weighted(LINEAR, jnp.sin, weights=gate),
    "gated sum": ep.gated(LINEAR, jnp.sin, gates=(positive, never)),
    "gated dict": ep.gated(
        {"a": LINEAR, "b": jnp.sum},
        gates={"a": positive, "b": positive},
        merge="dict",
        closed="zeros",
    ),
    "cond at random": ep.cond(noisy_gate, LINEAR),
    "switch": ep.switch(lambda x: jnp.argmax(x), LINEAR, jnp.sin, jnp.cos),
    "at a path": in_record(ep.at(("b", 0), LINEAR)),
    "batched with a name": ep.chain(
        twice,
        ep.batched(lambda x: x - jax.lax.pmean(x, "batch"), axis_name="batch"),
    ),
    "graph": ep.graph(
        {"a": LINEAR, "b": jnp.sin, "end": plus_sine},
        {"a": [], "b": ["a"], "end": ["b", "input"]},
        "end",
    ),
    "repeat over one input": with_mask(ep.repeat(masked, 2, key=KEY, over="x")),
    "tied": ep.tied(
        ep.chain(LINEAR, jnp.tanh, linear(jr.key(1))),
        lambda pipe: pipe[2].weight,
        lambda pipe: jnp.transpose(pipe[0].weight),
    ),
}
# Made of the same: a branch, a loop, lanes, a sum, a merge.
OTHERS = {
    "empty chain": ep.chain(),
    "named chain": ep.chain(first=LINEAR, second=ep.chain(jnp.tanh)),
    **{
        f"parallel {merge}": ep.parallel(LINEAR, jnp.sin, merge=merge)
        for merge in ["concat", "max", "prod"]
    },
    "weighted softmax": ep.weighted(
        LINEAR, jnp.sin, weights=[0.3, 0.9], normalize="softmax"
    ),
    **{
        f"gated {merge}": ep.gated(
            LINEAR, jnp.sin, gates=(positive, never), merge=merge
        )
        for merge in ["mean", "stack"]
    },
    "gated at random": ep.gated(LINEAR, DROPOUT, gates=(noisy_gate, positive)),
    "cond": ep.cond(positive, LINEAR, jnp.cos),
    "strict switch": ep.switch(lambda x: jnp.int32(1), LINEAR, jnp.sin, bounds="error"),
    "no repeat": ep.repeat(linear, 0, key=KEY),
    "outputs": ep.outputs(ep.chain(a=ep.repeat(in_residual, 2, key=KEY)), "a.*.0"),
    "residual": ep.residual(LINEAR, skip=LINEAR),
    "ensemble": ep.ensemble(lambda key: ep.chain(linear(key), DROPOUT), 2, key=KEY),
    "scan": ep.chain(twice, ep.scan(noisy_cell(), lambda xs: -xs[0], returns="last")),
    "batched": ep.chain(twice, ep.batched(ep.chain(LINEAR, jnp.tanh))),
    "graph with two sinks": ep.graph(
        {"a": LINEAR, "b": jnp.tanh}, {"a": [], "b": ["a"]}, {"x": "a", "y": "b"}
    ),
    "feed": with_mask(ep.feed(plus_sine, "x", b="mask")),
    "frozen": ep.frozen(ep.chain(LINEAR, jnp.tanh)),
}


# One pipeline, which shares the programs. An error names the stage in it.
@pytest.mark.parametrize(
    "stages", [COMBINATORS, pytest.param(OTHERS, marks=pytest.mark.slow)], ids=len
)
def test_each_combinator_keeps_every_law(stages):
    ept.check_function(ep.parallel(stages, merge="dict"), X, key=KEY)


@few
@hp.given(st.data())
def test_every_nesting_keeps_every_law(data):
    struct = data.draw(structs(), label="struct")
    pipe = data.draw(ept.pipelines(struct, max_depth=4), label="pipe")
    x, key = data.draw(ept.arrays(struct), label="x"), data.draw(ept.keys())
    ept.check_function(pipe, x, key=key)


@pytest.mark.slow
@few
@hp.given(st.data())
def test_every_graph_keeps_every_law(data):
    struct = data.draw(structs(), label="struct")
    graph = data.draw(graphs(struct), label="graph")
    ept.check_function(graph, data.draw(ept.arrays(struct)), key=data.draw(ept.keys()))


@few
@hp.given(st.data())
def test_every_nesting_of_integers_keeps_every_law(data):
    struct = jax.ShapeDtypeStruct((3,), jnp.int32)
    pipe = data.draw(ept.pipelines(struct, max_depth=4), label="pipe")
    ept.check_function(pipe, data.draw(ept.arrays(struct)), key=data.draw(ept.keys()))


@hp.given(st.data())
def test_every_nesting_computes_what_its_maths_computes(data):
    struct = data.draw(structs(), label="struct")
    pipe = ep.chain(data.draw(ept.pipelines(struct, max_depth=4), label="pipe"))
    x, key = data.draw(ept.arrays(struct), label="x"), data.draw(ept.keys())
    wanted = eqx.filter_jit(by_hand)(pipe, x, key)
    assert_agree(eqx.filter_jit(pipe)(x, key=key), wanted)


@few
@hp.given(st.data())
def test_every_nesting_has_the_gradients_of_its_maths(data):
    struct = jax.ShapeDtypeStruct((4,), jnp.float32)
    pipe = ep.chain(data.draw(ept.pipelines(struct, max_depth=4), label="pipe"))
    x, key = data.draw(ept.arrays(struct), label="x"), data.draw(ept.keys())

    @eqx.filter_jit
    @eqx.filter_grad
    def slope(both, call):
        pipe, x = both
        return jnp.sum(call(pipe, x) ** 2)

    ours = slope((pipe, x), lambda pipe, x: pipe(x, key=key))
    theirs = slope((pipe, x), lambda pipe, x: by_hand(pipe, x, key))
    assert_agree(ours, theirs, tolerance=1e-3)


@few
@hp.given(st.data())
def test_a_pipeline_in_inference_needs_no_more_than_the_pipeline(data):
    struct = data.draw(structs(), label="struct")
    pipe = ep.chain(data.draw(ept.pipelines(struct, max_depth=2), label="pipe"))
    x, key = data.draw(ept.arrays(struct)), data.draw(ept.keys())
    y = eqx.filter_jit(eqx.nn.inference_mode(pipe))(x, key=key)
    assert jtu.tree_structure(y) == jtu.tree_structure(x)


def test_combinators_of_stateful_layers_keep_every_law():
    def make():
        norm = eqx.nn.BatchNorm(4, axis_name="batch", mode="batch")
        return ep.chain(
            ep.parallel(
                ep.batched(norm, axis_name="batch"), eqx.nn.Identity(), merge="mean"
            ),
            ep.cond(lambda x: x[0, 0] > 0, jnp.sin),
        )

    pipe, state = eqx.nn.make_with_state(make)()
    ept.check_function(pipe, jnp.stack([X, -X, 2 * X]), state=state)
