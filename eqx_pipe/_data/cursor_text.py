"""A cursor as text: what stands in it, and that each of it can be one's."""

import json
from typing import Any

import jax
import jax.random as jr

_FORMAT = 1
_NAME = "eqx_pipe.Cursor"
_BELOW = {"epoch": 2**32, "position": 2**64, "records": 2**64, "form": 2**32}
_FIELDS = ("key", "kind", *_BELOW)


def write(fields: dict[str, Any]) -> str:
    """The text of a cursor with these fields."""
    return json.dumps({_NAME: _FORMAT, **fields})


def read(text: object) -> dict[str, Any]:
    """The fields of the cursor in a text; a `ValueError` says what is wrong with it.

    Its words follow on the text, as "which has no field `epoch`" does.
    """
    found = _parsed(text)
    lacking = [name for name in (_NAME, *_FIELDS) if name not in found]
    if lacking:
        raise ValueError(f"which has no field `{lacking[0]}`")
    version = found.pop(_NAME)
    if type(version) is not int or version != _FORMAT:
        raise ValueError(f"whose format is {_shown(version)}, and {_FORMAT} is known")
    surplus = [name for name in found if name not in _FIELDS]
    if surplus:
        raise ValueError(f"whose field {_shown(surplus[0])} is unknown")
    for name, below in _BELOW.items():
        _check_whole(name, found[name], below)
    _check_whole("position", found["position"], found["records"] + 1)
    _check_key(found["key"], found["kind"])
    return found


def _parsed(text: Any) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError("which is nested too deeply") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"which is no JSON ({error})") from None
    if not isinstance(found, dict):
        raise ValueError("which is no JSON object")
    return found


def _check_whole(name: str, value: object, below: int) -> None:
    if type(value) is not int or not 0 <= value < below:
        raise ValueError(
            f"whose `{name}` is {_shown(value)}, no integer of 0 to {below - 1}"
        )


def _check_key(key: object, kind: object) -> None:
    if not isinstance(key, list):
        raise ValueError(f"whose `key` is {_shown(key)}, no list of integers")
    for i, word in enumerate(key):
        _check_whole(f"key[{i}]", word, 2**32)
    words = _words_of(kind)
    if words is None:
        raise ValueError(f"whose `kind` is {_shown(kind)}, no kind of key for a cursor")
    if len(key) != words:
        raise ValueError(
            f"whose `key` has {len(key)} words, and {words} are one of kind `{kind}`"
        )


def _words_of(kind: object) -> int | None:
    """How many words a key of that kind has; None if cursors have no such keys."""
    if not isinstance(kind, str) or "rbg" in kind:
        return None
    try:
        return jax.eval_shape(lambda: jr.key_data(jr.key(0, impl=kind))).size
    except ValueError:
        return None


def _shown(value: object) -> str:
    """A value in a few words; a nested one could be too deep for `repr`, too."""
    if isinstance(value, list | dict):
        return f"a {type(value).__name__} of {len(value)}"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
