"""Mutate the package, and record which mutants the tests kill.

    pip install -r tools/requirements.txt
    git worktree add ../mutants              # a copy, whose files are changed in place
    python -m tools.mutation ../mutants ../drawn.jsonl            # draw, run, record
    python -m tools.mutation ../mutants ../again.jsonl --again    # the recorded ones

A mutant is the package with one small change: a number, a comparison, a call left out
(`_mutants.py`). Either the change has no effect, or a test fails, or a test is missing.
A hundred are drawn by a seed, from each package in proportion to its size. Their
verdicts become the section `mutants` of `record.json`. `--again` takes the mutants of
that section whose lines still exist, in their file or once in another, and exits with 1
if one that was killed survives.

Each mutant runs in a fork, which saves imports; compiled programs stay on disk. The
tests of a package are those of `FOLDERS`, first the files named like the mutated one,
then the tables of mistakes, then the rest, in each the quickest tests first. A mutant
survives when all pass, or when `BUDGET` seconds of processor time are used up, so the
score is a lower bound. One that then hangs in a single test is a timeout, and counts as
killed. Durations come from a run without a mutant, which is made first; tests that fail
in it are left out.

A command that was stopped goes on where it ended: each line of the JSONL is a verdict.
It may leave a mutant in the copy, which `git checkout eqx_pipe` removes. The folder
`mutation-state` in the copy holds the durations: delete it when the tests change.
Expect some five in a hundred to survive because they change nothing that a user can
see: a bound above a size that does not exist, `>=` where values never are equal, a
default that all callers give.
"""

import argparse
import collections
import difflib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from . import _file
from ._mutants import Mutant, sample

SEED = 0
BUDGET, HANGS = 150, 300  # seconds of processor time
WALL = 1800  # for those that hang without computing
MEMORY = 16 << 30
KILLED = ("killed", "timeout")

COMPOSE, SWEEP, BASE = ("compose",), ("sweep",), ("package", "compose", "spaces")
FOLDERS = {
    **dict.fromkeys(("_stage", "_compose", "_conditionals"), COMPOSE),
    **{"_data": ("data",), "_sharding": ("sharding",)},
    **{"_spaces": ("spaces",), "_reduce": ("reduce",), "testing": ("testing",)},
    **{"_sweep": SWEEP, "_store": ("store", "sweep")},
    **{"_search": ("search",), "_refill": ("compose", "sweep")},
    **{"_jaxprs": ("sweep", "compose")},
}
"""The folders of tests by package; `BASE` for all other files."""

LEFT_OUT = {"demo", "_cli", "_types", "_later", "search", "__init__"}
STATE = Path("mutation-state")  # in the copy: durations, the last report, programs
REPORT, DURATIONS = STATE / "report", STATE / "durations.json"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("copy", type=Path)
    parser.add_argument("rows", type=Path, metavar="OUT.jsonl")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--tests", nargs="+", help="ask these in place of the folders")
    options = parser.parse_args()
    rows = options.rows.resolve()
    recorded = _file.read().get("mutants", {})
    enter(options.copy.resolve())
    if options.again:
        mutants = list(found_again(recorded))
    else:
        mutants = drawn_once(options.count)
    baseline(options.tests)
    for name, mutant in mutants:
        one(name, mutant, rows, options.tests)
    verdicts = known(rows)
    if options.again:
        sys.exit(report(recorded, verdicts))
    print(dict(collections.Counter(row["verdict"] for row in verdicts.values())))
    _file.write({"mutants": verdicts})


