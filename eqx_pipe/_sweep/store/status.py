"""The status of a store as a few lines of text, without reading values."""

import time

import numpy as np

from .disk import Folder
from .ranges import FAILED, MISSING, count_in
from .store import Store, open_store

_SHOWN = 5
"""The maximum number of ranges of failed points, and of error texts, to show."""


def status_text(function: str, files: Folder) -> str:
    """Return the numbers of points done, missing and failed, and of chunks."""
    store = open_store(function, files)
    gaps, errors, done = store.account()
    size = store.chunks.size
    missing, failed = count_in(gaps, MISSING), count_in(gaps, FAILED)
    unit = "blocks of a reduction" if "reduce" in store.record else "points"
    lines = [f"{store.path}: {size:,} {unit}; {_dims(store)}"]
    counts = {"done": size - missing - failed, "missing": missing, "failed": failed}
    for name, count in counts.items():
        share = count / size if size else 0.0
        lines.append(f"  {name:8} {count:>{len(f'{size:,}')},}  {share:5.1%}")
    if failed:
        ranges = gaps[gaps[:, 2] == FAILED][:, :2].tolist()
        shown = ", ".join(_named(*pair) for pair in ranges[:_SHOWN])
        lines[-1] += f"  ({shown}{', ...' if len(ranges) > _SHOWN else ''})"
    often = sorted(errors.items(), key=lambda item: -len(item[1]))
    lines += [f"    {len(at):,} times: {text}" for text, at in often[:_SHOWN]]
    chunks = f"{int(np.sum(done)):,} of {len(store.chunks):,}"
    lines.append(f"  chunks   {chunks}, of at most {store.chunks.points:,} {unit}")
    last = max(store.written(), default=0)
    if last:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(last / 1e9))
        lines.append(f"  written  {when} for the last time")
    return "\n".join(lines)


def _dims(store: Store) -> str:
    return store.record.get("space", {}).get("dims", ", ".join(store.record["dims"]))


def _named(first: int, stop: int) -> str:
    return f"{first}" if stop == first + 1 else f"{first} to {stop - 1}"
