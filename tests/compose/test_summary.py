"""`summary` and `repr`: what a pipeline holds, gives and computes, as text."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import pytest

import eqx_pipe as ep
from eqx_pipe._errors import describe_value
from eqx_pipe._jaxprs.flops import num_flops

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


def test_repr_shows_names_shapes_and_counts():
    assert repr(model()).splitlines() == [
        "chain  # 72 parameters",
        "  body: Linear(weight float32[3,3], bias float32[3])  # 12 parameters",
        "  blocks: repeat n=4  # 48 parameters",
        "    0: chain  # 12 parameters",
        "      lin: Linear(weight float32[3,3], bias float32[3])  # 12 parameters",
        "      act: tanh",
        "  drop: Dropout(inference False)",
        "  choice: cond  # 12 parameters",
        "    pred: <lambda>",
        "    then: sin",
        "    otherwise: Linear(weight float32[3,3], bias float32[3])  # 12 parameters",
    ]


def test_repr_of_a_long_pipeline_is_cut_and_of_a_spec_shows_it():
    lines = repr(ep.chain(*[jnp.sin] * 500)).splitlines()
    assert len(lines) == 41 and "461 more lines" in lines[-1]
    spec = repr(ep.trainable(model(), "body"))
    assert "body: Linear(weight True, bias True)" in spec and "act: False" in spec
    assert "act: None" in repr(eqx.filter(model(), eqx.is_array))
    seen = []
    eqx.filter_eval_shape(lambda p: seen.append(repr(p)), model())
    assert seen == [repr(model())]


def test_a_pipeline_in_a_message_is_one_line():
    assert describe_value(model()).startswith("chain  # 72 parameters   body: Linear")


def test_every_stage_has_its_shape_parameters_and_operations():
    batch = jax.ShapeDtypeStruct((5, 3), "float32")
    rows = {row.path: row for row in ep.summary(ep.batched(model()), batch).rows}
    one = rows["stage"].flops
    assert rows[""].output == "float32[5,3]" and rows[""].parameters == 72
    assert rows["stage.blocks"].flops == 4 * rows["stage.blocks.0"].flops == 4 * 24
    assert rows["stage.blocks.0.lin"].output == "float32[3]"
    assert rows["stage.blocks"].stage == "repeat n=4"
    assert rows["stage.choice"].flops == rows["stage.choice.otherwise"].flops == 21
    assert one == sum(rows[f"stage.{n}"].flops for n in model().keys())
    paths = [row.path for row in ep.summary(model(), X).rows]
    assert paths[:4] == ["", "body", "blocks", "blocks.0"]


def test_a_state_is_asked_for_as_by_draw_and_a_named_axis_is_no_error():
    norm = eqx.nn.BatchNorm(3, "batch", mode="ema")
    pipe = ep.batched(ep.chain(linear(KEY), norm), axis_name="batch")
    table = ep.summary(pipe, jnp.ones((2, 3)))
    assert table.rows[0].output == "float32[2,3]" and table.rows[0].flops > 0
    assert table.rows[-1].stage == "BatchNorm" and table.rows[-1].flops is None
    made, state = eqx.nn.make_with_state(lambda: pipe)()
    assert ep.summary(made, jnp.ones((2, 3)), state=state).rows == table.rows
    with pytest.raises(ValueError, match=r"Call `summary\(pipe, x, state=state\)`"):
        ep.summary(made, jnp.ones((2, 3)))


def test_the_table_as_text():
    table = ep.summary(ep.chain(a=linear(KEY), b=jnp.tanh), X)
    text = str(table).splitlines()
    assert text[0].split() == ["path", "stage", "output", "parameters", "flops"]
    assert text[-1].split() == ["(all)", "chain", "float32[3]", "12", "24"]
    assert len({len(line) for line in text}) == 1


@pytest.mark.parametrize(
    "layer, shape",
    [
        (linear(KEY), (3,)),
        (eqx.nn.Conv2d(4, 6, 3, groups=2, key=KEY), (4, 7, 7)),
        (lambda x: x @ x.T, (5, 3)),
    ],
    ids=["linear", "conv", "matmul"],
)
def test_operations_are_those_that_xla_counts(layer, shape):
    x = jnp.ones(shape)
    counted = jax.jit(lambda x: layer(x)).lower(x).cost_analysis()["flops"]
    assert num_flops(jax.make_jaxpr(layer)(x)) == pytest.approx(counted, rel=0.02)
