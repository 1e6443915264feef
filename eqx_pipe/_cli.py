"""The command `eqx-pipe status`."""

import argparse
import re
import sys
import time
from collections.abc import Sequence

from ._errors import SweepError
from ._sweep.store import (
    FAILED,
    MISSING,
    Files,
    as_files,
    check_zarr,
    count_in,
    disk_errors,
    open_store,
)

_SHOWN = 5
"""The maximum number of ranges of failed points, and of error texts, to show."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="eqx-pipe", description="Inspect the store of a sweep."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    status = commands.add_parser(
        "status",
        help="what the store of a sweep has",
        description="Print how many points of a store are done, missing and failed, "
        "also while it is being filled. Reads no values.",
    )
    status.add_argument("store", help="a folder or URL that `store=` has created")
    options = parser.parse_args(argv)
    try:
        check_zarr("status")
        files = as_files("status", options.store)
        with disk_errors(files.path_of(), "be read", "status"):
            print(_status(files))
    except (ImportError, OSError, ValueError, SweepError) as error:
        # Drop the name of the function, which means nothing on the command line.
        reason = re.sub(r"^`eqx_pipe\.\w+`: ", "", str(error))
        print(f"eqx-pipe status: {reason}", file=sys.stderr)
        return 2
    return 0


def _status(files: Files) -> str:
    """Return the numbers of points done, missing and failed, and of chunks."""
    store = open_store("status", files)
    gaps, errors, done = store.account()
    size, record = store.chunks.size, store.record
    missing, failed = count_in(gaps, MISSING), count_in(gaps, FAILED)
    unit = "blocks of a reduction" if "reduce" in record else "points"
    dims = record.get("space", {}).get("dims", ", ".join(record["dims"]))
    lines = [f"{store.path}: {size:,} {unit}; {dims}"]
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
    chunks = f"{done.sum():,} of {len(done):,}"
    lines.append(f"  chunks   {chunks}, of at most {store.chunks.points:,} {unit}")
    last = max(store.listed().when, default=0)
    if last:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(last / 1e9))
        lines.append(f"  written  {when} for the last time")
    return "\n".join(lines)


def _named(first: int, stop: int) -> str:
    return f"{first}" if stop == first + 1 else f"{first} to {stop - 1}"
