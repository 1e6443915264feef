"""How many planted bugs does `check_function` report, and by which law?

Each bug is checked with the default options, at arguments at which it shows. Its sound
twin is checked the same way, and must keep all laws. The bugs are in
`tests/testing/planted`.
"""

import importlib
import sys
from pathlib import Path

DEVICES = 2
ROUNDS = 1
QUICK = {"only": ("the sign of a jvp",)}

sys.path.append(str(Path(__file__).parents[1] / "tests"))


def catalogue():
    """Return the rows of planted bugs by their kind."""
    tables = importlib.import_module("testing.planted").TABLES
    return {kind: rows for kind, (rows, _) in tables.items()}


def verdict(row):
    """Return the laws that report a bug, and those that report its twin."""
    from testing.planted.row import broken_laws

    return {
        "reported by": sorted(broken_laws(row, row.bug)),
        "false alarms": sorted(broken_laws(row, row.sound)),
    }


def main(run):
    found = []
    planted = {row.name: row for rows in catalogue().values() for row in rows}
    for name in run.chosen(planted):
        found.append(verdict(planted[name]))
        texts = {name: ", ".join(laws) for name, laws in found[-1].items()}
        reference = "yes" if planted[name].reference else "no"
        run.row(case=name, reference=reference, **texts)
    reported = sum(bool(row["reported by"]) for row in found)
    alarms = sum(bool(row["false alarms"]) for row in found)
    run.note(f"{reported} of {len(found)} reported, {alarms} false alarms")
