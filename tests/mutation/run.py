"""Runs mutants of the core rooms. See tests/mutation.md for how, and what came of it.

    python tests/mutation/run.py COPY OUT.jsonl [ROOM ...]

COPY is a copy of the repository, whose files are changed and put back one at a time.
Mutants that OUT.jsonl has already are not run again.
"""

import collections
import difflib
import itertools as it
import json
import os
import resource
import signal
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mutants import Mutant, sample

CPU_SECONDS = 150
WALL_SECONDS = 900  # for those that hang without computing
MEMORY = 16 << 30
SETTINGS = Path(__file__).with_name("rooms.toml").resolve()
REPORT, DURATIONS = Path("mutation-report"), Path("mutation-durations.json")


def main(copy: str, out: str, *rooms: str) -> None:
    rows = Path(out).resolve()
    settings = tomllib.loads(SETTINGS.read_text())
    seed = settings.pop("seed")
    os.chdir(copy)
    load_what_tests_import()
    waiting = {}
    for room in rooms or settings:
        tests = {f"eqx_pipe/{file}": names for file, names in settings[room].items()}
        size = tests.pop("eqx_pipe/size")
        mutants = sample([Path(file) for file in tests], seed)
        waiting[room] = (tests, it.islice(mutants, size))
    while waiting:  # a few of each room in turn: stopped early, it is a sample still
        for room, (tests, mutants) in list(waiting.items()):
            few = list(it.islice(mutants, 4))
            for mutant in few:
                one(room, mutant, tests[mutant.file].split(), rows)
            if not few:
                del waiting[room]
    found = [json.loads(line) for line in rows.read_text().splitlines()]
    count = collections.Counter((row["room"], row["verdict"]) for row in found)
    for (room, verdict), n in sorted(count.items()):
        print(f"{room:10} {verdict:10} {n:4}")


def one(room: str, mutant: Mutant, names: list[str], rows: Path) -> None:
    """Runs one mutant, and adds the row on it, if there is none."""
    change = lines_of(mutant)
    known = rows.read_text().splitlines() if rows.exists() else []
    if any(json.loads(line)["change"] == change for line in known):
        return
    started = time.monotonic()
    verdict, by = verdict_of(mutant, names)
    row = {
        "room": room,
        "verdict": verdict,
        "by": by,
        "seconds": round(time.monotonic() - started, 1),
        "place": f"{mutant.file}:{mutant.line}:{mutant.column}",
        "operator": mutant.operator,
        "change": change,
    }
    with rows.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(*list(row.values())[:-1], flush=True)


def lines_of(mutant: Mutant) -> str:
    """What a mutant changes, as a diff without context."""
    before = Path(mutant.file).read_text().splitlines()
    diff = difflib.unified_diff(before, mutant.text.splitlines(), mutant.file, n=0)
    return "\n".join(line for line in diff if not line.startswith("+++"))


def verdict_of(mutant: Mutant, names: list[str]) -> tuple[str, str]:
    """What the tests say of a mutant, and the first test that fails."""
    path = Path(mutant.file)
    original, times = path.read_bytes(), (path.stat().st_atime, path.stat().st_mtime)
    REPORT.unlink(missing_ok=True)
    path.write_text(mutant.text)
    try:
        for name in names:
            status = in_a_child(lambda name=name: ask(name))
            if status:
                return reason_of(status)
    finally:
        path.write_bytes(original)
        os.utime(path, times)  # so that its compiled file is valid again
    return "survived", ""


def reason_of(status: int) -> tuple[str, str]:
    """The verdict on a mutant from the wait status of the process that failed."""
    by = REPORT.read_text() if REPORT.exists() else ""
    if os.WIFSIGNALED(status):
        late = os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)
        return ("timeout", by) if late else ("killed", by or "crash")
    if os.WEXITSTATUS(status) == pytest.ExitCode.INTERRUPTED:
        return "killed", "import"
    if not by:
        raise SystemExit("the tests did not start: see mutation-output in the copy")
    return "killed", by


def load_what_tests_import() -> None:
    """Once for all mutants: a child is a fork, made before JAX starts its threads."""
    os.environ["JAX_COMPILATION_CACHE_DIR"] = os.path.abspath("mutation-compiled")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    sys.path.insert(0, os.getcwd())
    import equinox  # noqa: F401
    import hypothesis.extra.numpy  # noqa: F401
    import xarray  # noqa: F401
    import zarr  # noqa: F401


def in_a_child(work: Callable[[], int]) -> int:
    """The wait status of a forked process that does `work`, ended if it hangs."""
    child = os.fork()
    if child == 0:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        os.dup2(os.open("mutation-output", os.O_CREAT | os.O_WRONLY | os.O_TRUNC), 1)
        os.dup2(1, 2)
        os._exit(work())
    end = time.monotonic() + WALL_SECONDS
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended or time.monotonic() > end:
            break
        time.sleep(0.1)
    try:
        os.killpg(child, signal.SIGKILL)  # it, or what it has left behind
    except ProcessLookupError:
        pass
    return status if ended else os.waitpid(child, 0)[1]


def ask(name: str) -> int:
    """Runs a file of tests on the package as it stands now."""
    file, _, row = name.partition(":")
    quiet = "ignore::pytest.PytestAssertRewriteWarning"  # of what is imported already
    arguments = ["-x", "-q", "-m", "", "-W", quiet, f"tests/test_{file}.py"]
    return int(pytest.main(arguments, [QuickestFirst(row)]))


class QuickestFirst:
    """Orders tests by the CPU time they took before, and notes the first that fails.

    Of a table only the rows that begin with `row` are asked.
    """

    def __init__(self, row: str):
        self.row = row
        self.took = json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.row:
            items[:] = [item for item in items if f"[{self.row}:" in item.name]
        items.sort(key=lambda item: self.took.get(item.nodeid, 0.0))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        started = time.process_time()
        yield
        took = round(time.process_time() - started, 2)
        self.took[item.nodeid] = min(self.took.get(item.nodeid, took), took)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not REPORT.exists():
            why = report.longreprtext.strip().splitlines()[-1:]
            REPORT.write_text(" | ".join([report.nodeid, *why])[:300])

    def pytest_sessionfinish(self) -> None:
        DURATIONS.write_text(json.dumps(self.took))


if __name__ == "__main__":
    main(*sys.argv[1:])
