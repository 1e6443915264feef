"""A stage's code runs once for each call and once for each trace, also if it fails."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import pytest
from equinox import nn

import eqx_pipe as ep


class Counted(eqx.Module):
    """Counts how often it runs, and fails if it is to."""

    runs: list = eqx.field(static=True)
    fails: bool = True

    def __call__(self, x, *, key=None):
        self.runs.append(None)
        if self.fails:
            raise ValueError("boom")
        return 2 * x


def positive(x):
    return x.sum() > 0


COMBINATORS = {
    "chain": lambda s: ep.chain(s),
    "chain by name": lambda s: ep.chain(a=s),
    "parallel": lambda s: ep.parallel(s, merge="sum"),
    "the merge": lambda s: ep.parallel(jnp.sin, merge=ep.chain(lambda ys: ys[0], s)),
    "weighted": lambda s: ep.weighted(s),
    "gated": lambda s: ep.gated(s, gates=(positive,)),
    "a closed one": lambda s: ep.gated(s, gates=(positive,), merge="tuple"),
    "cond": lambda s: ep.cond(positive, s),
    "otherwise": lambda s: ep.cond(positive, eqx.nn.Identity(), s),
    "switch": lambda s: ep.switch(jnp.argmax, s, eqx.nn.Identity()),
    "at": lambda s: ep.at((), s),
    "repeat": lambda s: ep.repeat(lambda key: s, 3, key=jr.key(0)),
    "batched": lambda s: ep.batched(s),
    "graph": lambda s: ep.graph({"a": s}, {"a": []}, "a"),
}

CALLS = {
    "plain": lambda pipe, x: pipe(x),
    "jit": lambda pipe, x: eqx.filter_jit(pipe).lower(x),
    "vmap": lambda pipe, x: jax.vmap(pipe)(x[None]),
    "grad": lambda pipe, x: jax.grad(lambda x: positive(jnp.hstack(pipe(x))) * 1.0)(x),
    "outputs": lambda pipe, x: ep.outputs(pipe)(x)[1],
}


# Each combinator with one call, in turn: there are 14 and 5.
@pytest.mark.parametrize(
    ("name", "call"), list(zip(COMBINATORS, itertools.cycle(CALLS), strict=False))
)
def test_a_failing_stage_runs_once(name, call):
    runs = []
    pipe = COMBINATORS[name](Counted(runs))
    with pytest.raises(ValueError, match="boom"):
        CALLS[call](pipe, jnp.ones(2))
    assert len(runs) == 1


@pytest.mark.parametrize("name", COMBINATORS)
def test_a_stage_runs_once_for_each_trace(name):
    runs = []
    pipe = COMBINATORS[name](Counted(runs, fails=False))
    jax.eval_shape(pipe, jnp.ones(2))
    assert len(runs) == 1


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("key", [None, 0])
def test_nested_it_still_runs_once(depth, key):
    runs = []
    pipe = Counted(runs)
    for _ in range(depth):
        pipe = ep.chain(pipe)
    with pytest.raises(ValueError, match="boom") as caught:
        pipe(jnp.ones(2), key=None if key is None else jr.key(key))
    assert len(runs) == 1
    assert caught.value.__notes__ == [f"In eqx_pipe stage `{'.'.join('0' * depth)}`"]


@pytest.mark.parametrize("takes_key", [False, True])
def test_a_chain_that_refers_to_itself_ends(takes_key):
    runs = []

    def again(x):
        runs.append(None)
        return pipe(x)

    def keyed(x, key=None):
        runs.append(None)
        return pipe(x, key=key)

    pipe = ep.chain(keyed if takes_key else again)
    with pytest.raises(RecursionError):
        pipe(1.0)
    assert len(runs) < 1000


def test_a_stage_with_state_that_differs_between_examples_runs_once():
    runs = []

    class Last(nn.StatefulLayer):
        last: nn.StateIndex

        def __init__(self):
            self.last = nn.StateIndex(jnp.zeros(()))

        def __call__(self, x, state, *, key=None):
            runs.append(None)
            return x, state.set(self.last, x)

    pipe, state = nn.make_with_state(lambda: ep.batched(Last()))()
    with pytest.raises(ValueError, match="all examples share one state"):
        pipe(jnp.ones(2), state)
    assert len(runs) == 1


@pytest.mark.parametrize("sweep", [ep.sweep, ep.vmap_space])
def test_a_failing_function_of_points_runs_once(sweep):
    runs = []

    def fn(x, key=None):
        runs.append(None)
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        sweep(fn, ep.Linspace(0.0, 1.0, 2))
    assert len(runs) == 1


def test_a_failing_axis_runs_once():
    runs = []

    class Broken(ep.Axis):
        dim: str | None = None

        def __len__(self):
            return 2

        def value(self, i, key):
            runs.append(None)
            raise ValueError("boom")

    space = ep.Space(Broken())
    with pytest.raises(ValueError, match="boom"):
        space.point(0)
    assert len(runs) == 1


def draws(x, key=None):
    return x + jr.normal(key, x.shape)


def splits(x, key):
    one, _ = jr.split(key)
    return draws(x, one)


WANT = {
    "Dropout": nn.Dropout(0.5),
    "inside a layer": nn.Sequential([nn.Lambda(jnp.sin), nn.Dropout(0.5)]),
    "attention": ep.batched(
        ep.graph(
            {"a": nn.MultiheadAttention(1, 2, dropout_p=0.5, key=jr.key(0))},
            {"a": ["input"] * 3},
            "a",
        )
    ),
    "draws": draws,
    "splits": splits,
    "folds": lambda x, key: jr.fold_in(key, 1),
    "clones": lambda x, key: jr.clone(key),
    "jit": eqx.filter_jit(draws),
    "vmap inside": lambda x, key: jax.vmap(lambda row: draws(row, key))(x),
    "scan inside": lambda x, key: jax.lax.scan(
        lambda c, _: (draws(c, key), 0), x, length=2
    ),
    "repeat": ep.repeat(lambda key: nn.Dropout(0.5), 2, key=jr.key(0)),
    "batched": ep.batched(draws),
    "cond": ep.cond(positive, draws),
}


@pytest.fixture(params=["off", "tracebackhide", "remove_frames"])
def filtered(request):
    """Each way in which JAX may cut tracebacks."""
    before = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", request.param)
    yield
    jax.config.update("jax_traceback_filtering", before)


@pytest.mark.parametrize("name", WANT)
def test_a_missing_key_is_told_from_the_error(name, filtered):
    pipe = ep.chain(a=WANT[name])
    for call in (pipe, eqx.filter_jit(pipe)):
        with pytest.raises(ep.MissingKeyError, match=r"`a.*`key=jax.random.key\(0\)`"):
            call(jnp.ones((2, 3, 2)))


def about_none(x, key=None):
    return x + None


def about_a_dictionary(x, key=None):
    return {}["a key"]


def about_another_key(x, key=None):
    def find(name):
        raise ValueError("there is no key of that name")

    return find("a")


def about_the_input(x, key=None):
    raise ValueError("there is no key 'mask' in the input")


def about_attention(x, key=None):
    raise ValueError("key and value must have equal lengths")


def of_its_own(x):
    return x + jr.normal(None, x.shape)


def of_another_type(x, key=None):
    return jr.normal("seed", x.shape)


OTHER = [
    about_the_input,
    about_none,
    about_a_dictionary,
    about_another_key,
    about_attention,
    of_its_own,
    of_another_type,
]


@pytest.mark.parametrize("fn", OTHER)
def test_another_error_without_a_key_passes_untouched(fn):
    with pytest.raises((TypeError, KeyError, ValueError)) as caught:
        ep.chain(a=ep.chain(fn))(jnp.ones(2))
    assert not isinstance(caught.value, ep.MissingKeyError)
    assert caught.value.__notes__ == ["In eqx_pipe stage `a.0`"]
