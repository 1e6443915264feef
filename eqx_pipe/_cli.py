"""The command `eqx-pipe`: `status`, `verify`, `repair`, `show` and `tensorboard`."""

import argparse
import collections
import contextlib
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from ._errors import SweepError
from ._search import rounds_in
from ._show import Page, export, server_of
from ._store import (
    FAILED,
    MISSING,
    Files,
    Store,
    as_files,
    check_zarr,
    count_in,
    disk_errors,
    locked,
    open_store,
)
from ._train import CHECKPOINTS, TrainResult, damage

_Command = Callable[[argparse.Namespace], tuple[str, int]]
_OfChunks = Callable[[Sequence[Store], Files], tuple[str, int]]
_OfCheckpoints = Callable[[Files], tuple[str, int]]

_SHOWN = 5
"""The maximum number of ranges of failed points, and of error texts, to show."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="eqx-pipe", description="Inspect stores of sweeps, searches and trainings."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (run, text) in _COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("store", help="a folder or URL that `store=` created")
        command.set_defaults(run=run)
        if run is _show:
            command.add_argument("after", nargs="?", help="a second one, to compare")
            command.add_argument("--port", type=int, default=0, help="else a free one")
            command.add_argument("--out", metavar="FILE", help="write the page instead")
        if run is _tensorboard:
            command.add_argument("folder", help="where to write, a folder for each run")
            few = command.add_mutually_exclusive_group()
            few.add_argument("--top", type=int, default=5, help="how many of the best")
            few.add_argument("--all", action="store_true", help="all, not the best")
        if run in (_show, _tensorboard):
            command.add_argument("--by", default="", help="the metric that is compared")
            command.add_argument("--mode", default="", choices=["min", "max"])
    options = parser.parse_args(argv)
    try:
        text, code = options.run(options)
    except (ImportError, OSError, OverflowError, ValueError, SweepError) as error:
        print(f"eqx-pipe {options.command}: {_plain(str(error))}", file=sys.stderr)
        return 2
    print(text)
    return code


def _of_store(of_chunks: _OfChunks, of_checkpoints: _OfCheckpoints) -> _Command:
    """Return a command for stores of chunks, and for those of trainings."""

    def run(options: argparse.Namespace) -> tuple[str, int]:
        name = options.command
        check_zarr(name)
        files = as_files(name, options.store)
        with disk_errors(files.path_of(), "be read", name):
            if CHECKPOINTS & files.names():
                return of_checkpoints(files)
            rounds = rounds_in(name, files) or [files]
            return of_chunks([open_store(name, each) for each in rounds], files)

    return run


def _plain(text: str) -> str:
    """Drop the name of the function, which means nothing on the command line."""
    return re.sub(r"^`eqx_pipe\.[\w.]+`: ", "", text)


def _status(stores: Sequence[Store], files: Files) -> tuple[str, int]:
    """Return the numbers of points done, missing and failed, and of chunks."""
    accounts, last = [store.account() for store in stores], stores[-1]
    size, record = sum(store.chunks.size for store in stores), last.record
    kinds = MISSING, FAILED
    missing, failed = (sum(count_in(x.gaps, k) for x in accounts) for k in kinds)
    unit = "blocks of a reduction" if "reduce" in record else "points"
    of = record.get("space", {}).get("dims", ", ".join(record["dims"]))
    if last.files is not files:  # of a search
        goal = last.root["attributes"]
        of = f"{len(stores):,} of {goal.get('rounds')} rounds"
        of += f"; {goal.get('mode')} of {goal.get('by', 'a number')}"
    counts = {"done": size - missing - failed, "missing": missing, "failed": failed}
    gaps = accounts[0].gaps if len(stores) == 1 else np.zeros((0, 3), int)
    texts = collections.Counter[str]()
    for each in accounts:
        texts.update({text: len(at) for text, at in each.errors.items()})
    done = np.concatenate([each.done for each in accounts])
    most = max(store.chunks.points for store in stores)
    chunks = f"{done.sum():,} of {len(done):,}, of at most {most:,} {unit}"
    when = max(max(store.listed().when, default=0) for store in stores) / 1e9
    title = [f"{files.path_of()}: {size:,} {unit}; {of}"]
    failures = gaps[gaps[:, 2] == FAILED][:, :2].tolist(), texts
    return _shown(title, counts, *failures, [f"  chunks   {chunks}"], when), 0


def _train_status(files: Files) -> tuple[str, int]:
    """Return the number of steps, and of trainings that are active, stopped, failed."""
    result = TrainResult.load(files)
    curves, goal = result.curves, dict(result.curves.made)
    dims = ", ".join(f"{name}: {n}" for name, n in curves.space.dims.items())
    title = [f"{files.path_of()}: {len(curves):,} trainings; {dims}"]
    of = f"; {goal.get('mode')} of {goal['by']}" if "by" in goal else ""
    title.append(f"  step     {result.step:,} of {goal.get('steps')}{of}")
    counts = {"active": int(result.active.sum()), "stopped": 0}
    counts["failed"] = len(result.errors)
    counts["stopped"] = len(curves) - sum(counts.values())
    failed = [(i, i + 1) for i in result.errors]
    texts = collections.Counter(result.errors.values())
    when = curves.started + curves.seconds
    return _shown(title, counts, failed, texts, [], when), 0


def _shown(
    lines: list[str],
    counts: Mapping[str, int],
    failed: Sequence[Sequence[int]],
    texts: collections.Counter[str],
    others: Sequence[str],
    when: float,
) -> str:
    """Return lines with shares, the half-open ranges that failed, and often errors."""
    size = sum(counts.values())
    for name, count in counts.items():
        share = count / size if size else 0.0
        lines.append(f"  {name:8} {count:>{len(f'{size:,}')},}  {share:5.1%}")
    if failed:
        ranges = ", ".join(_named(*pair) for pair in failed[:_SHOWN])
        lines[-1] += f"  ({ranges}{', ...' if len(failed) > _SHOWN else ''})"
    lines += [f"    {n:,} times: {text}" for text, n in texts.most_common(_SHOWN)]
    lines += others
    if when > 0:
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))
        lines.append(f"  written  {moment} for the last time")
    return "\n".join(lines)


def _verify(
    stores: Sequence[Store], files: Files, mend: bool = False
) -> tuple[str, int]:
    """Read all files; return those that are damaged, and 1 if there are any.

    With `mend`, damaged chunks become missing, and do not count.
    """
    results = [_verified(store, mend) for store in stores]
    return "\n".join(text for text, _ in results), max(code for _, code in results)


def _verified(store: Store, mend: bool) -> tuple[str, int]:
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


def _repair(stores: Sequence[Store], files: Files) -> tuple[str, int]:
    """Make damaged chunks missing; return 1 if other files are damaged."""
    with contextlib.ExitStack() as stack:
        for store in stores:
            stack.enter_context(locked(store.files, None))
        return _verify(stores, files, mend=True)


def _train_verify(files: Files) -> tuple[str, int]:
    """Read both checkpoints; return the damage, and 1 if there is any."""
    damages = damage(files)
    last = f"{files.path_of()}: {len(damages)} of 2 checkpoints are damaged"
    if len(damages) == 1:
        last += ": call the same training again, which continues from the other."
    return "\n".join([*damages, last]), min(1, len(damages))


def _show(options: argparse.Namespace) -> tuple[str, int]:
    """Write the page, or serve it until Ctrl-C."""
    stores = options.store, *([options.after] if options.after else [])
    page = Page(*stores, by=options.by, mode=options.mode)
    if options.out:
        Path(options.out).write_text(page.html, "utf-8")
        return f"{page.path}: {options.out}", 0
    server, url = server_of(page, options.port)
    port = server.server_port
    print(f"{page.path}: {url}\nFrom another machine: ", end="")
    print(f"ssh -L {port}:localhost:{port} HOST", flush=True)
    with contextlib.suppress(KeyboardInterrupt), server:
        server.serve_forever()
    return "", 0


def _tensorboard(options: argparse.Namespace) -> tuple[str, int]:
    top = None if options.all else options.top
    return export(options.store, options.folder, top, options.by, options.mode), 0


def _named(first: int, stop: int) -> str:
    return f"{first}" if stop == first + 1 else f"{first} to {stop - 1}"


_COMMANDS: dict[str, tuple[_Command, str]] = {
    "status": (
        _of_store(_status, _train_status),
        "Print how many points of a store are done, missing and failed, or how far its "
        "trainings are, also while it is being filled.",
    ),
    "verify": (
        _of_store(_verify, _train_verify),
        "Read all values of a store, and print the files that are damaged. The exit "
        "status is 1 if there are any.",
    ),
    "repair": (
        _of_store(_repair, _train_verify),
        "Make damaged chunks of a store missing, so that the same sweep computes their "
        "points again.",
    ),
    "show": (
        _show,
        "Serve a page over a store, also while it is filled, or over two; or write it.",
    ),
    "tensorboard": (
        _tensorboard,
        "Write curves as TensorBoard's event files: bands, and those of the best.",
    ),
}
