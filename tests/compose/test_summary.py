"""`summary` and `repr`: what a pipeline holds and gives, as text and plain data."""

import functools as ft

import equinox as eqx
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import pytest
from hypothesis import given
from support.described import stages

import eqx_pipe as ep

KEY = jr.key(0)
X = jnp.ones(3)


def linear(key):
    return eqx.nn.Linear(3, 3, key=key)


def block(key):
    return ep.chain(lin=linear(key), act=jnp.tanh)


def model():
    return ep.chain(
        body=linear(KEY),
        blocks=ep.repeat(block, 4, key=KEY),
        drop=eqx.nn.Dropout(0.5),
        choice=ep.cond(lambda x: x[0] > 0, jnp.sin, linear(KEY)),
    )


REPR = """\
chain  # 72 parameters
  body: Linear(weight float32[3,3], bias float32[3])  # 12 parameters
  blocks: repeat(size=4)  # 48 parameters
    0: chain  # 12 parameters
      lin: Linear(weight float32[3,3], bias float32[3])  # 12 parameters
      act: tanh
  drop: Dropout(p=0.5, inference=False)
  choice: cond  # 12 parameters
    pred: <lambda>
    then: sin
    otherwise: Linear(weight float32[3,3], bias float32[3])  # 12 parameters"""


def test_repr_shows_names_shapes_and_counts():
    assert repr(model()) == REPR


def test_repr_works_on_trees_of_the_same_structure(unchecked):
    for tree in (ep.trainable(model(), "body"), eqx.filter(model(), eqx.is_array)):
        assert "blocks: repeat(size=4)" in repr(tree)
    seen = []
    eqx.filter_eval_shape(lambda p: seen.append(repr(p)), model())
    assert seen == [repr(model())]
    with pytest.raises(TypeError, match="is chain  # 72 parameters   body: Linear"):
        ep.Linspace(model(), 1, 2)


def test_every_stage_has_a_row_with_its_output_and_parameters():
    batch = jax.ShapeDtypeStruct((5, 3), "float32")
    rows = {row.path: row for row in ep.summary(ep.batched(model()), batch).rows}
    first = ["", "stage", "stage.body", "stage.blocks", "stage.blocks.0"]
    assert list(rows)[:5] == first
    assert rows[""].output == "float32[5,3]" and rows[""].parameters == 72
    assert rows["stage.blocks.0.lin"].output == "float32[5,3]"
    assert rows["stage.blocks"].settings == {"size": 4}
    assert rows["stage.choice.then"].output is None


def test_outputs_of_a_stateful_pipeline_need_its_state():
    def make():
        norm = eqx.nn.BatchNorm(3, "batch", mode="ema")
        return ep.batched(ep.chain(linear(KEY), norm), axis_name="batch")

    pipe, state = eqx.nn.make_with_state(make)()
    table = ep.summary(pipe, jnp.ones((2, 3)), state=state)
    assert [row.stateful for row in table.rows] == [True, True, False, True]
    assert table.rows[0].output == "float32[2,3]"
    assert table.parameters == 12 + 6  # the state does not count
    with pytest.raises(ValueError, match="stateful, but got no state"):
        ep.summary(pipe, jnp.ones((2, 3)))


@given(st.sampled_from(sorted(stages)))
def test_every_parameter_counts_once_and_no_text_has_an_address(name):
    stage = stages[name]
    table = ep.summary(stage)
    assert " at 0x" not in str(table)
    leaves = jtu.tree_leaves(stage, is_leaf=lambda x: isinstance(x, eqx.nn.StateIndex))
    sizes = [leaf.size for leaf in leaves if hasattr(leaf, "dtype")]
    assert table.parameters == sum(sizes)
    paths = [row.path for row in table.rows]
    assert len(set(paths)) == len(paths) and paths[0] == ""


def test_constants_of_functions_and_frozen_stages_are_shown_and_not_counted():
    scale, layer = jnp.ones(3), eqx.nn.Linear(3, 3, key=jr.key(0))
    pipe = ep.chain(lambda x: x * scale, ft.partial(jnp.add, scale), ep.frozen(layer))
    whole, *rows = ep.summary(pipe).rows
    assert whole.parameters == 0 and not whole.stateful
    assert [list(row.arrays) for row in rows[:2]] == [["scale"], ["0"]]
    assert set(rows[2].arrays.values()) == {"float32[3]", "float32[3,3]"}


def test_settings_and_arrays():
    def row(name):
        return ep.summary(stages[name])

    sizes = {"in_features": 3, "out_features": 3}
    assert row("linear").settings == {**sizes, "use_bias": True}
    assert row("linear").arrays == {"weight": "float32[3,3]", "bias": "float32[3]"}
    assert row("batched").settings == {"in_axes": (0, None), "axis_name": "batch"}
    edges = {"a": ["input"], "b": ["a", "input"]}
    assert row("graph").settings == {"edges": edges, "sink": ("b",)}
    assert row("weighted").arrays == {"weights": "float32[2]"}
    assert [child.path for child in row("mixture").children] == ["weights", "0", "1"]
    inner = row("repeat").children[0].children[0]
    assert inner.path == "0.0" and inner.arrays["weight"] == "float32[3,3]"


def test_the_rows_of_a_tied_pipeline_add_up_to_the_whole():
    a, b = linear(KEY), linear(jr.key(1))
    pipe = ep.tied(ep.chain(a=a, b=b), lambda p: p["b"].weight, lambda p: p["a"].weight)
    whole = ep.summary(pipe, X)
    assert whole.parameters == sum(row.parameters for row in whole.children) == 15
    both = ep.tied(ep.chain(a=a, b=b), lambda p: p["b"], lambda p: p["a"])
    kinds = [row.stage for row in ep.summary(both).children]
    assert kinds == ["Linear", "Elsewhere"]
