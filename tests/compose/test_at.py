"""`at`: a lens on one part of a pytree."""

import collections
import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import hypothesis as hp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import pytest
from support.helpers import assert_agree, numbers
from support.strategies import one_stage

import eqx_pipe as ep
import eqx_pipe.testing as ept


class Pair(NamedTuple):
    first: Any
    second: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Registered:
    first: Any
    second: Any


class Record(eqx.Module):
    first: Any
    second: Any
    name: str = eqx.field(static=True, default="fixed")


RECORD = {
    "image": jax.ShapeDtypeStruct((2, 3), jnp.float32),
    "meta": (jax.ShapeDtypeStruct((4,), jnp.float32),),
}


def double(x):
    return 2 * x


CONTAINERS = [
    ("first", {"second": 1, "first": 2}, lambda x: x["first"]),
    ("first", collections.OrderedDict(second=1, first=2), lambda x: x["first"]),
    ("first", collections.defaultdict(list, first=2), lambda x: x["first"]),
    (7, {7: 2, 8: 1}, lambda x: x[7]),
    (1, [1, 2], lambda x: x[1]),
    (-1, (1, 2), lambda x: x[-1]),
    ("second", Pair(1, 2), lambda x: x.second),
    (1, Pair(1, 2), lambda x: x.second),
    ("first", Registered(2, 1), lambda x: x.first),
    ("first", Record(2, None), lambda x: x.first),
    (("first", 0, "a"), Record([{"a": 2, "b": "s"}], 1), lambda x: x.first[0]["a"]),
    ((("k", 1),), {("k", 1): 2}, lambda x: x["k", 1]),
    ((), 2, lambda x: x),
    (("a", 0), {"a": (2, "text"), "b": None}, lambda x: x["a"][0]),
    ("a", {"a": 2, "key": None}, lambda x: x["a"]),
]


@pytest.mark.parametrize(("where", "x", "get"), CONTAINERS)
def test_the_laws_of_a_lens(where, x, get):
    y = ep.at(where, double)(x)
    assert type(y) is type(x) and get(x) == 2 and get(y) == 4
    assert ep.at(where, lambda part: 2)(y) == x  # nothing else was touched
    assert ep.at(where, eqx.nn.Identity())(x) == x  # put what you got
    for new in (5, {"any": ("struct", None)}):
        assert get(ep.at(where, lambda part, v=new: v)(x)) == new  # get what you put
    twice = ep.chain(ep.at(where, lambda part: 5), ep.at(where, lambda part: 6))
    assert twice(x) == ep.at(where, lambda part: 6)(x)  # the last put wins
    f, g = double, lambda part: part + 1
    joined = ep.at(where, ep.chain(f, g))
    assert ep.chain(ep.at(where, f), ep.at(where, g))(x) == joined(x)


@hp.given(st.data())
def test_the_laws_hold_for_generated_stages(data):
    x = data.draw(ept.arrays(RECORD))
    f, g = (data.draw(one_stage(RECORD["image"], random=False)) for _ in range(2))
    apart = ep.chain(ep.at("image", f), ep.at("image", g))
    assert_agree(apart(x), ep.at("image", ep.chain(f, g))(x))
    swapped = ep.chain(ep.at("image", f), ep.at(("meta", 0), jnp.sin))
    other = ep.chain(ep.at(("meta", 0), jnp.sin), ep.at("image", f))
    assert_agree(swapped(x), other(x))
    assert ep.at("image", f)(x)["meta"][0] is x["meta"][0]


def test_it_works_under_transformations():
    pipe = ep.at(("meta", 0), eqx.nn.Linear(4, 4, key=jr.key(0)))
    x = numbers(RECORD, 2)
    assert_agree(eqx.filter_jit(pipe)(x), pipe(x))
    batch = jax.tree.map(lambda v: jnp.stack([v, v]), x)
    assert_agree(jax.tree.map(lambda v: v[1], jax.vmap(pipe)(batch)), pipe(x))
    grads = eqx.filter_grad(lambda p: jnp.sum(p(x)["meta"][0]))(pipe)
    assert jnp.any(grads.stage.weight != 0)


@pytest.mark.parametrize(
    ("where", "x", "words"),
    [
        (-3, (1, 2), ["`-3`", "`0`, `1`"]),
        ("name", Record(1, 2), ["`name`", "`first`, `second`"]),
        ("third", Pair(1, 2), ["`first`, `second`"]),
        (("a", 0, "c"), {"a": [{"b": 1}]}, ["`a.0.c`", "`a.0.b`"]),
        ("c", {"a": 1, "b": {"d": 2}}, ["`c`", "`a`, `b.d`"]),
    ],
)
def test_an_unknown_part_names_the_known_ones(where, x, words):
    with pytest.raises(ep.StructureError, match="at `here`") as caught:
        ep.chain(here=ep.at(where, double))(x)
    assert all(word in str(caught.value) for word in words)
