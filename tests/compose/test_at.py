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
import numpy as np
import pytest
from support.by_hand import child_key
from support.helpers import assert_agree, numbers
from support.stages import Count, draw
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
    (lambda x: x["a"][0], {"a": (2, "text"), "b": None}, lambda x: x["a"][0]),
    (lambda x: x.first, Record(2, 1), lambda x: x.first),
]


@pytest.mark.parametrize(("where", "x", "get"), CONTAINERS)
def test_the_part_is_changed_and_the_rest_is_not(where, x, get):
    y = ep.at(where, double)(x)
    assert type(y) is type(x) and get(x) == 2
    assert get(y) == 4
    # Putting the old part back gives the old whole: nothing else was touched.
    assert ep.at(where, lambda part: 2)(y) == x


@pytest.mark.parametrize(("where", "x", "get"), CONTAINERS)
def test_the_laws_of_a_lens(where, x, get):
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


def test_labels_keys_and_text_pass_untouched():
    x = {"image": jnp.ones(2), "label": "dog", "key": jr.key(0), "none": None}
    y = eqx.filter_jit(ep.at("image", jnp.sin))(x)
    assert y["label"] == "dog" and y["none"] is None
    assert np.array_equal(jr.key_data(y["key"]), jr.key_data(x["key"]))


def test_a_part_may_be_none_or_become_a_tree():
    assert ep.at("a", lambda part: (1, part))({"a": None}) == {"a": (1, None)}
    assert ep.at(lambda x: x["a"], lambda part: {"b": 1})({"a": None}) == {
        "a": {"b": 1}
    }


def test_it_works_under_transformations():
    pipe = ep.at(("meta", 0), eqx.nn.Linear(4, 4, key=jr.key(0)))
    x = numbers(RECORD, 2)
    assert_agree(eqx.filter_jit(pipe)(x), pipe(x))
    batch = jax.tree.map(lambda v: jnp.stack([v, v]), x)
    assert_agree(jax.tree.map(lambda v: v[1], jax.vmap(pipe)(batch)), pipe(x))
    grads = eqx.filter_grad(lambda p: jnp.sum(p(x)["meta"][0]))(pipe)
    assert jnp.any(grads.stage.weight != 0)


def test_the_child_is_called_stage():
    x, key = {"a": jnp.zeros(2)}, jr.key(0)
    pipe = ep.at("a", draw)
    expected = draw(x["a"], key=child_key(key, "stage"))
    assert_agree(pipe(x, key=key)["a"], expected)
    assert list(ep.outputs(ep.chain(pipe))(x, key=key)[1]) == ["0.stage", "0"]
    with pytest.raises(ep.MissingKeyError) as caught:
        ep.chain(pipe)(x)
    assert caught.value.path == "0.stage"


def test_state_is_threaded():
    pipe, state = eqx.nn.make_with_state(lambda: ep.at("a", Count()))()
    x = {"a": jnp.zeros(1), "b": 1}
    for calls in (1.0, 2.0):
        y, state = pipe(x, state)
        assert_agree(y, {"a": jnp.full(1, calls), "b": 1})


@pytest.mark.parametrize(
    ("where", "x", "words"),
    [
        ("imag", {"image": 1, "label": 2}, ["Did you mean `image`", "`label`"]),
        (2, (1, 2), ["`2`", "`0`, `1`"]),
        (-3, (1, 2), ["`-3`", "`0`, `1`"]),
        ("name", Record(1, 2), ["`name`", "`first`, `second`"]),
        ("third", Pair(1, 2), ["`first`, `second`"]),
        (("a", "b"), {"a": jnp.ones(2)}, ["`a.b`", "Known names: `a`"]),
        (("a", 0, "c"), {"a": [{"b": 1}]}, ["`a.0.c`", "`a.0.b`"]),
        (lambda x: x["c"], {"a": 1, "b": {"d": 2}}, ["KeyError", "`a`, `b.d`"]),
        (lambda x: x["a"] + 1, {"a": 1}, ["one part of the input unchanged"]),
        (lambda x: (x["a"], x["b"]), {"a": 1, "b": 2}, ["2 parts", "one `at` after"]),
    ],
)
def test_an_unknown_part_names_the_known_ones(where, x, words):
    pipe = ep.chain(here=ep.at(where, double))
    with pytest.raises(ep.StructureError, match="eqx_pipe.at") as caught:
        pipe(x)
    text = str(caught.value)
    assert "at `here`" in text
    assert all(word in text for word in words), text
