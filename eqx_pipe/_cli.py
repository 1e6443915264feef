"""The command `eqx-pipe status`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ._sweep.store import Folder, check_zarr, status_text


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="eqx-pipe",
        description="Inspect the store of a sweep.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    _add_status(commands)
    options = parser.parse_args(argv)
    return options.run(options)


def _add_status(commands: argparse._SubParsersAction) -> None:
    status = commands.add_parser(
        "status",
        help="what the store of a sweep has",
        description="Print how many points of a store are done, missing and failed, "
        "also while it is being filled. Reads no values.",
    )
    status.add_argument("store", type=Path, help="a folder that `store=` has created")
    status.set_defaults(run=_status)


def _status(options: argparse.Namespace) -> int:
    try:
        check_zarr("status")
        print(status_text("status", Folder(options.store.expanduser().absolute())))
    except (ImportError, OSError, ValueError) as error:
        # Drop the name of the function, which means nothing on the command line.
        print(f"eqx-pipe status: {str(error).partition(': ')[2]}", file=sys.stderr)
        return 2
    return 0
