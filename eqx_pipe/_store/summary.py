"""What a store has, in a few lines, by its ledger alone: no value is read."""

import collections
import time
from pathlib import Path

import numpy as np

from .layout import check_record
from .store import Store, open_store

_SHOWN = 5
"""How many ranges of failed points are named."""


def summary(function: str, path: Path) -> str:
    """How many points of a store are there, missing and failed, and how it was cut."""
    store = open_store(function, path)
    check_record(function, path, store.record, {"space": {"dims": str}})
    ledger, size = store.ledger, store.chunks.size
    failures = ledger.failures()
    there = int(np.sum(ledger.runs() @ np.array([-1, 1])))
    there -= sum(int(ledger.lacks(number).sum()) for number in ledger.lacking)
    failed = int(np.sum(failures @ np.array([-1, 1])))
    reduced = "reduce" in store.record
    unit = "blocks of a reduction" if reduced else "points"
    lines = [f"{path}: {size:,} {unit}; {store.record['space']['dims']}"]
    counts = {"done": there - failed, "missing": size - there, "failed": failed}
    shown = ", ".join(_named(a, b) for a, b in failures[:_SHOWN].tolist())
    for name, count in counts.items():
        where = f"  ({shown}{', ...' if len(failures) > _SHOWN else ''})"
        behind = where if name == "failed" and count else ""
        lines.append(f"  {name:8} {count:>{len(f'{size:,}')},}  {count / size:5.1%}")
        lines[-1] += behind
    lines += _why(store)
    chunks = f"{int(ledger.done().sum()):,} of {len(store.chunks):,}"
    lines.append(f"  chunks   {chunks}, of at most {store.chunks.points:,} {unit}")
    last = max((file.stat().st_mtime for file in ledger.files()), default=None)
    if last is not None:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(last))
        lines.append(f"  written  {when} for the last time")
    return "\n".join(lines)


def _why(store: Store) -> list[str]:
    """What was raised most often, and how often."""
    counts: collections.Counter[str] = collections.Counter()
    for _, errors in store.errors():
        for text, spans in errors.items():
            counts[text] += sum(b - a for a, b in spans)
    return [f"    {n:,} times: {text}" for text, n in counts.most_common(_SHOWN)]


def _named(first: int, stop: int) -> str:
    return f"{first}" if stop == first + 1 else f"{first} to {stop - 1}"
