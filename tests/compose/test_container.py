"""Composites of several stages are found in, looped over and asked as containers."""

import copy
import pickle

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax.numpy import cos, sin

import eqx_pipe as ep


def linear(key):
    return eqx.nn.Linear(2, 2, key=key)


ONE, TWO = linear(jr.key(1)), linear(jr.key(2))
NAMES = {"a": ONE, "b": TWO}
GATES = {"a": jnp.any, "b": jnp.all}

BY_NAME = {
    "chain": lambda: ep.chain(**NAMES),
    "parallel": lambda: ep.parallel(NAMES),
    "gated": lambda: ep.gated(NAMES, gates=GATES),
    "weighted": lambda: ep.weighted(NAMES, weights=[0.5, 0.5]),
    "switch": lambda: ep.switch(jnp.argmax, NAMES),
    "graph": lambda: ep.graph(NAMES, {"a": [], "b": ["a"]}, "b"),
}
BY_POSITION = {
    "chain": lambda: ep.chain(ONE, TWO),
    "parallel": lambda: ep.parallel(ONE, TWO),
    "weighted": lambda: ep.weighted(ONE, TWO),
    "gated": lambda: ep.gated(ONE, TWO, gates=(jnp.any, jnp.all)),
    "switch": lambda: ep.switch(jnp.argmax, ONE, TWO),
}


# Each pair has one CRC-32; the second of each is the name of a part that draws, too.
PAIR = {"plumless": ONE, "buckeroo": TWO}
SAME_KEYS = {
    "chain": lambda: ep.chain(**PAIR),
    "residual": lambda: ep.residual(PAIR),
    "parallel": lambda: ep.parallel(PAIR),
    "gated": lambda: ep.gated(PAIR, gates=[jnp.any, jnp.all]),
    "weighted": lambda: ep.weighted(PAIR),
    "switch": lambda: ep.switch(jnp.argmax, PAIR),
    "graph": lambda: ep.graph(PAIR, dict.fromkeys(PAIR, []), tuple(PAIR)),
    "merge": lambda: ep.parallel({"eedwjng": ONE}, merge=lambda ys: ys[0]),
    "weights": lambda: ep.weighted({"hdmryxz": ONE}, weights=lambda x: jnp.ones(1)),
    "gates": lambda: ep.gated({"eensllq": ONE}, gates=[jnp.any]),
    "selector": lambda: ep.switch(jnp.argmax, {"kaisbfc": ONE}),
}


@pytest.mark.parametrize("name", SAME_KEYS)
def test_names_that_would_draw_the_same_numbers_are_rejected(name):
    with pytest.raises(ValueError, match="have the same CRC-32.*Rename one of them"):
        SAME_KEYS[name]()


def test_names_that_draw_nothing_may_have_the_same_crc():
    edges = {"add": {"x": "plumless", "y": "buckeroo"}}
    graph = ep.graph({"add": lambda x, y: x + y}, edges, "add", tuple(PAIR))
    assert graph({"plumless": 1, "buckeroo": 2}) == 3


@pytest.mark.parametrize("name", BY_NAME)
def test_names_are_those_of_a_dict(name):
    pipe = BY_NAME[name]()
    assert pipe.keys() == ("a", "b") and pipe.values() == (ONE, TWO)
    assert pipe.items() == (("a", ONE), ("b", TWO)) and dict(pipe) == NAMES
    assert list(pipe) == [ONE, TWO] and len(pipe) == 2
    assert "a" in pipe and pipe["b"] is TWO
    assert "c" not in pipe and "0" not in pipe and ONE not in pipe
    with pytest.raises(KeyError, match="Known names: `a`, `b`"):
        pipe["0"]


@pytest.mark.parametrize("name", BY_POSITION)
def test_positions_are_those_of_a_list_and_those_of_paths(name):
    pipe = BY_POSITION[name]()
    assert pipe.keys() == (0, 1) and dict(pipe) == {0: ONE, 1: TWO}
    assert list(reversed(pipe)) == [TWO, ONE]
    assert pipe[-2] is ONE and pipe[-1] is TWO
    assert pipe["1"] is TWO and "1" in pipe and "2" not in pipe
    for wrong in ("2", "-1", "a"):
        with pytest.raises(KeyError, match="Give an integer from -2 to 1"):
            pipe[wrong]
    for far in (2, -3):
        with pytest.raises(IndexError, match="Give an integer from -2 to 1"):
            pipe[far]


def test_a_mapping_and_stages_do_not_mix():
    for stages in ((NAMES, sin), (sin, NAMES)):
        with pytest.raises(TypeError, match="mixes a mapping"):
            ep.parallel(*stages)


def test_the_paths_of_outputs_are_found():
    pipe = ep.chain(ep.parallel(sin, cos, merge="sum"), ep.weighted(sin))
    for path in ep.outputs(pipe)(jnp.ones(2))[1]:
        stage = pipe
        for segment in path.split("."):
            stage = stage[segment]
        assert callable(stage)
        assert pipe[path] is stage and path in pipe and f"{path}.more" not in pipe


def test_paths_lead_through_all_combinators_as_those_of_replace():
    blocks = ep.repeat(linear, 3, key=jr.key(0))
    pipe = ep.chain(a=ep.batched(ep.chain(first=sin, blocks=blocks)), b=cos)
    assert pipe["a.stage.first"] is pipe["a"].stage["first"]
    assert eqx.tree_equal(pipe["a.stage.blocks.2"], blocks[2])
    for path in ("a.stage.first", "a.stage.blocks.1", "b"):
        assert eqx.tree_equal(pipe.replace({path: pipe[path]}), pipe)
    for wrong in ("a.first", "a.stage.", "a.", ".a", "a.stage.blocks.3", "b.fn"):
        assert wrong not in pipe
        with pytest.raises(KeyError):
            pipe[wrong]


def test_the_stages_of_a_repeat_are_cut_out():
    pipe = ep.repeat(linear, 3, key=jr.key(0))
    assert pipe.keys() == (0, 1, 2) and "2" in pipe and "3" not in pipe
    for (i, stage), same in zip(pipe.items(), pipe, strict=True):
        assert eqx.tree_equal(stage, same) and eqx.tree_equal(stage, pipe[str(i)])
        assert np.array_equal(stage.weight, pipe.stages.weight[i])


def test_pipelines_are_true_also_if_they_are_empty():
    for empty in (ep.chain(), ep.repeat(linear, 0, key=jr.key(0))):
        assert len(empty) == 0 and (empty or None) is empty
        with pytest.raises(IndexError, match="There are none"):
            empty[0]


def test_a_stage_asked_for_as_an_attribute():
    pipe = ep.chain(blocks=ep.batched(ep.batched(ONE)), head=sin)
    for stage, name, cure in [
        (pipe, "blocks", r'items: `pipe\["blocks"\]`'),
        (pipe, "block", "Did you mean `blocks`"),
        (pipe["blocks"].stage, "weight", "has no attribute `weight`$"),
    ]:
        with pytest.raises(AttributeError, match=cure):
            getattr(stage, name)
        assert not hasattr(stage, name) and getattr(stage, name, 3) == 3


def test_pipelines_are_copied_as_before():
    pipe = ep.chain(a=ONE, b=ep.repeat(linear, 2, key=jr.key(0)))
    for again in (
        copy.copy(pipe),
        copy.deepcopy(pipe),
        pickle.loads(pickle.dumps(pipe)),
    ):
        assert eqx.tree_equal(again, pipe) and again.keys() == ("a", "b")
    assert eqx.filter_jit(lambda p, x: p["a"](x))(pipe, jnp.ones(2)).shape == (2,)
