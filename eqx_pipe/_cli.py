"""The command `eqx-pipe`: `status`, `verify`, `repair`, `show` and `tensorboard`."""

import argparse
import contextlib
import re
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from ._errors import SweepError
from ._show import Page, export, server_of
from ._sweep.store import (
    FAILED,
    MISSING,
    Store,
    as_files,
    check_zarr,
    count_in,
    disk_errors,
    locked,
    open_store,
)

_SHOWN = 5
"""The maximum number of ranges of failed points, and of error texts, to show."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="eqx-pipe", description="Inspect the stores of sweeps."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (_, text) in _COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("store", help="a folder or URL that `store=` created")
    _add_views(commands)
    options = parser.parse_args(argv)
    name = options.command
    try:
        if name not in _COMMANDS:
            print(options.run(options))
            return 0
        run, _ = _COMMANDS[name]
        check_zarr(name)
        files = as_files(name, options.store)
        with disk_errors(files.path_of(), "be read", name):
            text, code = run(open_store(name, files))
    except (ImportError, OSError, ValueError, SweepError) as error:
        print(f"eqx-pipe {name}: {_plain(str(error))}", file=sys.stderr)
        return 2
    print(text)
    return code


def _plain(text: str) -> str:
    """Drop the name of the function, which means nothing on the command line."""
    return re.sub(r"^`eqx_pipe\.\w+`: ", "", text)


def _status(store: Store) -> tuple[str, int]:
    """Return the numbers of points done, missing and failed, and of chunks."""
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
    return "\n".join(lines), 0


def _verify(store: Store, mend: bool = False) -> tuple[str, int]:
    """Read all files; return those that are damaged, and 1 if there are any.

    With `mend`, damaged chunks become missing, and do not count.
    """
    damage = []
    for name in store.record["coordinates"]:
        try:
            store.coordinate(name)
        except OSError as error:
            damage.append(str(error))
    left, numbers = len(damage), np.flatnonzero(store.listed().done).tolist()
    with ThreadPoolExecutor() as pool:
        for number, text in zip(numbers, pool.map(store.damage, numbers), strict=True):
            if text is not None:
                damage.append(text)
                if mend:
                    store.discard(number)
    chunks = f"{len(numbers):,} of {len(store.chunks):,} chunks"
    damage.append(f"{store.path}: {chunks}, {len(damage):,} damaged files")
    if not mend:
        left = len(damage) - 1
    elif len(damage) - 1 > left:
        text = f"{len(damage) - 1 - left:,} chunks are now missing"
        damage.append(f"{text}: call the same sweep again, which computes them.")
    return "\n".join(map(_plain, damage)), int(left > 0)


def _repair(store: Store) -> tuple[str, int]:
    """Make damaged chunks missing; return 1 if other files are damaged."""
    with locked(store.files, None):
        return _verify(store, mend=True)


def _add_views(commands: Any) -> None:
    """Add the commands that show metrics."""
    text = (
        "Serve a page over the store of a sweep, a search or trainings, also while it "
    )
    text += "is being filled, or over two of them; or write it as one file."
    show = commands.add_parser("show", help=text, description=text)
    show.add_argument("store", help="a folder or URL that `store=` created")
    show.add_argument(
        "after", nargs="?", help="a second one, to compare with the first"
    )
    show.add_argument("--port", type=int, default=0, help="by default a free one")
    show.add_argument("--out", metavar="FILE", help="write the page to a file instead")
    show.set_defaults(run=_show)
    text = (
        "Write the curves of a store as TensorBoard's event files: bands, and the best."
    )
    events = commands.add_parser("tensorboard", help=text, description=text)
    events.add_argument("store", help="a folder or URL that `store=` created")
    events.add_argument("folder", help="where to write, a folder for each run")
    few = events.add_mutually_exclusive_group()
    few.add_argument(
        "--top", type=int, default=5, help="how many of the best; default 5"
    )
    few.add_argument(
        "--all", action="store_true", help="all points in place of the best"
    )
    events.set_defaults(
        run=lambda o: export(o.store, o.folder, None if o.all else o.top, o.by, o.mode)
    )
    for command in (show, events):
        command.add_argument("--by", default="", help="the metric that is compared")
        command.add_argument("--mode", default="", choices=["min", "max"])


def _show(options: argparse.Namespace) -> str:
    """Write the page, or serve it until Ctrl-C."""
    stores = options.store, *([options.after] if options.after else [])
    page = Page("show", *stores, by=options.by, mode=options.mode)
    if options.out:
        Path(options.out).write_text(page.html, "utf-8")
        return f"{page.path}: {options.out}"
    server, url = server_of(page, options.port)
    port = server.server_port
    print(f"{page.path}: {url}\nFrom another machine: ", end="")
    print(f"ssh -L {port}:localhost:{port} HOST", flush=True)
    with contextlib.suppress(KeyboardInterrupt), server:
        server.serve_forever()
    return ""


def _named(first: int, stop: int) -> str:
    return f"{first}" if stop == first + 1 else f"{first} to {stop - 1}"


_COMMANDS: dict[str, tuple[Callable[[Store], tuple[str, int]], str]] = {
    "status": (
        _status,
        "Print how many points of a store are done, missing and failed, also while it "
        "is being filled. Reads no values.",
    ),
    "verify": (
        _verify,
        "Read all values of a store, and print the files that are damaged. The exit "
        "status is 1 if there are any.",
    ),
    "repair": (
        _repair,
        "Make damaged chunks of a store missing, so that the same sweep computes their "
        "points again.",
    ),
}
