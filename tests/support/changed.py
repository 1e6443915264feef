"""The tests of what changed: `python -m tests.support.changed [REVISION]`.

Runs the tests of the files that differ from a revision (by default `main`), and of the
packages that import them: the import contract says which these are. A test that did not
run a line before may run it now, and JAX caches traces between tests, so coverage of
lines would miss some.
"""

import argparse
import functools
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = {
    # Packages and files whose folder of tests has another name.
    "_stage": "compose",
    "_conditionals": "compose",
    "_refill": "compose",
    "_sweep.flight_files": "store",
    "_cli": "store",
    "_captured": "sweep",
    "_progress": "sweep",
    "_results": "sweep",
    "_run": "sweep",
    "_same": "sweep",
}
ALWAYS = ["tests/mistakes", "tests/package"]
"""Tests of all packages, which are quick."""


@functools.cache
def _graph():
    import grimp

    return grimp.build_graph("eqx_pipe")


def _folder_of(module):
    """Return the folder of tests of a module, without the name of the package."""
    parts = module.split(".")
    for end in range(len(parts), 0, -1):
        if folder := FOLDERS.get(".".join(parts[:end])):
            return folder
    name = parts[0].lstrip("_")
    return name if (ROOT / "tests" / name).is_dir() else None


def folders_of(files):
    """Return the folders with the tests of source files, the nearest first."""
    modules = []
    for file in files:
        parts = Path(file).with_suffix("").parts
        modules.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    known = [module for module in modules if module in _graph().modules]
    above = {m for module in known for m in _graph().find_downstream_modules(module)}
    names = [m.partition(".")[2] for m in [*modules, *sorted(above)]]
    found = [f"tests/{folder}" for m in names if m and (folder := _folder_of(m))]
    return [*dict.fromkeys([*found, *ALWAYS])]


def paths_of(files):
    """Return the folders and files of tests of changed files of the repository."""
    source = [f for f in files if f.startswith("eqx_pipe/") and f.endswith(".py")]
    found, files = folders_of(source), list(files)
    for file in files:  # which grows
        if file in ("pyproject.toml", "tests/conftest.py"):
            return ["tests"]
        if file.startswith("tests/support/"):
            word = re.compile(rf"\b{Path(file).stem}\b")
            paths = (ROOT / "tests").glob("*/*.py")
            uses = [p.relative_to(ROOT).as_posix() for p in paths if _has(p, word)]
            files += [path for path in uses if path not in files]
        elif re.fullmatch(r"tests/.*test_\w+\.py", file):
            found.append(file)
        elif file.startswith("tests/") and file.endswith(".py"):
            found.append("/".join(file.split("/")[:2]))
    found = [path for path in dict.fromkeys(found) if (ROOT / path).exists()]
    return [p for p in found if Path(p).parent.as_posix() not in found]


def _has(path, word):
    return word.search(path.read_text()) is not None


def changed_since(revision):
    """Return the files that differ from where a branch left a revision."""

    def git(*command):
        done = subprocess.run(
            ["git", *command], cwd=ROOT, capture_output=True, text=True, check=True
        )
        return done.stdout.split("\n")[:-1]

    (base,) = git("merge-base", revision, "HEAD")
    others = git("ls-files", "--others", "--exclude-standard")
    return [*git("diff", "--name-only", base), *others]


def main():
    """Run the tests, with two workers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("revision", nargs="?", default="main")
    parser.add_argument("--files", nargs="+", help="these files, instead of changes")
    parser.add_argument("--list", action="store_true", help="print the tests only")
    asked = parser.parse_args()
    tests = paths_of(asked.files or changed_since(asked.revision))
    print(*tests, sep="\n", flush=True)
    if not asked.list:
        command = ["-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", *tests]
        sys.exit(subprocess.run([sys.executable, *command], cwd=ROOT).returncode)


if __name__ == "__main__":
    main()
