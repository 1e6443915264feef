"""Rules: which mesh axis a logical axis is split over."""

import hypothesis.strategies as st
import jax
import pytest
from hypothesis import given
from jax.sharding import PartitionSpec as P

import eqx_pipe as ep

PAIRS = [
    ("batch", "data"),
    ("hidden", "model"),
    ("input", "model"),
    ("input", None),
    ("tokens", ("data", "model")),
    ("tokens", None),
]
RULES = ep.sharding.AxisRules(PAIRS)
NAMES = ("batch", "hidden", "input", "tokens")


def mesh():
    kind = (jax.sharding.AxisType.Auto,) * 2
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=kind)


@given(st.lists(st.sampled_from(NAMES), unique=True), st.randoms())
def test_no_mesh_axis_is_used_twice_and_order_does_not_matter(names, random):
    spec = RULES.spec(*names)
    flat = [a for e in spec for a in (e if isinstance(e, tuple) else (e,)) if a]
    assert len(set(flat)) == len(flat)
    found = dict(zip(names, spec, strict=True))
    random.shuffle(names)
    assert dict(zip(names, RULES.spec(*names), strict=True)) == found


@pytest.mark.parametrize(
    "logical, spec",
    [
        ((), P()),
        (("batch",), P("data")),
        (("batch", None, "hidden"), P("data", None, "model")),
        (("hidden", "input"), P("model", None)),
        (("input", "hidden"), P(None, "model")),
        (("tokens",), P(("data", "model"))),
        (("tokens", "batch"), P(None, "data")),
        ((("batch", "hidden"), "input"), P(("data", "model"), None)),
    ],
)
def test_pairs_are_tried_in_order(logical, spec):
    assert RULES.spec(*logical) == spec


def test_rules_are_values():
    same = ep.sharding.AxisRules({"a": "x", "b": ("x", "y"), "c": None})
    assert same == ep.sharding.AxisRules([("a", "x"), ["b", ["x", "y"]], ("c", None)])
    assert same == ep.sharding.AxisRules(same)
    assert hash(same) == hash(ep.sharding.AxisRules(same))
    assert same != ep.sharding.AxisRules({"a": "x"})
    assert not jax.tree.leaves(same)
