"""Patterns over paths: `trainable`, `outputs`, and whatever else is chosen by path."""

import jax
import jax.numpy as jnp
import pytest

import eqx_pipe as ep

CASES = [
    ("head", "head", True),
    ("head*", "head2", True),
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


def tree_of(*paths):
    """Return nested dicts with an array at each path."""
    tree = {}
    for path in paths:
        *above, last = path.split(".")
        here = tree
        for name in above:
            here = here.setdefault(name, {})
        here[last] = jnp.zeros(2)
    return tree


@pytest.mark.parametrize("pattern, path, same", CASES)
def test_a_pattern_is_read_part_by_part(pattern, path, same):
    for tree in (tree_of(path), tree_of(f"{path}.x.y")):
        if same:
            assert jax.tree.leaves(ep.trainable(tree, pattern)) == [True]
        else:
            with pytest.raises(ValueError, match="matches no parameter"):
                ep.trainable(tree, pattern)


def test_a_pattern_of_outputs_matches_a_whole_path():
    pipe = ep.chain(head=ep.chain(weight=jnp.sin), head2=jnp.cos)
    for pattern, stages in {"head": ["head"], "head*": ["head", "head2"]}.items():
        assert list(ep.outputs(pipe, pattern)(jnp.ones(2))[1]) == stages
    assert list(ep.outputs(pipe, "*")(jnp.ones(2))[1]) == ["head", "head2"]


def test_the_last_pattern_that_matches_decides():
    tree = tree_of("a.b.c", "a.b.x", "a.d", "e")
    inner = {"b": {"c": True, "x": False}, "d": True}
    assert ep.trainable(tree, "a", "!a.b", "a.b.c") == {"a": inner, "e": False}
    assert ep.trainable(tree, "!a") == {
        "a": {"b": {"c": False, "x": False}, "d": False},
        "e": True,
    }


def test_a_pattern_that_matches_nothing_names_the_nearest():
    tree = tree_of("encoder.norm", *(f"blocks.{i}" for i in range(40)))
    with pytest.raises(ValueError, match=r"`encodr.norm` .*mean `encoder\.norm`\?"):
        ep.trainable(tree, "blocks.*", "encodr.norm")
    with pytest.raises(ValueError, match="and 35 more"):
        ep.trainable(tree, "zzz")
