"""`Cursor.from_json` of texts that somebody or something has changed."""

import json
import random

import jax.numpy as jnp
import jax.random as jr
import pytest
from support.helpers import THOROUGH

import eqx_pipe as ep

KEY = jr.key(1)
MUTATIONS = 10_000 if THOROUGH else 300


def text_of(seed=1):
    loader = ep.data.Loader(ep.data.ArraySource(jnp.arange(10)), batch_size=3)
    _, cursor = loader.next(loader.init(jr.key(seed)))
    return cursor.to_json()


def nested(depth):
    return "[" * depth + "]" * depth


HOSTILE = [
    "null",
    "true",
    "false",
    "1.0",
    "0.5",
    "-0.0",
    "NaN",
    "-Infinity",
    "1e999",
    "-1",
    "0",
    str(2**32 - 1),
    str(2**32),
    str(2**64),
    str(10**4000),
    "9" * 5000,
    '""',
    '"1"',
    '"threefry2x32"',
    '"rbg"',
    '"unsafe_rbg"',
    '"fry"',
    '"\\ud800"',
    "[]",
    "[0]",
    "[0, 1]",
    "[0, 1, 2]",
    "[0, true]",
    "[0, 1.0]",
    '["a", "b"]',
    "[[0], [1]]",
    "{}",
    '{"0": 1}',
    nested(3),
    nested(900),
    nested(100_000),
]


def changed_value(draw, text):
    """One value is another."""
    fields = json.loads(text)
    name = draw.choice(list(fields))
    marked = json.dumps({**fields, name: "MARK"})
    return marked.replace('"MARK"', draw.choice(HOSTILE))


def changed_fields(draw, text):
    """A field is missing, or there twice, or one is there that is none."""
    fields = json.loads(text)
    name = draw.choice(list(fields))
    value = fields.pop(name)
    new = draw.choice(["", name.upper(), "extra", f"{name} "])
    return json.dumps({**fields, **draw.choice([{}, {new: value}, {name: [value]}])})


def changed_characters(draw, text):
    """Characters are lost, doubled, or others."""
    characters = list(text)
    for _ in range(draw.choice([1, 1, 2, 5])):
        at = draw.randrange(len(characters))
        characters[at] = draw.choice(["", characters[at] * 2, *'0919-.eE,:[]{}" \x00é'])
    return "".join(characters)


def cut(draw, text):
    return draw.choice([text[: draw.randrange(len(text))], text + draw.choice(HOSTILE)])


def bare(draw, text):
    return draw.choice(HOSTILE)


CHANGES = [changed_value, changed_value, changed_fields, changed_characters, cut, bare]


def test_a_changed_text_is_refused_or_means_what_it_says():
    draw, texts = random.Random(0), [text_of(seed) for seed in range(3)]
    refused = 0
    for _ in range(MUTATIONS):
        text = draw.choice(CHANGES)(draw, draw.choice(texts))
        try:
            cursor = ep.data.Cursor.from_json(text)
        except ValueError as error:
            refused += 1
            said = str(error)
            assert said.endswith("Give what `to_json` returned.") and len(said) < 400
            assert said.count("which") + said.count("whose") == 1
        else:
            assert json.loads(cursor.to_json()) == json.loads(text)
    assert 0.7 * MUTATIONS < refused < MUTATIONS


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", r"which is no JSON \(Expecting value"),
        ("[1, 2]", "which is no JSON object"),
        (b"\xff\xff", "which is no JSON"),
        (None, "which is no JSON"),
        (nested(100_000), "which is nested too deeply"),
        ('{"eqx_pipe.Cursor": 1, "key": [0, 1]}', "which has no field `kind`"),
    ],
)
def test_what_is_wrong_with_a_text(text, wrong, unchecked):
    with pytest.raises(ValueError, match=f"{wrong}.*Give what `to_json` returned"):
        ep.data.Cursor.from_json(text)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ({"eqx_pipe.Cursor": 2}, "whose format is 2, and 1 is known"),
        ({"eqx_pipe.Cursor": True}, "whose format is True"),
        ({"epochs": 1}, "whose field 'epochs' is unknown"),
        ({"epoch": 2**32}, "whose `epoch` is 4294967296, no integer of 0 to"),
        ({"epoch": 1.0}, "whose `epoch` is 1.0, no integer"),
        ({"epoch": [[]]}, "whose `epoch` is a list of 1, no integer"),
        ({"position": 11}, "whose `position` is 11, no integer of 0 to 10"),
        ({"records": 10**400}, r"whose `records` is 10{36}\.\.\., no integer"),
        ({"key": {"0": 1}}, "whose `key` is a dict of 1, no list of integers"),
        ({"key": [0, True]}, r"whose `key\[1\]` is True, no integer"),
        ({"key": [0]}, "whose `key` has 1 words, and 2 are one of kind `threefry"),
        ({"kind": ["rbg"]}, "whose `kind` is a list of 1, no kind of key"),
        ({"kind": "rbg", "key": [0] * 4}, "whose `kind` is 'rbg', no kind of key"),
    ],
)
def test_what_is_wrong_with_a_field(field, wrong):
    text = json.dumps({**json.loads(text_of()), **field})
    with pytest.raises(ValueError, match=wrong):
        ep.data.Cursor.from_json(text)
