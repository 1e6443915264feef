"""`describe`: plain data, the same everywhere, with every parameter counted once."""

import inspect
import json

import equinox as eqx
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import pytest
from hypothesis import given
from support.pictures import stages

import eqx_pipe as ep


def walk(description):
    yield description
    for child in description["children"]:
        yield from walk(child)


@given(st.sampled_from(sorted(stages)))
def test_plain_data_with_every_parameter(name):
    stage = stages[name]
    made = ep.describe(stage)
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    for part in walk(made):
        assert list(part) == [
            "path",
            "kind",
            "settings",
            "stateful",
            "parameters",
            "arrays",
            "closes_over",
            "children",
        ]
        assert sum(part["parameters"]["dtypes"].values()) == part["parameters"]["count"]
        assert " at 0x" not in json.dumps(part)
    leaves = jtu.tree_leaves(stage, is_leaf=lambda x: isinstance(x, eqx.nn.StateIndex))
    sizes = [leaf.size for leaf in leaves if hasattr(leaf, "dtype")]
    assert made["parameters"]["count"] == sum(sizes)
    paths = [part["path"] for part in walk(made)]
    assert len(set(paths)) == len(paths) and paths[0] == ""


def test_a_chain_of_layers():
    made = ep.describe(stages["chain"])
    assert made["kind"] == "chain" and not made["stateful"]
    parts = {part["path"]: part for part in walk(made)}
    assert list(parts) == ["", "a", "b", "b.0", "b.1"]
    assert parts["a"] == {
        "path": "a",
        "kind": "Linear",
        "settings": {"in_features": 3, "out_features": 3, "use_bias": True},
        "stateful": False,
        "parameters": {"count": 12, "dtypes": {"float32": 12}},
        "arrays": {"weight": "float32[3,3]", "bias": "float32[3]"},
        "closes_over": {},
        "children": [],
    }
    assert parts["b.0"]["kind"] == "function"
    assert parts["b.0"]["settings"] == {"name": "sin"}


def test_the_child_of_a_repeat_is_a_single_stage():
    made = ep.describe(stages["repeat"])
    assert made["settings"] == {"n": 5} and made["parameters"]["count"] == 5 * 2 * 12
    inner = made["children"][0]
    assert inner["path"] == "0" and inner["parameters"]["count"] == 2 * 12
    single = inner["children"][0]
    assert single["path"] == "0.0" and single["arrays"]["weight"] == "float32[3,3]"
    assert ep.describe(stages["none"])["children"][0]["kind"] == "Linear"


def test_settings_of_our_own():
    batched = ep.describe(stages["batched"])
    assert batched["settings"] == {"in_axes": [0, None], "axis_name": "batch"}
    graph = ep.describe(stages["graph"])
    assert graph["settings"] == {
        "edges": {"a": ["input"], "b": ["a", "input"]},
        "sink": ["b"],
    }
    assert ep.describe(stages["dropout"])["settings"]["p"] == "inf"
    assert ep.describe(stages["half"])["parameters"]["dtypes"] == {"bfloat16": 8}


def test_trainable_weights_are_parameters():
    weighted = ep.describe(stages["weighted"])
    assert weighted["arrays"] == {"weights": "float32[2]"}
    assert weighted["parameters"]["count"] == 2 + 12
    mixture = ep.describe(stages["mixture"])
    assert [child["path"] for child in mixture["children"]] == ["weights", "0", "1"]


def test_state_is_no_parameter():
    norm = ep.chain(stages["norm"], jnp.sin)
    with_state, _ = eqx.nn.make_with_state(lambda: norm)()
    assert ep.describe(norm) == ep.describe(with_state)
    assert ep.describe(norm)["stateful"]
    assert ep.describe(norm)["parameters"]["count"] == 6


def test_values_do_not_matter_and_tracers_are_fine():
    doubled = jtu.tree_map(
        lambda leaf: 2 * leaf if eqx.is_array(leaf) else leaf, stages["chain"]
    )
    assert ep.describe(doubled) == ep.describe(stages["chain"])
    seen = []
    dynamic, static = eqx.partition(stages["repeat"], eqx.is_array)
    jax.eval_shape(lambda d: seen.append(ep.describe(eqx.combine(d, static))), dynamic)
    assert seen == [ep.describe(stages["repeat"])]


def test_what_is_not_a_stage():
    for wrong in (3, None, eqx.nn.Linear):
        with pytest.raises(TypeError, match="eqx_pipe.describe.*`pipe`"):
            inspect.unwrap(ep.describe)(wrong)
