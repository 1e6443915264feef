"""Record what a rewrite of the package must not change, and compare with it.

    python -m tools.record [SECTION ...]             # write tools/record.json
    python -m tools.record --compare [SECTION ...]   # what differs from it
    python -m tools.record --against ../before       # ... from another checkout
    python -m tools.record --text "sweep eigen forward"    # the programs of a case

See tools/README.md for the sections. `--compare` exits with 1 if something is lost: a
program that grew, a value, key or coordinate that differs, a planted bug that no law
reports, an entry that is gone. `tools/accepted.txt` lists the differences that commits
made on purpose.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Programs depend on these, so they are set here, before JAX is imported.
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
os.environ["JAX_PLATFORMS"] = "cpu"

from . import _compare, _file, _machine  # noqa: E402

NAMES = ("programs", "values", "spaces", "planted")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="*", metavar="SECTION")
    parser.add_argument("--out", type=Path, default=_file.RECORD)
    parser.add_argument("--compare", nargs="?", type=Path, const=_file.RECORD)
    parser.add_argument("--against", type=Path, metavar="CHECKOUT")
    parser.add_argument("--only", default="", help="entries whose name contains this")
    parser.add_argument("--text", metavar="CASE")
    options = parser.parse_args()
    if options.text:
        return _show(options.text)
    if options.compare and options.compare.name in NAMES:  # `--compare SECTION`
        options.sections.insert(0, options.compare.name)
        options.compare = _file.RECORD
    sections = options.sections or list(NAMES)
    if unknown := set(sections) - {*NAMES}:
        parser.error(
            f"unknown sections {sorted(unknown)}; there are {', '.join(NAMES)}"
        )
    before = options.compare and _file.read(options.compare)
    if options.against:
        before = _record_of(options.against.resolve(), sections, options.only)
    now = {"machine": _machine.described(), **_recorded(sections, options.only)}
    if before is None:
        _file.write(now, options.out)
        return _say_what_failed(now)
    for name in sections:
        kept = before.get(name, {}).items()
        before[name] = {k: v for k, v in kept if options.only in k}
    lost = _compare.report(before, now, sections)
    print(f"{lost} differences that are not accepted" if lost else "nothing is lost")
    sys.exit(bool(lost))


def _recorded(sections, only=""):
    """Record sections; an entry that fails is the text of its error."""
    from ._sections import SECTIONS

    found = {}
    for section in sections:
        begun, entries = time.perf_counter(), {}
        for name, make in SECTIONS[section]().items():
            if only in name:
                entries[name] = _attempted(make)
        found[section] = entries
        took = time.perf_counter() - begun
        print(f"{section}: {len(entries)} in {took:.0f} s", file=sys.stderr, flush=True)
    return found


def _attempted(make):
    try:
        return make()
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        return {"error": f"{type(error).__name__}: {first}"}


def _record_of(checkout, sections, only):
    """Record another checkout, with its own tools, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "record.json")
        command = [sys.executable, "-m", "tools.record", *sections]
        command += ["--out", str(out), "--only", only]
        subprocess.run(command, cwd=checkout, check=True)  # imports begin there
        return _file.read(out)


def _say_what_failed(now):
    for section, entries in now.items():
        for name, entry in entries.items():
            if "error" in entry:
                print(f"{section}: {name}: {entry['error']}")


def _show(name):
    from . import _cases, _hlo

    for program in _cases.computed(name).programs:
        print(_hlo.normalized(program.as_text()))


if __name__ == "__main__":
    main()
