"""The commands `eqx-pipe status` and `eqx-pipe plan`."""

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import eqx_pipe

from ._store.store import check_zarr
from ._store.summary import summary


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="eqx-pipe",
        description="Inspect the store of a sweep, or plan the sweep of a script.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    _add_status(commands)
    _add_plan(commands)
    options = parser.parse_args(argv)
    return options.run(options)


def _add_status(commands: argparse._SubParsersAction) -> None:
    status = commands.add_parser(
        "status",
        help="what the store of a sweep has",
        description="Says how many points of a store are done, missing and failed, "
        "also while it is being filled. Reads its ledger, and no values.",
    )
    status.add_argument("store", type=Path, help="a folder that `store=` has made")
    status.set_defaults(run=_status)


def _add_plan(commands: argparse._SubParsersAction) -> None:
    plan = commands.add_parser(
        "plan",
        help="what the first sweep of a script would do",
        description="Runs a Python script up to the first time that it calls `sweep`, "
        "says what that would do and what it would take, and ends there: nothing is "
        "computed or written by the sweep.",
    )
    plan.add_argument(
        "--probe",
        nargs="?",
        type=int,
        const=True,
        default=False,
        metavar="PLACES",
        help="compile, compute a few batches, and say how long it will take",
    )
    plan.add_argument("script", type=Path, help="a Python file")
    plan.add_argument("arguments", nargs=argparse.REMAINDER, help="of the script")
    plan.set_defaults(run=_plan)


def _status(options: argparse.Namespace) -> int:
    try:
        check_zarr("status")
        print(summary("status", options.store))
    except (ImportError, OSError, ValueError) as error:
        # Without the name of a function that there is not.
        print(f"eqx-pipe status: {str(error).partition(': ')[2]}", file=sys.stderr)
        return 2
    return 0


# No `Exception`, which the script may catch and go on.
class _Planned(BaseException):
    """The end of a script that was run for the plan of its sweep."""


def _plan(options: argparse.Namespace) -> int:
    script = options.script
    if not script.is_file():
        print(f"eqx-pipe plan: there is no file {str(script)!r}.", file=sys.stderr)
        return 2

    def sweep(*given: Any, **asked: Any) -> None:
        """Stands in the place of `sweep` while a script is run for its plan."""
        print(eqx_pipe.plan(*given, **asked, probe=options.probe))
        raise _Planned

    usual, argv, path = eqx_pipe.sweep, sys.argv, sys.path
    eqx_pipe.sweep = sweep
    sys.argv = [str(script), *options.arguments]
    sys.path = [str(script.resolve().parent), *path]
    try:
        runpy.run_path(str(script), run_name="__main__")
    except _Planned:
        return 0
    finally:
        eqx_pipe.sweep, sys.argv, sys.path = usual, argv, path
    print(f"eqx-pipe plan: {str(script)!r} made no sweep.", file=sys.stderr)
    return 1
