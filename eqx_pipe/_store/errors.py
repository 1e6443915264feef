"""What was raised at points that failed: a log for each process, beside the ledger.

A line belongs to one version of a chunk in the ledger, and is written before it: so
where the ledger says that rows have failed, the text is there. What a kill or a full
disk left of a line counts for nothing, and of two lines the later one counts.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool

from .ledger import LEDGER, Ledger

ERRORS = ".errors"
"""The folder in a store for these logs; it is numbered as the ledger's."""

Spans: TypeAlias = Mapping[str, list[list[int]]]
"""What was raised, and at which points: ranges, from each to the one behind."""


def folder_of(ledger: Ledger) -> Path:
    """The folder of the logs that belong to a ledger."""
    name = ledger.folder.name.replace(LEDGER, ERRORS, 1)
    return ledger.folder.with_name(name)


def mask_of(spans: list[list[int]], count: int) -> Bool[np.ndarray, " rows"]:
    """Which of some rows are in ranges."""
    found = np.zeros(count, bool)
    for a, b in spans:
        found[a:b] = True
    return found


def note_errors(ledger: Ledger, number: int, errors: Spans) -> None:
    """Says what was raised in a chunk that will be noted in the ledger next.

    Points are counted from the first one of the chunk.
    """
    line = {"chunk": number, "version": ledger.next_version(number), "errors": errors}
    folder = folder_of(ledger)
    folder.mkdir(exist_ok=True)
    with open(folder / ledger.writer, "ab") as log:
        # Begun on a line of its own, whatever a kill has left at the end.
        log.write(b"\n" + json.dumps(line).encode() + b"\n")


def errors_of(ledger: Ledger) -> Iterator[tuple[int, Spans]]:
    """For each chunk in which points have failed what was raised there, if known."""
    found: dict[tuple[int, int], Spans] = {}
    folder = folder_of(ledger)
    logs = sorted(folder.iterdir()) if ledger.failed and folder.is_dir() else []
    for log in logs:
        for line in log.read_bytes().split(b"\n"):
            if line:
                found.update(_entry(line))
    for number in sorted(ledger.failed):
        yield number, found.get((number, int(ledger.versions[number])), {})


def _entry(line: bytes) -> dict[tuple[int, int], Spans]:
    """What a line says; nothing if it is not whole."""
    try:
        said = json.loads(line)
        errors = {
            str(t): [[int(a), int(b)] for a, b in x] for t, x in said["errors"].items()
        }
        return {(int(said["chunk"]), int(said["version"])): errors}
    # A line that was cut off may still be JSON, of another form.
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
