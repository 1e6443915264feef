"""`trainable`: which parameters are trained, by patterns over paths."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.helpers import arrays_by_path, few
from support.pipelines import pipelines

import eqx_pipe as ep

KEY = jr.key(0)
X = jnp.linspace(-1.0, 1.0, 3)


def linear(key, size=3):
    return eqx.nn.Linear(3, size, key=key)


def block(key):
    return ep.chain(lin=linear(key), act=jnp.tanh)


def model(seed=0, blocks=2, size=3):
    a, b, c = jr.split(jr.key(seed), 3)
    return ep.chain(
        body=linear(a),
        blocks=ep.repeat(block, blocks, key=b),
        heads=ep.parallel({"one": linear(c, size), "two": jnp.sin}, merge="dict"),
    )


def chosen(pipe, *patterns):
    """Return the paths of the trained parameters."""
    return set(arrays_by_path(eqx.filter(pipe, ep.trainable(pipe, *patterns))))


def test_the_leaves_of_a_pipeline_are_called_by_its_paths():
    assert chosen(model(), "heads") == {"heads.one.weight", "heads.one.bias"}
    assert chosen(model(), "head*.one.w*") == {"heads.one.weight"}
    assert chosen(model(), "blocks.*.lin.bias") == {"blocks.*.lin.bias"}
    everything = chosen(model())
    assert everything == chosen(model(), "**") and len(everything) == 6
    assert chosen(model(), "!body", "!**.bias") == {
        p for p in everything if "body" not in p and "bias" not in p
    }


@few
@given(st.data())
def test_each_parameter_is_either_trained_or_frozen(data):
    pipe = data.draw(pipelines(jnp.zeros(3)))
    paths = sorted(chosen(pipe))
    inexact = filter(eqx.is_inexact_array, jax.tree.leaves(pipe))
    assert len(paths) == len(list(inexact))
    if not paths:
        return
    # All below a stage right below: no pattern that splits a `repeat`.
    pattern = data.draw(st.sampled_from(paths)).partition(".")[0]
    both = chosen(pipe, pattern), chosen(pipe, "!" + pattern)
    assert both[0] | both[1] == set(paths) and not both[0] & both[1]
    trained, frozen = eqx.partition(pipe, ep.trainable(pipe, pattern))
    assert eqx.tree_equal(eqx.combine(trained, frozen), pipe)


def test_the_spec_serves_equinox_and_optax():
    pipe = model()
    spec = ep.trainable(pipe, "heads", "blocks.*.lin.weight")
    trained, frozen = eqx.partition(pipe, spec)
    params, static = eqx.partition(pipe, eqx.is_inexact_array)
    labels = jax.tree.map(lambda train: "train" if train else "keep", spec)
    two = optax.multi_transform(
        {"train": optax.sgd(0.1), "keep": optax.set_to_zero()}, lambda _: labels
    )

    @eqx.filter_jit
    def steps():
        def loss(pipe):
            return jnp.sum(pipe(X)["one"] ** 2)

        part = eqx.filter_grad(lambda t: loss(eqx.combine(t, frozen)))(trained)
        by_hand = eqx.apply_updates(pipe, jax.tree.map(lambda g: -0.1 * g, part))
        grads = jax.grad(lambda p: loss(eqx.combine(p, static)))(params)
        updates, _ = two.update(grads, two.init(params), params)
        return by_hand, eqx.apply_updates(pipe, updates)

    by_hand, updated = steps()
    assert eqx.tree_equal(updated, by_hand, rtol=1e-6)
    assert eqx.tree_equal(by_hand["body"], pipe["body"])
    moved = by_hand["blocks"].stages["lin"], pipe["blocks"].stages["lin"]
    assert not np.array_equal(moved[0].weight, moved[1].weight)
    assert np.array_equal(moved[0].bias, moved[1].bias)


def test_state_and_other_leaves_are_no_parameters():
    pipe = ep.chain(
        norm=eqx.nn.BatchNorm(3, "batch", mode="ema"),
        ints=eqx.nn.Lambda(jnp.sin),
        frozen=ep.frozen(linear(KEY)),
    )
    assert chosen(pipe) == {"norm.weight", "norm.bias"}
    assert chosen(eqx.nn.make_with_state(lambda: pipe)()[0]) == chosen(pipe)


def test_part_of_a_stack_cannot_be_trained():
    with pytest.raises(ValueError, match=r"match `blocks.1.lin.*all stages"):
        ep.trainable(model(), "blocks.1")
    assert chosen(model(), "blocks.[01]") == chosen(model(), "blocks")


def test_tied_parameters_are_called_by_the_place_that_keeps_them():
    pipe = ep.chain(one=linear(KEY), two=linear(jr.key(1)))
    tied = ep.tied(pipe, lambda p: p["two"].weight, lambda p: p["one"].weight)
    assert chosen(tied) == {"one.weight", "one.bias", "two.bias"}
    low = jax.eval_shape(ep.precision(tied, output=None), X)
    assert low.dtype == jnp.bfloat16


CASES = [
    ("head", "head", True),
    ("head", "head.weight", False),
    ("head*", "head2", True),
    ("head*", "head.weight", False),
    ("*", "a.b", False),
    ("blocks.*.attn", "blocks.3.attn", True),
    ("blocks.*.attn", "blocks.3.a.attn", False),
    ("blocks.[01]", "blocks.1", True),
    ("blocks.[01]", "blocks.2", False),
    ("blocks.?", "blocks.12", False),
    ("**.bias", "bias", True),
    ("**.bias", "a.0.bias", True),
    ("a.**.bias", "a.bias", True),
    ("a.**.bias", "a.b.c.bias", True),
    ("a.**.bias", "b.bias", False),
    ("a.**", "a.b.c", True),
    ("a.**", "ab", False),
    ("Head", "head", False),
]


def nested(path, end):
    """Return chains in chains, with a stage at the end of a path."""
    first, _, rest = path.partition(".")
    return ep.chain(**{first: nested(rest, end) if rest else end})


def matches(pattern, path):
    try:
        return path in ep.outputs(nested(path, jnp.sin), pattern)(X)[1]
    except ValueError:  # it matches no stage
        return False


@pytest.mark.parametrize("pattern, path, same", CASES)
def test_a_pattern_is_read_part_by_part(pattern, path, same):
    assert matches(pattern, path) is same
    if same:
        below = f"{path}.x.y"
        every = {f"{below}.weight", f"{below}.bias"}
        assert chosen(nested(below, linear(KEY)), pattern) == every


def test_the_last_pattern_that_matches_decides():
    layer = linear(KEY)
    b = ep.chain(c=layer, x=layer)
    pipe = ep.chain(a=ep.chain(b=b, d=layer), e=layer)
    found = chosen(pipe, "a", "!a.b", "a.b.c")
    assert {p.rpartition(".")[0] for p in found} == {"a.b.c", "a.d"}
    assert chosen(pipe, "!a") == {"e.weight", "e.bias"}


def test_a_pattern_that_matches_nothing_names_the_nearest():
    pipe = ep.chain(
        encoder=ep.chain(norm=linear(KEY)), blocks=ep.chain(*[linear(KEY)] * 40)
    )
    with pytest.raises(ValueError, match=r"`encodr.norm` .*mean `encoder\.norm`\?"):
        ep.trainable(pipe, "blocks.*", "encodr.norm")
    with pytest.raises(ValueError, match=r"and \d+ more"):
        ep.trainable(pipe, "zzz")
    assert not any("blocks.3." in path for path in chosen(pipe, "!blocks.3"))
