"""Every mistake of `mistakes` is answered by a message that says what to do."""

import dataclasses
import functools as ft
import re

import pytest

import eqx_pipe as ep
from mistakes import ROOMS


@pytest.fixture(autouse=True)
def _our_own_checks_answer(unchecked):
    pass


@dataclasses.dataclass(frozen=True)
class Mistake:
    name: str
    make: object
    error: type[Exception]
    cure: str


MISTAKES = [
    Mistake(f"{r}: {n}", *rest) for r, rows in ROOMS.items() for n, *rest in rows
]

# These errors name a stage or a type, not a function of ours, or are JAX's with a note.
UNNAMED = {
    "chain: no key",
    "chain: a state lost",
    "chain: hash",
    "sweep: no key",
    "sweep: one static value",
    "sweep: vmap one static value",
    "sweep: a hidden need of a key",
    "sweep: vmap key",
    "sources: record 5",
    "others: a carry that changes",
    "others: no boolean",
}


def message_of(error):
    return str(error.args[0]) if isinstance(error, KeyError) else str(error)


def text_of(error):
    """What a user sees: the message, and the notes below it."""
    return "\n".join([message_of(error), *getattr(error, "__notes__", [])])


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: m.name)
def test_the_message_names_the_function_and_says_what_to_do(mistake):
    with pytest.raises(mistake.error) as caught:
        mistake.make()
    text = text_of(caught.value)
    assert re.search(f"(?s){mistake.cure}", text), text
    if mistake.name not in UNNAMED:
        check_message(message_of(caught.value))


def check_message(text):
    """Raise unless the message begins with a public function and ends with a cure."""
    # Perhaps a method of what the function gives: `draw(...).save`.
    found = re.match(r"`eqx_pipe\.([\w.]+)(?:\(\.\.\.\)\.\w+)?`: ", text)
    assert found, text
    ft.reduce(getattr, found[1].split("."), ep)  # it exists
    _, *cure = re.split(r"[.?]\s|\n(?=[A-Z])", text[found.end() :], maxsplit=1)
    assert cure and re.search(r"[.)]$", cure[0]), text


def test_no_two_rows_have_one_name():
    names = [mistake.name for mistake in MISTAKES]
    assert len(set(names)) == len(names) >= 150
