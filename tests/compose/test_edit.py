"""`replace`, `insert`, `remove`, `rename`: other pipelines from one, by path."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.helpers import few

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
            stage = stage.held_child(segment)
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
        assert np.allclose(after["body.b"] - given, draw, atol=1e-6), name


def test_positions_behind_an_insertion_draw_anew():
    pipe = ep.chain(noise, noise)
    first = ep.outputs(pipe, X, key=KEY)
    at_end = ep.outputs(pipe.insert(jnp.sin), X, key=KEY)
    in_front = ep.outputs(pipe.insert(jnp.sin, before=0), X, key=KEY)
    assert np.array_equal(first["0"], at_end["0"])
    assert np.array_equal(first["1"], at_end["1"])
    assert not np.allclose(first["0"] - X, in_front["1"] - jnp.sin(X))


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
            assert np.array_equal(new[1]["lin"].weight, TWO.weight)
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
    assert not np.array_equal(y, z)
    assert eqx.tree_equal(state.get(index), state.get(index))
    assert not eqx.tree_equal(after.get(index), state.get(index))


FUNCTIONS = (jnp.sin, jnp.cos, jnp.tanh, jnp.square)
GATES = tuple(lambda x, i=i: x[0] > i for i in range(4))
# How each is made of stages (one mapping, or a list), and what it holds for each.
SEVERAL = {
    "chain": lambda stages, own: (
        ep.chain(**stages[0]) if dict in map(type, stages) else ep.chain(*stages)
    ),
    "parallel": lambda stages, own: ep.parallel(*stages, merge="stack", axis=0),
    "residual": lambda stages, own: ep.residual(*stages, skip=jnp.negative),
    "weighted": lambda stages, own: ep.weighted(*stages, weights=own[0]),
    "gated": lambda stages, own: ep.gated(*stages, gates=own[1], merge="max"),
    "switch": lambda stages, own: ep.switch(jnp.argmax, *stages),
}


def made(kind, places, named):
    """One of these at some of the places of a list, with what goes with them."""
    stages = [FUNCTIONS[i] for i in places]
    given = [dict(zip(names(places), stages, strict=True))] if named else stages
    own = [float(i) for i in places], [GATES[i] for i in places]
    return SEVERAL[kind](given, own)


def names(places):
    return ["abcd"[i] for i in places]


SLICES = st.builds(
    slice,
    st.none() | st.integers(-5, 5),
    st.none() | st.integers(-5, 5),
    st.sampled_from([None, 1, 2, -1]),
)


@pytest.mark.parametrize("kind", SEVERAL)
@given(size=st.integers(1, 4), named=st.booleans(), part=SLICES)
def test_a_slice_is_built_of_the_stages_of_the_slice(kind, size, named, part):
    pipe, kept = made(kind, range(size), named), range(size)[part]
    moves = kind == "switch" and list(kept) != list(range(len(kept)))
    if moves or not kept and kind != "chain":
        with pytest.raises(ValueError, match="selector=stage|Give at least one"):
            pipe[part]
        return
    assert eqx.tree_equal(pipe[part], made(kind, kept, named and bool(kept)))
    gone = [i for i in range(size) if i not in kept]
    if part.step is None:
        removed = pipe.remove(*(names(gone) if named else gone))
        assert eqx.tree_equal(removed, pipe[part])


@pytest.mark.parametrize("kind", SEVERAL)
@given(st.sets(st.sampled_from(range(4)), min_size=1, max_size=3))
def test_what_is_inserted_brings_its_own_and_leaves_that_of_others(kind, gone):
    """Some of four are taken away, and put back where they were, by name."""
    whole = made(kind, range(4), True)
    selector = {"selector": jnp.argmax} if kind == "switch" else {}
    pipe = whole.remove(*names(sorted(gone)), **selector)
    kept = [i for i in range(4) if i not in gone]
    assert eqx.tree_equal(pipe, made(kind, kept, True))
    for i in sorted(gone):
        own = {"weighted": {"weights": [float(i)]}, "gated": {"gates": [GATES[i]]}}
        after = [k for k in pipe.keys() if k < "abcd"[i]]
        place = {"after": after[-1]} if after else {"before": pipe.keys()[0]}
        given = {**own.get(kind, selector), **place}
        pipe = pipe.insert({"abcd"[i]: FUNCTIONS[i]}, **given)
    assert eqx.tree_equal(pipe, whole)


def line(stages):
    """A graph without a branch."""
    edges = {n: [p] for n, p in zip(stages, ["x", *stages], strict=False)}
    return ep.graph(stages, edges, list(stages)[-1], inputs=("x",))


@given(st.permutations("abc"), st.sampled_from("abc"), st.booleans())
def test_a_line_shaped_graph_is_edited_as_the_chain_of_the_same_names(
    order, beside, after
):
    stages = dict(zip(order, FUNCTIONS, strict=False))
    place = {"after" if after else "before": beside}

    def edited(pipe):
        pipe = pipe.insert({"y": jnp.exp, "z": jnp.negative}, **place)
        return pipe.remove(order[0]).rename({order[1]: "other"})

    graph, chain = edited(line(stages)), edited(ep.chain(**stages))
    again = line(dict(chain.items()))
    assert graph.wires().sink == chain.keys()[-1]
    assert eqx.tree_equal(graph, again)


def test_edges_follow_what_is_edited():
    nodes = {"norm": jnp.tanh, "attend": lambda q, k, mask: q * k, "add": jnp.add}
    edges = {"norm": "x", "attend": ["norm", "norm", "mask"], "add": ["x", "attend"]}
    sink = {"y": "add", "hidden": "attend"}
    pipe = ep.graph(nodes, edges, sink, inputs=("x", "mask"))
    new = pipe.insert({"drop": jnp.cos}, after="attend").remove("norm")
    assert new.wires().edges == {
        "attend": ["x", "x", "mask"],
        "drop": ["attend"],
        "add": ["x", "drop"],
    }
    assert new.wires().sink == {"y": "add", "hidden": "drop"}
    other = pipe.rename(attend="a", add="b")
    assert other.wires().sink == {"y": "b", "hidden": "a"}
    assert eqx.tree_equal(other.rename(a="attend", b="add"), pipe)


def test_a_slice_of_a_repeat_is_the_repeat_of_the_slice_and_draws_by_its_positions():
    def noisy(key):
        return ep.chain(lin=eqx.nn.Linear(3, 3, key=key), noise=noise)

    pipe = ep.repeat(noisy, 4, key=KEY)
    stages = list(pipe)
    for part in (slice(2, None), slice(None, None, -2), slice(1, 3)):
        assert eqx.tree_equal(pipe[part], ep.repeat(stages[part]))
    run = eqx.filter_jit(lambda pipe: pipe(X, key=KEY))
    assert np.allclose(run(pipe[2:]), run(ep.chain(*stages[2:])), atol=1e-6)
    grown = pipe.insert(stages[0], before=2)
    assert eqx.tree_equal(grown, ep.repeat([*stages[:2], stages[0], *stages[2:]]))
    assert eqx.tree_equal(grown.remove(2), pipe)
    models = ep.ensemble(stages, merge="max")
    assert models[:2].merge == "max" and len(models.insert(stages[1])) == 5


def test_what_is_not_tied_is_edited_where_it_stands():
    pipe = ep.chain(embed=ONE, body=ep.chain(a=jnp.sin), head=TWO)
    both = ep.tied(pipe, lambda p: p["head"].weight, lambda p: p["embed"].weight.T)
    new = both.replace({"head.bias": X, "embed": linear(7)})
    new = new.insert({"b": jnp.cos}, after="body.a").remove("body.a")
    new = new.insert({"first": jnp.tanh}, before="embed").rename(body="middle")
    whole = new.pipe
    assert whole.keys() == ("first", "embed", "middle", "head")
    assert whole["middle"].keys() == ("b",)
    assert np.array_equal(whole["head"].weight, linear(7).weight.T)
    assert np.array_equal(whole["head"].bias, X)
    for edit in (
        lambda: both.replace({"head.weight": jnp.ones((3, 3))}),
        lambda: both.rename(embed="words"),
        lambda: both.remove("head"),
    ):
        with pytest.raises(ValueError, match="tie its parts again"):
            edit()
    by_place = ep.tied(ep.chain(ONE, TWO), lambda p: p[1].weight, lambda p: p[0].weight)
    with pytest.raises(ValueError, match="tie its parts again"):
        by_place.insert(linear(8), before=0)  # which `get` would name now
