"""The text of a cursor, and what is wrong with one that is none."""

import json
from typing import Any

import jax
import jax.random as jr

NAME = "eqx_pipe.Cursor"
FORMAT = 1
BELOW = {"epoch": 2**32, "position": 2**64, "records": 2**64, "form": 2**32}


def fields(text: Any) -> dict[str, Any]:
    """The fields of the cursor in a text; a `ValueError` says what is wrong with it.

    Its words follow on the text, as "which has no field `epoch`" does.
    """
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError("which is nested too deeply") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"which is no JSON ({error})") from None
    if not isinstance(found, dict):
        raise ValueError("which is no JSON object")
    names = (NAME, "key", "kind", *BELOW)
    for name in names:
        if name not in found:
            raise ValueError(f"which has no field `{name}`")
    for name in found:
        if name not in names:
            raise ValueError(f"whose field {_shown(name)} is unknown")
    version = found.pop(NAME)
    if type(version) is not int or version != FORMAT:
        raise ValueError(f"whose format is {_shown(version)}, and {FORMAT} is known")
    for name, below in BELOW.items():
        _check_whole(name, found[name], below)
    _check_whole("position", found["position"], found["records"] + 1)
    _check_words(found["key"], found["kind"])
    return found


def _check_whole(name: str, value: object, below: int) -> None:
    # Not `isinstance`, for which `true` is an integer too.
    if type(value) is not int or not 0 <= value < below:
        raise ValueError(
            f"whose `{name}` is {_shown(value)}, no integer of 0 to {below - 1}"
        )


def _check_words(words: object, kind: object) -> None:
    """Raises a `ValueError` unless these are the words of a key of that kind."""
    if not isinstance(words, list):
        raise ValueError(f"whose `key` is {_shown(words)}, no list of integers")
    for i, word in enumerate(words):
        _check_whole(f"key[{i}]", word, 2**32)
    try:
        if not isinstance(kind, str) or "rbg" in kind:
            raise ValueError
        count = jax.eval_shape(lambda: jr.key_data(jr.key(0, impl=kind))).size
    except ValueError:  # JAX's own too, of a kind that it does not know
        text = f"whose `kind` is {_shown(kind)}, no kind of key for a cursor"
        raise ValueError(text) from None
    if len(words) != count:
        raise ValueError(
            f"whose `key` has {len(words)} words, and {count} are one of kind `{kind}`"
        )


def _shown(value: object) -> str:
    """A value in a few words; a nested one could be too deep for `repr`, too."""
    if isinstance(value, list | dict):
        return f"a {type(value).__name__} of {len(value)}"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
