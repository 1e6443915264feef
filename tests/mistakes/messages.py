"""Parts of error messages, and examples of strategies, which raise when drawn."""

import functools as ft
import re

import hypothesis as hp

import eqx_pipe as ep


def find_public(name):
    """Return the object that users call `eqx_pipe.<name>`."""
    return ft.reduce(getattr, name.split("."), ep)


def check_message(text):
    """Raise unless the message begins with a public function and ends with a cure."""
    found = re.match(r"`eqx_pipe\.([\w.]+)(: order_by)?`: ", text)
    assert found, text
    find_public(found[1])
    _, *cure = re.split(r"[.?]\s|\n(?=[A-Z])", text[found.end() :], maxsplit=1)
    assert cure and re.search(r"[.)]$", cure[0]), text


def example(strategy):
    """Draw one example."""

    @hp.settings(max_examples=1, database=None)
    @hp.given(strategy)
    def run(value):
        pass

    run()
