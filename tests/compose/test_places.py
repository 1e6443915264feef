"""Every place in which a stage may stand: what is given to it and what is refused."""

import dataclasses
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from support.by_hand import child_key

import eqx_pipe as ep

KEY = jr.key(0)
X = jnp.ones(2)
LAYER = eqx.nn.Linear(3, 3, key=KEY)
GRU = eqx.nn.GRUCell(3, 3, key=KEY)


def positive(x):
    return x.sum() > 0


def one_weight(x):
    return x[:1]


@dataclasses.dataclass
class Place:
    """A pipeline with a stage in it, the path of that, and what the stage gives."""

    make: Callable
    path: str
    gives: Callable = lambda *inputs: jax.tree.leaves(inputs)[0]
    several: bool = False  # takes more than one input, or any number


def carry_on(carry, x):
    return carry, x


PLACES = {
    "chain": Place(lambda s: ep.chain(s), "0"),
    "chain by name": Place(lambda s: ep.chain(a=s), "a"),
    "chain broadcast": Place(
        lambda s: ep.chain(lambda x: {"x": x, "y": x}, ep.chain(s, broadcast="y")),
        "1.0",
    ),
    "parallel": Place(lambda s: ep.parallel({"a": s, "b": jnp.sin}), "a"),
    "merge": Place(lambda s: ep.parallel(jnp.sin, merge=s), "merge"),
    "weighted": Place(lambda s: ep.weighted(jnp.sin, s), "1"),
    "weights": Place(lambda s: ep.weighted(jnp.sin, weights=s), "weights", one_weight),
    "gated": Place(lambda s: ep.gated(s, gates=(positive,)), "0"),
    "gates": Place(lambda s: ep.gated(jnp.sin, gates=(s,)), "gates.0", positive),
    "closed": Place(lambda s: ep.gated(s, gates=(positive,), merge="tuple"), "0"),
    "pred": Place(lambda s: ep.cond(s, jnp.sin), "pred", positive),
    "then": Place(lambda s: ep.cond(positive, s), "then"),
    "otherwise": Place(lambda s: ep.cond(positive, jnp.sin, s), "otherwise"),
    "selector": Place(
        lambda s: ep.switch(s, jnp.sin, jnp.cos), "selector", lambda x: jnp.argmax(x)
    ),
    "switch": Place(lambda s: ep.switch(jnp.argmax, {"a": s, "b": jnp.sin}), "a"),
    "at": Place(lambda s: ep.at((), s), "stage"),
    "repeat": Place(lambda s: ep.repeat(lambda key: s, 3, key=KEY), "0"),
    "shared": Place(lambda s: ep.repeat(s, 3, shared=True), "stage"),
    "ensemble": Place(lambda s: ep.ensemble(lambda key: s, 3, key=KEY), "0"),
    "residual": Place(lambda s: ep.residual(jnp.sin, s), "1"),
    "batched": Place(lambda s: ep.batched(s), "stage"),
    "scan": Place(lambda s: ep.scan(s, X), "cell", carry_on, several=True),
    "init": Place(lambda s: ep.scan(carry_on, s), "init"),
    "graph": Place(lambda s: ep.graph({"a": s}, {"a": []}, "a"), "a", several=True),
    "feed": Place(
        lambda s: ep.chain(lambda x: {"x": x}, ep.feed(s, "x")), "1.stage", several=True
    ),
    "precision": Place(lambda s: ep.precision(ep.chain(s), "float32"), "stage.0"),
    "outputs": Place(lambda s: ep.outputs(ep.chain(s)), "stage.0"),
}
INSIDE = {  # of a loop or a branch, where keys are traced
    *{"gated", "closed", "then", "otherwise", "switch"},
    *{"repeat", "shared", "ensemble", "batched", "scan"},
}


class Probe(eqx.Module):
    """Notes the keys with which it is called, and fails if it is to."""

    seen: list = eqx.field(static=True)
    gives: Callable = eqx.field(static=True)
    fails: bool = False

    def __call__(self, *inputs, key=None):
        self.seen.append(key)
        if self.fails:
            raise ValueError("boom")
        return self.gives(*inputs)


def probed(name, fails=False):
    """Return a pipeline with a probe at a place, and the list of keys that it gets."""
    place, seen = PLACES[name], []
    return place.make(Probe(seen, place.gives, fails)), seen


each_place = pytest.mark.parametrize("name", PLACES)


@each_place
def test_a_stage_runs_once_for_each_trace(name):
    pipe, seen = probed(name)
    jax.eval_shape(pipe, X)
    assert len(seen) == 1


CALLS = {
    "plain": lambda pipe, x: pipe(x),
    "jit": lambda pipe, x: eqx.filter_jit(pipe).lower(x),
    "vmap": lambda pipe, x: jax.vmap(pipe)(x[None]),
    "grad": lambda pipe, x: jax.grad(lambda x: jnp.sum(jnp.hstack(pipe(x))))(x),
    "outputs": lambda pipe, x: ep.outputs(pipe)(x)[1],
}


