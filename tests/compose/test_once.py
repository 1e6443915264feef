"""A stage runs once also if it fails, and its error names the likely cause."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import pytest
from equinox import nn

import eqx_pipe as ep


def positive(x):
    return x.sum() > 0


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
}


@pytest.fixture(params=["off", "tracebackhide", "remove_frames"])
def filtered(request):
    """Try each way in which JAX may cut tracebacks."""
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


def failing(message):
    def fn(x, key=None):
        raise ValueError(message)

    return fn


def about_another_key(x, key=None):
    return (lambda name: failing("there is no key of that name")(name))("a")


OTHER = [
    failing("there is no key 'mask' in the input"),
    failing("key and value must have equal lengths"),
    about_another_key,
    lambda x, key=None: x + None,
    lambda x, key=None: {}["a key"],
    lambda x: x + jr.normal(None, x.shape),
    lambda x, key=None: jr.normal("seed", x.shape),
]


@pytest.mark.parametrize("fn", OTHER)
def test_another_error_without_a_key_passes_untouched(fn):
    with pytest.raises((TypeError, KeyError, ValueError)) as caught:
        ep.chain(a=ep.chain(fn))(jnp.ones(2))
    assert not isinstance(caught.value, ep.MissingKeyError)
    assert caught.value.__notes__ == ["In eqx_pipe stage `a.0`"]


def test_a_state_of_another_pipeline():
    def norm():
        return ep.batched(nn.BatchNorm(4, axis_name="b", mode="batch"), axis_name="b")

    other, state = nn.make_with_state(lambda: ep.chain(a=ep.chain(norm())))()
    for pipe, given in [(ep.chain(b=norm()), state), (other[:1], nn.State(norm()))]:
        with pytest.raises(ValueError, match="make_with_state") as caught:
            pipe(jnp.ones((7, 4)), given)
        assert "made for another pipeline" in str(caught.value)
        assert "object at" not in str(caught.value)


def test_one_key_for_many_examples(unchecked):
    pipe, xs = ep.chain(nn.Dropout(0.5)), jnp.ones((2, 4))
    with pytest.raises(TypeError, match=r"jax\.random\.split\(key, len\(xs\)\)"):
        jax.vmap(pipe)(xs, key=jr.PRNGKey(0))
    with pytest.raises(TypeError, match=r"one key to `eqx_pipe\.batched\(pipe\)`"):
        pipe(xs, key=jr.split(jr.key(0), 2))
    assert jax.vmap(pipe)(xs, key=jr.split(jr.key(0), len(xs))).shape == (2, 4)
    assert ep.batched(pipe)(xs, key=jr.key(0)).shape == (2, 4)


def forgets(x):
    x + 1  # noqa: B018


SAME = nn.Identity()
EDGES = {"a": [], "b": ["a"], "c": ["b"]}
BLAMED = {
    "`0` returned None, which `1` rejects": lambda: ep.chain(forgets, jnp.cos),
    "`0` returned None, which `2` rejects": lambda: ep.chain(forgets, SAME, jnp.cos),
    "`a` returned None, which `b` rejects": lambda: ep.chain(
        a=forgets, b=ep.chain(jnp.cos)
    ),
    "`1.a` returned None, which `1.b`": lambda: ep.chain(
        jnp.sin, ep.residual({"a": forgets, "b": jnp.cos})
    ),
    "`a` returned None, which `c` rejects": lambda: ep.graph(
        {"a": forgets, "b": SAME, "c": jnp.cos}, EDGES, "c"
    ),
    "`1` returned None": lambda: ep.parallel(jnp.sin, forgets, merge="sum"),
    "`0` returned None": lambda: ep.weighted(forgets),
    "`0.0` returned None": lambda: ep.chain(ep.ensemble([forgets])),
}


@pytest.mark.parametrize("words", BLAMED)
def test_a_stage_without_return_is_blamed_itself(words):
    with pytest.raises(TypeError, match=f"{words}.*Return the output of"):
        BLAMED[words]()(jnp.ones(2))


def test_none_beside_an_array_is_shown():
    for pipe in (ep.repeat([forgets] * 2), ep.cond(positive, forgets, jnp.sin)):
        with pytest.raises(ep.StructureError, match=r"float32\[2\] against None"):
            pipe(jnp.ones(2))


def test_none_is_passed_to_stages_that_accept_it():
    assert ep.chain(forgets, lambda x: x is None)(1.0)
    edges = {"mask": [], "both": ["input", "mask"]}
    nodes = {"mask": forgets, "both": lambda x, mask: (x, mask)}
    assert ep.graph(nodes, edges, "both")(1.0) == (1.0, None)
    with pytest.raises(ValueError, match="boom"):
        ep.chain(fail_with_boom)(None)


def fail_with_boom(x):
    raise ValueError("boom")
