"""Several inputs by name: `graph(inputs=)`, `broadcast=`, `feed`, edges by keyword."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import eqx_pipe as ep

X = {"x": jnp.arange(3.0), "by": jnp.array([1.0, 2.0, 3.0])}


def scaled(x, by):
    return x * by + 1


def block(key=None):
    """Return `tanh(scale * x) + by` for a drawn scale."""
    scale = 2.0 if key is None else jr.normal(key, (3,))
    return ep.graph(
        nodes={"scale": Scale(jnp.asarray(scale)), "act": jnp.tanh, "add": jnp.add},
        edges={"scale": "x", "act": "scale", "add": ["act", "by"]},
        sink="add",
        inputs=("x", "by"),
    )


class Scale(ep.Stage):
    scale: jax.Array

    def __call__(self, x, *, key=None):
        return self.scale * x


class Count(eqx.nn.StatefulLayer):
    """Counts its calls, and adds the count times `by`."""

    count: eqx.nn.StateIndex

    def __init__(self):
        self.count = eqx.nn.StateIndex(jnp.zeros(()))

    def __call__(self, x, state, by=1.0, *, key=None):
        count = state.get(self.count) + 1
        return x + count * by, state.set(self.count, count)


NAMES = st.permutations(["x", "by"])


@given(NAMES, NAMES)
def test_neither_the_order_of_inputs_nor_of_entries_matters(names, entries):
    pipe = ep.graph({"s": scaled}, {"s": ["x", "by"]}, "s", inputs=names)
    y = pipe({name: X[name] for name in entries})
    np.testing.assert_array_equal(y, X["x"] * X["by"] + 1)


@pytest.mark.parametrize(
    "stage",
    [
        ep.feed(scaled, "x", "by"),
        ep.feed(scaled, "x", by="by"),
        ep.feed(ep.frozen(scaled), x="x", by="by"),
        ep.feed(ep.feed(scaled, "a", "b"), a="x", b="by"),
        ep.graph({"s": scaled}, {"s": {"by": "by", "x": "x"}}, "s", inputs=["by", "x"]),
        ep.graph({"s": ep.feed(scaled, "x", "by")}, {"s": []}, "s", inputs=["by", "x"]),
        ep.chain(ep.feed(scaled, "x", "by"), broadcast="by"),
        ep.chain(ep.at("x", eqx.nn.Identity()), ep.feed(scaled, "x", "by")),
    ],
)
def test_all_ways_to_hand_on_inputs_agree(stage):
    np.testing.assert_array_equal(stage(X), X["x"] * X["by"] + 1)


def test_a_chain_that_broadcasts_is_the_loop_and_associative():
    f, g = ep.feed(scaled, "x", "by"), block()
    flat = ep.chain(f, g, f, broadcast="by")
    by_hand = scaled(jnp.tanh(2 * scaled(X["x"], X["by"])) + X["by"], X["by"])
    nested = ep.chain(f, ep.chain(g, f, broadcast="by"), broadcast="by")
    for pipe in (flat, nested, ep.chain(flat[:2], flat[2:], broadcast="by")):
        np.testing.assert_allclose(pipe(X), by_hand, rtol=1e-6)
    assert flat[:2].broadcast == ("by",) and len(flat[:2]) == 2
    for empty in (
        ep.chain(broadcast="by"),
        ep.repeat(block, 0, key=jr.key(0), broadcast="by"),
    ):
        assert empty(X) is X["x"]


def test_what_is_only_read_is_no_part_of_the_carry():
    pipe = ep.repeat(block, 3, key=jr.key(0), broadcast="by")
    (scan,) = [
        eqn
        for eqn in jax.make_jaxpr(lambda x: pipe(x))(X).eqns
        if eqn.primitive.name == "scan"
    ]
    assert len(scan.outvars) == 1


def test_a_stateful_layer_gets_its_inputs_by_name():
    def make():
        inputs = {"x": "x", "by": "by"}
        node = ep.graph({"a": Count()}, {"a": inputs}, "a", inputs=("x", "by"))
        return ep.chain(node, ep.feed(Count(), "x", by="by"), broadcast="by")

    pipe, state = eqx.nn.make_with_state(make)()
    y, state = eqx.filter_jit(pipe)(X, state)
    np.testing.assert_array_equal(y, X["x"] + 2 * X["by"])
    assert [v.item() for v in jax.tree.leaves(state)] == [1.0, 1.0]


def test_paths_of_outputs_errors_and_views():
    pipe = ep.chain(block(), ep.feed(scaled, "x", by="by"), broadcast="by")
    paths = "0.scale 0.act 0.add 0 1.stage 1"
    assert list(ep.outputs(pipe)(X)[1]) == paths.split()
    assert ep.summary(pipe).settings == {"broadcast": ("by",)}
    first, second = ep.summary(pipe).children
    assert first.settings["inputs"] == ["x", "by"]
    assert second.settings == {"inputs": ["x", "by=by"]}
    with pytest.raises(
        ep.StructureError, match="no entry `by`. Known names: `x`"
    ) as caught:
        ep.chain(a=pipe)({"x": X["x"]})
    assert "stage `a`" in str(caught.value.__notes__)