@each_place
def test_a_failing_stage_runs_once_and_is_named(name):
    call = list(CALLS)[list(PLACES).index(name) % len(CALLS)]
    pipe, seen = probed(name, fails=True)
    with pytest.raises(ValueError, match="boom") as caught:
        CALLS[call](ep.chain(whole=pipe), X)
    assert len(seen) == 1
    path = f"{'stage.' * (call == 'outputs')}whole.{PLACES[name].path}"
    ours = [note for note in caught.value.__notes__ if "eqx_pipe" in note]
    assert ours == [f"In eqx_pipe stage `{path}`"]


@pytest.mark.parametrize("name", [n for n in PLACES if n not in {*INSIDE, "outputs"}])
def test_a_stage_draws_from_the_key_folded_with_its_path(name):
    pipe, seen = probed(name)
    pipe(X, key=KEY)
    key = KEY
    for segment in PLACES[name].path.split("."):
        key = child_key(key, int(segment) if segment.isdigit() else segment)
    assert seen == [key]


@each_place
def test_a_missing_key_is_located(name):
    place = PLACES[name]

    def draws(*inputs, key):
        return place.gives(*inputs) if jr.normal(key) is not None else None

    pipe = ep.chain(eqx.nn.Sequential([ep.chain(whole=place.make(draws))]))
    for call in (pipe, eqx.filter_jit(pipe)):
        with pytest.raises(ep.MissingKeyError, match="key=jax.random.key") as caught:
            call(X)
        assert caught.value.path == f"0.whole.{place.path}"


class Counting(eqx.nn.StatefulLayer):
    """Counts its calls in its state."""

    calls: eqx.nn.StateIndex
    gives: Callable = eqx.field(static=True)

    def __init__(self, gives):
        self.calls, self.gives = eqx.nn.StateIndex(jnp.int32(0)), gives

    def __call__(self, *args, key=None):
        *inputs, state = args
        state = state.set(self.calls, state.get(self.calls) + 1)
        return self.gives(*inputs), state


NOT_ONCE = {"otherwise": 0, "repeat": [1, 1, 1], "ensemble": [1, 1, 1], "shared": 3}


@each_place
def test_state_is_handed_through(name):
    def make():
        others = Counting(lambda x: x), Counting(lambda x: x)
        whole = PLACES[name].make(Counting(PLACES[name].gives))
        return ep.chain(others[0], whole, lambda y: X, others[1])

    pipe, state = eqx.nn.make_with_state(make)()
    once = np.asarray(NOT_ONCE.get(name, 2 if name == "scan" else 1))
    for calls, call in enumerate((pipe, eqx.filter_jit(pipe)), 1):
        _, state = call(X, state)
        found = [v.tolist() for v in jax.tree.leaves(state)]
        assert found == [calls, (calls * once).tolist(), calls]


@each_place
def test_hidden_parameters_are_refused(name):
    with pytest.raises(ValueError, match=r"hides the parameters.*batched\(layer\)"):
        PLACES[name].make(jax.vmap(LAYER))


@pytest.mark.parametrize("name", [name for name, p in PLACES.items() if not p.several])
def test_what_takes_two_inputs_is_refused(name):
    for stage in (GRU, jnp.add, lambda a, b: a):
        with pytest.raises(
            TypeError, match="the tuple of outputs|of several inputs a node"
        ):
            PLACES[name].make(stage)


@each_place
def test_another_stage_is_put_there(name):
    pipe, path = ep.chain(whole=probed(name)[0]), f"whole.{PLACES[name].path}"
    if name in ("repeat", "ensemble"):  # whose stages are alike
        with pytest.raises(ep.StructureError, match="differ: .*may differ"):
            pipe.replace({path: jnp.sin})
        return
    if name == "scan":
        assert pipe.replace({path: jnp.add})["whole"].cell.fn is jnp.add
        return
    below = pipe.replace({path: ep.chain(q=jnp.sin)}).replace({f"{path}.q": jnp.cos})
    leaves = jax.tree.leaves(below)
    assert jnp.cos in leaves and pipe.replace({path: jnp.tan}) != pipe
    assert not any(isinstance(leaf, Probe) for leaf in leaves)


MESH = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
ELSEWHERE = {
    "on": lambda f: ep.sharding.on(MESH, f),
    "pipe": lambda f: ep.data.Loader(records(), f, batch_size=2),
    "batch_pipe": lambda f: ep.data.Loader(records(), batch_pipe=f, batch_size=2),
}


def records():
    return ep.data.ArraySource(jnp.ones((4, 3)))


@pytest.mark.parametrize("name", ELSEWHERE)
def test_other_packages_refuse_hidden_parameters_too(name):
    with pytest.raises(ValueError, match=r"hides the parameters.*batched"):
        ELSEWHERE[name](jax.vmap(LAYER))
