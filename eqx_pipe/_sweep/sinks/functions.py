"""The functions that a store was filled with, besides the one that it was begun with.

A function that was mended is another one. It is noted, so that the next call with it is
no surprise, and so that somebody can see later that there were several.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..._store.layout import misfit

_FILE = ".functions"
"""The file in a store, of a line of JSON for each."""

_SCHEMA = {"function": {"text": str}, "alone": {"point": str, "program": str}}


def with_noted(
    path: Path, stored: Mapping[str, Any], now: Mapping[str, Any]
) -> Mapping[str, Any]:
    """What a store says of itself, with the function of `now` if that was noted."""
    found = [stored, *_noted(path)]
    known = [each for each in found if each["function"] == now["function"]]
    return {**stored, **known[0]} if known else stored


def known_alone(path: Path, stored: Mapping[str, Any]) -> list[Mapping[str, str]]:
    """Each function that a store was filled with, whatever the lengths of the axes."""
    return [each["alone"] for each in (stored, *_noted(path))]


def note(path: Path, now: Mapping[str, Any], alone: Mapping[str, str]) -> None:
    """Notes the function of a sweep."""
    line = json.dumps({"function": now["function"], "alone": alone})
    with open(path / _FILE, "a") as file:
        # Begun on a line of its own, whatever a kill has left at the end.
        file.write(f"\n{line}\n")


def _noted(path: Path) -> list[dict[str, Any]]:
    try:
        lines = (path / _FILE).read_text(errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            each = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if misfit(each, _SCHEMA) is None:
            found.append({name: each[name] for name in _SCHEMA})
    return found
