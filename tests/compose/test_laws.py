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
from support.helpers import assert_agree, few, numbers, slow_unless

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


def twice(x):
    return jnp.stack([x, -x])


def difference(ys):
    return ys[0] - ys[1]


def in_record(stage):
    return ep.chain(lambda x: {"a": x, "b": (x, 1.0)}, stage)


def with_mask(stage):
    return ep.chain(lambda x: {"x": x, "mask": x}, stage)


def masked(key=KEY):
    return ep.graph(
        {"a": linear(key), "drop": ep.chain(DROPOUT), "end": several},
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


COMBINATORS = {
    "identity": lambda: ep.identity,
    "lift": lambda: ep.lift(jnp.tanh),
    "empty chain": lambda: ep.chain(),
    "chain": lambda: ep.chain(LINEAR, jnp.tanh, DROPOUT),
    "named chain": lambda: ep.chain(first=LINEAR, second=ep.chain(DROPOUT)),
    **{
        f"parallel {merge}": lambda merge=merge: ep.parallel(
            LINEAR, ep.chain(jnp.sin, DROPOUT), merge=merge
        )
        for merge in ["concat", "stack", "sum", "mean", "max", "min", "prod", "tuple"]
    },
    "parallel dict": lambda: ep.parallel({"a": LINEAR, "b": DROPOUT}, merge="dict"),
    "parallel own": lambda: ep.parallel(LINEAR, jnp.sin, merge=difference),
    "parallel module": lambda: ep.parallel(
        LINEAR, jnp.sin, merge=ep.chain(lambda ys: ys[0] * ys[1], LINEAR, DROPOUT)
    ),
    **{
        f"weighted {normalize}": lambda normalize=normalize: ep.weighted(
            LINEAR, DROPOUT, weights=[0.3, 0.9], normalize=normalize
        )
        for normalize in ["none", "sum", "softmax"]
    },
    "weighted by a gate": lambda: ep.weighted(LINEAR, jnp.sin, weights=gate),
    **{
        f"gated {merge}": lambda merge=merge: ep.gated(
            LINEAR, jnp.sin, gates=(positive, never), merge=merge
        )
        for merge in ["sum", "mean", "max", "min", "prod", "concat", "stack", "tuple"]
    },
    "gated dict": lambda: ep.gated(
        {"a": LINEAR, "b": jnp.sum},
        gates={"a": positive, "b": positive},
        merge="dict",
        closed="zeros",
    ),
    "gated own": lambda: ep.gated(
        LINEAR, jnp.sin, gates=(positive, never), merge=difference
    ),
    "gated at random": lambda: ep.gated(LINEAR, DROPOUT, gates=(noisy_gate, positive)),
    "cond": lambda: ep.cond(positive, LINEAR, DROPOUT),
    "cond at random": lambda: ep.cond(noisy_gate, LINEAR),
    "switch": lambda: ep.switch(lambda x: jnp.argmax(x), LINEAR, jnp.sin, DROPOUT),
    "strict switch": lambda: ep.switch(
        lambda x: jnp.int32(1), LINEAR, jnp.sin, bounds="error"
    ),
    "at a key": lambda: in_record(ep.at("a", ep.chain(LINEAR, DROPOUT))),
    "at a path": lambda: in_record(ep.at(("b", 0), LINEAR)),
    "at a function": lambda: in_record(ep.at(lambda x: x["b"][0], LINEAR)),
    "repeat": lambda: ep.repeat(linear, 3, key=KEY),
    "noisy repeat": lambda: ep.repeat(
        lambda key: ep.chain(linear(key), eqx.nn.Dropout(0.3)), 2, key=KEY
    ),
    "no repeat": lambda: ep.repeat(linear, 0, key=KEY),
    "tapped": lambda: ep.tapped(
        ep.chain(a=ep.repeat(in_residual, 2, key=KEY), b=DROPOUT), "a.*.0"
    ),
    "residual": lambda: ep.residual(LINEAR, skip=LINEAR, drop_rate=0.5),
    "ensemble": lambda: ep.ensemble(
        lambda key: ep.chain(linear(key), DROPOUT), 2, key=KEY
    ),
    "scan": lambda: ep.chain(
        twice, ep.scan(noisy_cell(), lambda xs: -xs[0], returns="last")
    ),
    "batched": lambda: ep.chain(twice, ep.batched(ep.chain(LINEAR, DROPOUT))),
    "batched along 1": lambda: ep.chain(
        twice, jnp.transpose, ep.batched(LINEAR, in_axes=1)
    ),
    "batched with a name": lambda: ep.chain(
        twice,
        ep.batched(lambda x: x - jax.lax.pmean(x, "batch"), axis_name="batch"),
    ),
    "graph": lambda: ep.graph(
        {"a": LINEAR, "b": jnp.sin, "end": several},
        {"a": [], "b": ["a"], "end": ["b", "input"]},
        "end",
    ),
    "graph with two sinks": lambda: ep.graph(
        {"a": LINEAR, "b": DROPOUT}, {"a": [], "b": ["a"]}, {"x": "a", "y": "b"}
    ),
    "graph with inputs": lambda: with_mask(masked()),
    "chain over one input": lambda: with_mask(ep.chain(masked(), masked(), over="x")),
    "repeat over one input": lambda: with_mask(ep.repeat(masked, 2, key=KEY, over="x")),
    "tied": lambda: ep.tied(
        ep.chain(LINEAR, DROPOUT, linear(jr.key(1))),
        lambda pipe: pipe[2].weight,
        lambda pipe: jnp.transpose(pipe[0].weight),
    ),
    "feed": lambda: with_mask(ep.feed(several, "x", b="mask")),
    "frozen": lambda: ep.frozen(ep.chain(LINEAR, DROPOUT)),
}


# The others are made of the same: a branch, a loop, lanes, a sum, a merge.
KINDS = {
    "identity",
    "chain",
    "parallel module",
    "weighted by a gate",
    "gated sum",
    "gated dict",
    "cond at random",
    "switch",
    "at a path",
    "batched with a name",
    "graph",
    "repeat over one input",
    "tied",
}

MERGED = {
    f"{kind} {merge}"
    for kind in ("parallel", "gated")
    for merge in ("stack", "sum", "mean", "max", "min", "prod", "tuple", "concat")
}


@pytest.mark.parametrize("name", slow_unless(KINDS, COMBINATORS))
def test_each_combinator_keeps_every_law(name):
    pipe = COMBINATORS[name]()
    # How a merge is called says nothing of draws, devices and side effects.
    another = name in MERGED and name not in KINDS
    skip = ("key", "sharding", "pure") if another else ()
    try:
        ept.check_stage(pipe, X, skip=skip)
    except ep.MissingKeyError:
        ept.check_stage(pipe, X, key=KEY, skip=skip)


@few
@hp.given(st.data())
def test_every_nesting_keeps_every_law(data):
    struct = data.draw(ept.structs(), label="struct")
    pipe = data.draw(ept.pipelines(struct, max_depth=4), label="pipe")
    x, key = data.draw(ept.arrays(struct), label="x"), data.draw(ept.keys())
    ept.check_stage(pipe, x, key=key)


@few
@hp.given(st.data())
def test_every_graph_keeps_every_law(data):
    struct = data.draw(ept.structs(), label="struct")
    graph = data.draw(ept.graphs(struct), label="graph")
    ept.check_stage(graph, data.draw(ept.arrays(struct)), key=data.draw(ept.keys()))


@few
@hp.given(st.data())
def test_every_nesting_of_integers_keeps_every_law(data):
    struct = jax.ShapeDtypeStruct((3,), jnp.int32)
    pipe = data.draw(ept.pipelines(struct, max_depth=4), label="pipe")
    ept.check_stage(pipe, data.draw(ept.arrays(struct)), key=data.draw(ept.keys()))


@hp.given(st.data())
def test_every_nesting_computes_what_its_maths_computes(data):
    struct = data.draw(ept.structs(), label="struct")
    pipe = ep.lift(data.draw(ept.pipelines(struct, max_depth=4), label="pipe"))
    x, key = data.draw(ept.arrays(struct), label="x"), data.draw(ept.keys())
    wanted = eqx.filter_jit(by_hand)(pipe, x, key)
    assert_agree(eqx.filter_jit(pipe)(x, key=key), wanted)


@few
@hp.given(st.data())
def test_every_nesting_has_the_gradients_of_its_maths(data):
    struct = jax.ShapeDtypeStruct((4,), jnp.float32)
    pipe = ep.lift(data.draw(ept.pipelines(struct, max_depth=4), label="pipe"))
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
    struct = data.draw(ept.structs(), label="struct")
    pipe = ep.chain(data.draw(ept.pipelines(struct, max_depth=2), label="pipe"))
    x, key = data.draw(ept.arrays(struct)), data.draw(ept.keys())
    y = eqx.filter_jit(eqx.nn.inference_mode(pipe))(x, key=key)
    assert jtu.tree_structure(y) == jtu.tree_structure(x)


def test_a_compiled_pipeline_keeps_the_laws_of_a_stage():
    pipe = ep.chain(LINEAR, jnp.tanh)
    ept.check_stage(ep.compiled(pipe, X), X)


@pytest.mark.one_of(2)
@pytest.mark.parametrize("mode", ["batch", "ema"])
def test_combinators_of_stateful_layers_keep_every_law(mode):
    def make():
        norm = eqx.nn.BatchNorm(4, axis_name="batch", mode=mode)
        return ep.chain(
            ep.parallel(ep.batched(norm, axis_name="batch"), ep.identity, merge="mean"),
            ep.cond(lambda x: x[0, 0] > 0, jnp.sin),
        )

    pipe, state = eqx.nn.make_with_state(make)()
    ept.check_stage(pipe, jnp.stack([X, -X, 2 * X]), state)
