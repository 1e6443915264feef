"""`graph`: the laws of order, what it passes on, and what it refuses."""

import equinox as eqx
import hypothesis.strategies as st
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given
from support.stages import Count

import eqx_pipe as ep


class Noise(ep.Stage):
    """Adds noise drawn from its key to the sum of its inputs."""

    def __call__(self, *xs, key=None):
        return sum(xs) + jr.normal(key, xs[0].shape)


NODES = {
    "a": Noise(),
    "b": eqx.nn.Linear(3, 3, key=jr.key(0)),
    "c": ep.chain(jnp.sin, eqx.nn.Dropout()),
    "d": Noise(),
    "e": Count(),
    "f": lambda p, q, r: (p * q, r),
}
EDGES = {
    "d": ["b", "c", "input"],
    "a": [],
    "b": "a",
    "f": ["d", "d", "e"],
    "c": ("a",),
    "e": ["b"],
}


def build(names, edge_names):
    nodes = {name: NODES[name] for name in names}
    edges = {name: EDGES[name] for name in edge_names}
    return eqx.nn.make_with_state(ep.graph)(nodes=nodes, edges=edges, sink="f")


@given(st.permutations(sorted(NODES)), st.permutations(sorted(NODES)))
def test_the_order_of_writing_has_no_meaning(names, edge_names):
    x, key = jnp.ones(3), jr.key(1)
    first, first_state = build(sorted(NODES), sorted(NODES))
    other, other_state = build(names, edge_names)
    assert eqx.tree_equal(first, other)
    y, first_state = first(x, first_state, key=key)
    z, other_state = other(x, other_state, key=key)
    assert eqx.tree_equal((y, first_state), (z, other_state))


@given(st.permutations(["x", "m", "b"]), st.booleans())
def test_a_line_is_a_chain(names, with_noise):
    stages = [Noise() if with_noise else jnp.sin, eqx.nn.Dropout(), jnp.tanh]
    nodes = dict(zip(names, stages, strict=True))
    edges = dict(zip(names, [[], [names[0]], [names[1]]], strict=True))
    x, key = jnp.ones(3), jr.key(1)
    line = ep.graph(nodes=nodes, edges=edges, sink=names[-1])(x, key=key)
    np.testing.assert_array_equal(line, ep.chain(**nodes)(x, key=key))


@pytest.mark.parametrize(
    ("sink", "want"),
    [
        ("b", 3.0),
        (("b", "a"), (3.0, 2.0)),
        (("b", "a", "b"), (3.0, 2.0, 3.0)),
        (("b", "input"), (3.0, 1.0)),
        ({"z": "b", "y": "a"}, {"z": 3.0, "y": 2.0}),
    ],
)
def test_sinks(sink, want):
    pipe = ep.graph(
        {"a": lambda x: x + 1, "b": lambda x: x + 1}, {"a": [], "b": "a"}, sink
    )
    y = pipe(1.0)
    assert y == want and type(y) is type(want)
    if isinstance(y, dict):
        assert list(y) == ["z", "y"]  # in the order written