def enter(copy: Path) -> None:
    """Work in the copy: imports, also those of processes of tests, come from there.

    What tests import is loaded once; a fork is made before JAX starts its threads.
    """
    os.chdir(copy)
    asked = ["git", "status", "--porcelain", "eqx_pipe"]
    if subprocess.run(asked, capture_output=True, text=True).stdout:
        raise SystemExit(f"{copy} is changed already: `git checkout eqx_pipe` there")
    STATE.mkdir(exist_ok=True)
    sys.path[:] = [str(copy), *sys.path[1:]]  # the first was the folder of this one
    environment = {
        "PYTHONPATH": os.pathsep.join([str(copy), os.environ.get("PYTHONPATH", "")]),
        "JAX_COMPILATION_CACHE_DIR": str((STATE / "programs").resolve()),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    os.environ.update(environment)
    sys.dont_write_bytecode = True
    import equinox  # noqa: F401
    import hypothesis.extra.numpy  # noqa: F401
    import xarray  # noqa: F401
    import zarr  # noqa: F401


# Which mutants.


def drawn_once(count: int) -> list[tuple[str, Mutant]]:
    """Draw mutants, or read those that a command before has drawn: it takes minutes."""
    file = STATE / f"drawn-{count}.json"
    if not file.exists():
        file.write_text(json.dumps(drawn(count)))
    return [(name, Mutant(*fields)) for name, fields in json.loads(file.read_text())]


def drawn(count: int) -> list[tuple[str, Mutant]]:
    """Draw mutants of each package in proportion to its size, in a mixed order."""
    files = collections.defaultdict(list)
    for file in sorted(Path("eqx_pipe").rglob("*.py")):
        if not {package_of(file), file.stem} & LEFT_OUT:
            files[package_of(file)].append(file)
    sizes = {k: sum(f.stat().st_size for f in v) for k, v in files.items()}
    shares = {k: count * v / sum(sizes.values()) for k, v in sizes.items()}
    counts = {k: int(v) for k, v in shares.items()}
    by_remainder = sorted(shares, key=lambda k: counts[k] - shares[k])
    for package in by_remainder[: count - sum(counts.values())]:
        counts[package] += 1
    found = []
    for package in sorted(files):
        mutants = sample(files[package], SEED)
        found += [next(mutants) for _ in range(counts[package])]
    random.Random(SEED).shuffle(found)
    return [(f"{i:03} {m.file}:{m.line} {m.operator}", m) for i, m in enumerate(found)]


def package_of(file: Path) -> str:
    return Path(file).relative_to("eqx_pipe").parts[0].removesuffix(".py")


def found_again(recorded: dict[str, dict]) -> Iterator[tuple[str, Mutant]]:
    """Yield the recorded mutants whose lines still exist."""
    texts = {str(f): f.read_text() for f in sorted(Path("eqx_pipe").rglob("*.py"))}
    for name, row in recorded.items():
        place = place_of(row, texts)
        if place is None:
            print("gone", name)
            continue
        file, line = place
        lines, old = texts[file].splitlines(), row["old"].splitlines()
        lines[line : line + len(old)] = row["new"].splitlines()
        text = "\n".join(lines) + "\n"
        yield name, Mutant(file, line + 1, 0, row["operator"], text)


def place_of(row: dict, texts: dict[str, str]) -> tuple[str, int] | None:
    """Find the old lines of a mutant: near the place in its file, or once elsewhere."""
    old = row["old"].splitlines()

    def places(text: str) -> list[int]:
        lines = text.splitlines()
        return [i for i in range(len(lines)) if lines[i : i + len(old)] == old]

    near = places(texts.get(row["file"], ""))
    if near:
        return row["file"], min(near, key=lambda i: abs(i + 1 - row["line"]))
    others = [(file, i) for file, text in texts.items() for i in places(text)]
    return others[0] if len(others) == 1 and len(row["old"].strip()) > 20 else None


# What the tests say.


def one(name: str, mutant: Mutant, rows: Path, tests: list[str] | None) -> None:
    """Run a mutant and append its verdict, unless there is one."""
    if name in known(rows):
        return
    started, path = time.monotonic(), Path(mutant.file)
    original, times = path.read_bytes(), (path.stat().st_atime, path.stat().st_mtime)
    changed = changes(original.decode(), mutant.text)
    path.write_text(mutant.text)
    try:
        verdict, by = verdict_of(mutant, tests)
    finally:
        path.write_bytes(original)
        os.utime(path, times)  # so that its compiled file is valid again
    row = {
        "file": mutant.file,
        **changed,
        "operator": mutant.operator,
        "verdict": verdict,
        "by": by,
        "seconds": round(time.monotonic() - started),
    }
    with rows.open("a") as file:
        file.write(json.dumps({"name": name, **row}) + "\n")
    print(name, verdict, row["seconds"], by, flush=True)


def known(rows: Path) -> dict[str, dict]:
    """Return the verdicts of a file by the names of their mutants."""
    lines = rows.read_text().splitlines() if rows.exists() else []
    return {row.pop("name"): row for row in map(json.loads, lines)}


def changes(before: str, after: str) -> dict[str, object]:
    """Return the changed lines of a file, and the number of the first."""
    a, b = before.splitlines(), after.splitlines()
    found = difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes()
    changed = [code for code in found if code[0] != "equal"]
    first, last = changed[0], changed[-1]
    old, new = a[first[1] : last[2]], b[first[3] : last[4]]
    return {"line": first[1] + 1, "old": "\n".join(old), "new": "\n".join(new)}


def groups_of(mutant: Mutant, tests: list[str] | None) -> list[list[str]]:
    """Return the files of tests in the order in which they are asked, in groups."""
    if tests:
        return [tests]
    file = Path(mutant.file)
    folders = FOLDERS.get(package_of(file), BASE)
    found = [f for name in folders for f in Path("tests", name).rglob("test_*.py")]
    word = file.stem.strip("_").removesuffix("s")
    named = [f for f in found if word in f.stem]
    rest = [f for f in found if f not in named]
    mistakes = list(Path("tests", "mistakes").glob("test_*.py"))
    return [sorted(map(str, group)) for group in (named, mistakes, rest) if group]


def verdict_of(mutant: Mutant, tests: list[str] | None) -> tuple[str, str]:
    """Return the verdict of the tests on a mutant, and the first test that fails."""
    end = cpu_of_children() + BUDGET
    for group in groups_of(mutant, tests):
        REPORT.unlink(missing_ok=True)
        left = end - cpu_of_children()
        if left <= 0:
            break
        status = in_a_child(lambda group=group, left=left: ask(group, left))
        by = REPORT.read_text() if REPORT.exists() else ""
        if os.WIFSIGNALED(status):
            late = os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)
            return ("timeout", by) if late else ("killed", by or "crash")
        if by:
            return "killed", by
        fine = pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED
        # Interrupted by the budget; without it the package cannot be imported.
        if os.WEXITSTATUS(status) not in (*fine, pytest.ExitCode.INTERRUPTED):
            return "killed", "import"
    return "survived", ""


def cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def baseline(tests: list[str] | None) -> None:
    """Run all tests once without a mutant, to know their times and which fail."""
    if DURATIONS.exists():
        return
    names = sorted({f for of in (*FOLDERS.values(), BASE) for f in of} | {"mistakes"})
    folders = tests or [f"tests/{name}" for name in names]
    print("a run without a mutant, for the times of the tests", flush=True)
    for folder in folders:
        REPORT.unlink(missing_ok=True)
        in_a_child(lambda folder=folder: ask([folder]), limit=False)
    if not DURATIONS.exists():
        raise SystemExit(f"the tests did not start: see {STATE}/output")
    left_out = [k for k, v in json.loads(DURATIONS.read_text()).items() if v is None]
    print(f"left out, as they fail without a mutant: {left_out or 'none'}", flush=True)


def in_a_child(work: Callable[[], int], limit: bool = True) -> int:
    """Return the wait status of a fork that does `work`; end it if it hangs."""
    child = os.fork()
    if child == 0:
        os.setsid()
        if limit:
            resource.setrlimit(resource.RLIMIT_CPU, (HANGS, HANGS + 5))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        output = os.open(STATE / "output", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        try:
            os._exit(work())
        except BaseException:  # or the child would go on as its parent
            traceback.print_exc()
            os._exit(pytest.ExitCode.INTERNAL_ERROR)
    end = time.monotonic() + WALL
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended or (limit and time.monotonic() > end):
            break
        time.sleep(0.1)
    try:
        os.killpg(child, signal.SIGKILL)  # it, or processes that it left behind
    except ProcessLookupError:
        pass
    return status if ended else os.waitpid(child, 0)[1]


def ask(tests: list[str], budget: float | None = None) -> int:
    """Run tests on the package as it stands; without a budget, learn their times."""
    quiet = "ignore::pytest.PytestAssertRewriteWarning"  # of modules that are imported
    stop = [] if budget is None else ["-x"]
    arguments = [*stop, "-q", "-p", "no:cacheprovider", "-W", quiet, *tests]
    return int(pytest.main(arguments, [QuickestFirst(budget)]))


class QuickestFirst:
    """Order tests by the processor time that they took; note the first that fails.

    Without a budget it keeps their times, None for a test that fails.
    """

    def __init__(self, budget: float | None):
        self.budget = budget
        self.learns = budget is None
        self.took = json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        fine = [item for item in items if self.took.get(item.nodeid, 0) is not None]
        items[:] = sorted(fine, key=lambda item: self.took.get(item.nodeid, 0.0))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[object]:
        started = time.process_time()
        found = yield
        if self.learns and item.nodeid not in self.took:
            self.took[item.nodeid] = round(time.process_time() - started, 2)
        elif self.budget is not None and time.process_time() > self.budget:
            item.session.shouldstop = "the budget is used up"
        return found

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self.learns:
            self.took[report.nodeid] = None
        elif report.failed and not REPORT.exists():
            why = report.longreprtext.strip().splitlines()[-1:]
            REPORT.write_text(" | ".join([report.nodeid, *why])[:300])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.learns and not REPORT.exists():
            REPORT.write_text(f"import {report.nodeid}")

    def pytest_sessionfinish(self) -> None:
        if self.learns:
            DURATIONS.write_text(json.dumps(self.took))


def report(recorded: dict[str, dict], verdicts: dict[str, dict]) -> bool:
    """Print what became of recorded mutants; return whether a killed one survives."""
    lost = 0
    for name, row in verdicts.items():
        was, now = (r["verdict"] in KILLED for r in (recorded[name], row))
        if was != now:
            lost += was
            print(f"{'!!' if was else '  '} {name}: {'killed' if was else 'survived'}")
    gone = len(recorded.keys() - verdicts.keys())
    print(f"{len(verdicts)} mutants asked again, {gone} gone, {lost} survive newly")
    return bool(lost)


if __name__ == "__main__":
    main()
