"""`graph`: the laws of order, what it passes on, and what it refuses."""

import itertools as it
import weakref
import zlib

import equinox as eqx
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given

import eqx_pipe as ep


class Noise(ep.Stage):
    """Adds noise drawn from its key to the sum of its inputs."""

    def __call__(self, *xs, key=None):
        return sum(xs) + jr.normal(key, xs[0].shape)


class Counter(eqx.nn.StatefulLayer):
    """Adds the state's count, which rises at each call, to the sum of its inputs."""

    count: eqx.nn.StateIndex
    rate: float

    def __init__(self, rate):
        self.count = eqx.nn.StateIndex(jnp.zeros((), jnp.float32))
        self.rate = rate

    def __call__(self, x, state, *, key=None):
        count = state.get(self.count) + self.rate
        return x + count, state.set(self.count, count)


NODES = {
    "a": Noise(),
    "b": eqx.nn.Linear(3, 3, key=jr.key(0)),
    "c": ep.chain(jnp.sin, eqx.nn.Dropout()),
    "d": Noise(),
    "e": Counter(2.0),
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


def fold(key, name):
    return jr.fold_in(key, np.uint32(zlib.crc32(name.encode())))


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


def test_the_values_are_those_written_by_hand():
    pipe, state = build(sorted(NODES), sorted(NODES))
    x, key = jnp.ones(3), jr.key(1)
    y, _ = pipe(x, state, key=key)
    a = x + jr.normal(fold(key, "a"), (3,))
    b = NODES["b"](a)
    c = NODES["c"](a, key=fold(key, "c"))
    d = b + c + x + jr.normal(fold(key, "d"), (3,))
    np.testing.assert_allclose(y[0], d * d, rtol=1e-5)
    np.testing.assert_allclose(y[1], b + 2, rtol=1e-5)


@given(st.permutations(["x", "m", "b"]), st.booleans())
def test_a_line_is_a_chain(names, with_noise):
    stages = [Noise() if with_noise else jnp.sin, eqx.nn.Dropout(), jnp.tanh]
    nodes = dict(zip(names, stages, strict=True))
    edges = dict(zip(names, [[], [names[0]], [names[1]]], strict=True))
    x, key = jnp.ones(3), jr.key(1)
    line = ep.graph(nodes=nodes, edges=edges, sink=names[-1])(x, key=key)
    np.testing.assert_array_equal(line, ep.chain(**nodes)(x, key=key))


def test_gradients_and_transformations(tmp_path):
    pipe = ep.graph(
        nodes={"b": NODES["b"], "c": jnp.sin, "d": Noise(), "m": lambda p, q: p * q},
        edges={"b": [], "c": "b", "d": ["b"], "m": ["c", "d"]},
        sink="m",
    )
    x, key = jnp.ones(3), jr.key(1)
    b = NODES["b"]

    def by_hand(b, x):
        h = b(x)
        return jnp.sum(jnp.sin(h) * pipe["d"](h, key=fold(key, "d")))

    grad = eqx.filter_grad(lambda p, x: jnp.sum(p(x, key=key)))(pipe, x)
    np.testing.assert_allclose(
        grad["b"].weight, eqx.filter_grad(by_hand)(b, x).weight, rtol=1e-5
    )
    plain = pipe(x, key=key)
    np.testing.assert_allclose(eqx.filter_jit(pipe)(x, key=key), plain, rtol=1e-5)
    rows = jax.vmap(lambda x: pipe(x, key=key))(jnp.stack([x, x]))
    np.testing.assert_allclose(rows[1], plain, rtol=1e-5)
    saved = eqx.filter_checkpoint(pipe)(x, key=key)
    np.testing.assert_allclose(saved, plain, rtol=1e-5)
    outer = eqx.nn.Sequential([pipe, ep.graph({"p": pipe}, {"p": []}, "p")])
    assert outer(x, key=key).shape == (3,)
    eqx.tree_serialise_leaves(tmp_path / "pipe.eqx", pipe)
    back = eqx.tree_deserialise_leaves(tmp_path / "pipe.eqx", pipe)
    np.testing.assert_array_equal(back(x, key=key), plain)
    last, _ = jax.lax.scan(lambda c, _: (pipe(c, key=key), None), x, None, 2)
    np.testing.assert_allclose(last, pipe(plain, key=key), rtol=1e-5)


def test_a_layer_of_several_inputs_is_a_node():
    attention = eqx.nn.MultiheadAttention(2, 4, key=jr.key(0))
    pipe = ep.graph(
        nodes={"q": jnp.sin, "kv": jnp.cos, "attention": attention},
        edges={"q": [], "kv": [], "attention": ["q", "kv", "kv"]},
        sink="attention",
    )
    x = jr.normal(jr.key(1), (5, 4))
    want = attention(jnp.sin(x), jnp.cos(x), jnp.cos(x))
    np.testing.assert_allclose(pipe(x), want, rtol=1e-6)


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


def test_items_and_length():
    pipe = ep.graph({"a": jnp.sin, "b": NODES["b"]}, {"a": [], "b": "a"}, "b")
    assert len(pipe) == 2 and pipe["b"] is NODES["b"]
    with pytest.raises(KeyError, match="Known names: `a`, `b`"):
        pipe["c"]


def test_values_are_let_go_of():
    class Box:
        pass

    alive = []
    made = []

    def step(*boxes):
        alive.append([ref() is not None for ref in made])
        box = Box()
        made.append(weakref.ref(box))
        return box

    names = "abcd"
    edges = {"a": [], "b": "a", "c": "b", "d": ["c", "b"]}
    ep.graph(dict.fromkeys(names, step), edges, "d")(jnp.ones(()))
    assert alive == [[], [True], [False, True], [False, True, True]]


def test_a_missing_key_and_a_failure_name_the_node():
    pipe = ep.chain(g=ep.graph({"a": jnp.sin, "n": Noise()}, {"a": [], "n": "a"}, "n"))
    with pytest.raises(ep.MissingKeyError) as caught:
        pipe(jnp.ones(2))
    assert caught.value.path == "g.n"
    wrong = ep.chain(g=ep.graph({"b": NODES["b"]}, {"b": []}, "b"))
    with pytest.raises(TypeError) as failed:
        wrong(jnp.ones(5))
    assert any("`g.b`" in note for note in failed.value.__notes__)


f, two = jnp.sin, lambda p, q: p + q


def test_a_cycle_is_told_alike_in_every_order():
    edges = {"p": ["r"], "q": ["p"], "r": ["q"]}
    for names in it.permutations("pqr"):
        with pytest.raises(ValueError, match="p -> q -> r -> p"):
            ep.graph({n: f for n in names}, {n: edges[n] for n in names}, "p")
