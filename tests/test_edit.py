"""`replace`, `insert`, `remove`, `rename`: other pipelines from one, by path."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import pytest
from helpers import few
from hypothesis import given
from hypothesis import strategies as st

import eqx_pipe as ep
from eqx_pipe import testing
from eqx_pipe._stage.parent import Parent, stage_paths

KEY = jr.key(0)
X = jnp.linspace(-1.0, 1.0, 3)


def linear(seed=0):
    return eqx.nn.Linear(3, 3, key=jr.key(seed))


def block(key):
    return ep.chain(lin=eqx.nn.Linear(3, 3, key=key), act=jnp.tanh)


def noise(x, *, key):
    return x + jr.normal(key, x.shape)


def at_path(stage, path):
    for segment in path.split("."):
        if isinstance(stage, Parent):
            stage = stage.child(segment)
        else:
            stage = getattr(stage, segment)
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
    pipe = data.draw(testing.pipelines(jnp.zeros(3)))
    if not isinstance(pipe, Parent) or not stage_paths(pipe):
        return
    path = data.draw(st.sampled_from(stage_paths(pipe)))
    if any(segment == "gates" for segment in path.split(".")):
        return  # `gates.a` is one segment, which `at_path` does not take apart
    there = at_path(pipe, path)
    assert eqx.tree_equal(pipe.replace({path: there}), pipe)
    doubled = jax.tree.map(lambda x: 2 * x if eqx.is_inexact_array(x) else x, there)
    put = pipe.replace({path: doubled})
    assert eqx.tree_equal(at_path(put, path), doubled)
    assert eqx.tree_equal(put.replace({path: there}), pipe)


def test_what_was_not_touched_keeps_paths_and_draws():
    before = ep.outputs(NESTED, X, key=KEY)
    edits = {
        "replace": NESTED.replace({"body.a": jnp.sin, "blocks.1.lin": linear(5)}),
        "insert": NESTED.insert({"first": jnp.cos}, before="body"),
        "insert inside": NESTED.insert({"c": jnp.cos}, after="body.a"),
        "remove": NESTED.remove("blocks", "body.a"),
        "rename": NESTED.rename({"body.a": "z"}, head="last"),
    }
    draw = before["body.b"] - X
    for name, pipe in edits.items():
        after = ep.outputs(pipe, X, key=KEY)
        given = jnp.cos(X) if name == "insert" else X
        assert jnp.allclose(after["body.b"] - given, draw, atol=1e-6), name


def test_positions_behind_an_insertion_draw_anew():
    pipe = ep.chain(noise, noise)
    first = ep.outputs(pipe, X, key=KEY)
    at_end = ep.outputs(pipe.insert(jnp.sin), X, key=KEY)
    in_front = ep.outputs(pipe.insert(jnp.sin, before=0), X, key=KEY)
    assert jnp.array_equal(first["0"], at_end["0"])
    assert jnp.array_equal(first["1"], at_end["1"])
    assert not jnp.allclose(first["0"] - X, in_front["1"] - jnp.sin(X))


@pytest.mark.parametrize(
    "pipe",
    [NESTED, ep.parallel({"head": ONE, "body": TWO}, merge="stack", axis=0)],
    ids=["chain", "parallel"],
)
def test_edits_are_undone(pipe):
    new = {"new": jnp.sin, "other": jnp.cos}
    for place in ({}, {"before": "head"}, {"after": "head"}):
        added = pipe.insert(new, **place)
        assert len(added) == len(pipe) + 2
        assert eqx.tree_equal(added.remove(*new), pipe)
        if place:
            at = added.keys().index("head")
            near = added.keys()[at - 2 : at] if "before" in place else None
            near = near or added.keys()[at + 1 : at + 3]
            assert near == ("new", "other")
    assert eqx.tree_equal(pipe.rename(head="h").rename(h="head"), pipe)
    assert eqx.tree_equal(pipe.replace(head=jnp.sin).replace(head=pipe["head"]), pipe)


def test_an_empty_chain_is_extended_by_names():
    assert ep.chain().insert({"a": jnp.sin}).keys() == ("a",)
    assert ep.chain(a=jnp.sin).remove("a").insert(jnp.cos).keys() == (0,)


def test_settings_stay():
    over = ep.chain(a=ep.feed(ONE, "x"), over="x").insert({"b": ep.feed(TWO, "x")})
    assert over.over == "x" and over.rename(a="c")[:1].over == "x"
    pipe = ep.parallel({"a": ONE, "b": TWO}, merge="concat", axis=0)
    new = pipe.insert({"c": ONE}).remove("a").rename(b="d")
    assert new.settings() == pipe.settings() and new.keys() == ("d", "c")
    merged = ep.parallel(ONE, TWO, merge=sum).insert(ONE).replace(merge=max)
    assert len(merged) == 3 and merged.merge.fn is max


def test_every_combinator_gives_its_stages_by_path():
    record = {
        "chain": (ep.chain(ONE), "0"),
        "weighted": (ep.weighted(ONE, TWO, weights=jnp.sum), "weights"),
        "gated": (ep.gated({"a": ONE}, gates={"a": jnp.any}), "gates.a"),
        "cond": (ep.cond(jnp.any, ONE), "otherwise"),
        "switch": (ep.switch(jnp.argmax, ONE, TWO), "selector"),
        "at": (ep.at("x", ONE), "stage"),
        "batched": (ep.batched(ONE), "stage"),
        "graph": (ep.graph({"a": ONE}, {"a": []}, "a"), "a"),
        "feed": (ep.feed(ONE, "x"), "stage"),
        "repeat": (ep.repeat(block, 2, key=KEY), "1.act"),
    }
    for name, (pipe, path) in record.items():
        if name == "repeat":  # whose functions are shared, so only parameters change
            new = pipe.replace({"1.lin": TWO})
            assert jnp.array_equal(new[1]["lin"].weight, TWO.weight)
            assert eqx.tree_equal(new[0], pipe[0])
            continue
        new = pipe.replace({path: jnp.square})
        assert new.children()[path].fn is jnp.square, name
        below = pipe.replace({path: ep.chain(q=jnp.sin)})
        assert below.replace({f"{path}.q": jnp.cos}).children()[path]["q"].fn is jnp.cos


def test_a_path_goes_on_into_layers():
    mlp = eqx.nn.MLP(3, 3, 4, 1, key=KEY)
    pipe = ep.batched(ep.chain(mlp=mlp))
    bias = jnp.ones(4)
    new = pipe.replace({"stage.mlp.layers.0.bias": bias})
    assert new.stage["mlp"].layers[0].bias is bias
    assert new.stage["mlp"].layers[1] == mlp.layers[1]
    assert pipe.stage["mlp"].layers[0].bias is mlp.layers[0].bias


def test_a_pipeline_may_be_edited_while_it_is_traced():
    def edited(stage):
        return NESTED.replace({"blocks.2": stage}).remove("head")

    shape = eqx.filter_eval_shape(edited, block(jr.key(7)))
    assert shape["blocks"].stages["lin"].weight.shape == (3, 3, 3)


def test_a_state_remains_valid():
    def make():
        return ep.chain(norm=eqx.nn.BatchNorm(3, "batch", mode="ema"), head=ONE)

    pipe, state = eqx.nn.make_with_state(make)()
    edited = pipe.replace(head=TWO).insert({"first": jnp.tanh}, before="norm")
    batch = jnp.stack([X, 2 * X])

    @eqx.filter_jit
    def run(pipe, state):
        return ep.batched(pipe, axis_name="batch")(batch, state)

    (y, after), (z, _) = run(edited, state), run(pipe, state)
    index = pipe["norm"].ema_state_index
    assert not jnp.array_equal(y, z)
    assert eqx.tree_equal(state.get(index), state.get(index))
    assert not eqx.tree_equal(after.get(index), state.get(index))
