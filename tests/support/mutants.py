"""Mutants of the package: `python -m tests.support.mutants`, or some by their numbers.

Each is a small edit. In a copy of the files it is tried with the tests of the package
that it changes, then with those of the packages above. A test that fails catches it, if
it passes without the mutant.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from .changed import ROOT, folders_of

MUTANTS = [
    # File in `eqx_pipe/`, its text, and another one.
    (
        "_store/partition.py",
        "min((column + 1) * self.count, n)",
        "(column + 1) * self.count",
    ),
    ("_store/partition.py", "np.diff(points) != 1) + 1", "np.diff(points) != 1)"),
    ("_store/partition.py", "(index < near[:, 1])", "(index <= near[:, 1])"),
    ("_store/format.py", "seal == _seal(root, text), json", "True, json"),
    ("_store/format.py", "[max(1, n) for n in chunks]", "[n for n in chunks]"),
    ("_store/lazy.py", "max(chosen, default=-1) + 1", "max(chosen, default=-1)"),
    ("_store/lazy.py", "(index < 0, index + n, index)", "(index < 0, n, index)"),
    ("_store/lazy.py", "max(start, begin), min(stop, end)", "start, stop"),
    (
        "_store/commit.py",
        "(was == MISSING) | ((was == FAILED) & (status != MISSING))",
        "was == MISSING",
    ),
    (
        "_store/store.py",
        "begin + runs_of(manifest.status == status)",
        "runs_of(manifest.status == status)",
    ),
    ("_store/commit.py", "np.all(status[:rows] == OK)", "np.any(status == OK)"),
    ("_sweep/flight_files.py", "len(rows) < last - first", "len(rows) <= last - first"),
    ("_sweep/flight_files.py", 'rsplit(".", 2)[0] == at', 'rsplit(".", 2)[0] != at'),
    ("_train/result.py", 'trained, "right") - 1', 'trained, "left") - 1'),
    ("_train/schedulers.py", "max(1, math.ceil(", "max(1, int("),
    ("_train/schedulers.py", "not 0 < self.fraction <=", "not 0 <= self.fraction <="),
    ("_compose/cond.py", "min(max(value, 0), last)", "min(value, last)"),
    ("_compose/container.py", "and len(stages) > 1", "and len(stages) > 2"),
    ("_compose/container.py", "-size <= position < size", "-size < position < size"),
    ("_compose/container.py", "[part]) < self.fewest", "[part]) <= self.fewest"),
    ("_compose/outputs.py", "inner[len(path) + 1 :]", "inner[len(path) :]"),
    ("_compose/parallel.py", "<= merge.axis < num_axes", "<= merge.axis <= num_axes"),
    ("_stage/select.py", "path[len(segment) + 1 :]", "path[len(segment) :]"),
    ("_stage/describe.py", "depth=depth + 1", "depth=depth"),
    ("_stage/select.py", "range(1, len(p) + 1))", "range(1, len(p)))"),
    (
        "_conditionals.py",
        "branches[min(max(int(index), 0), len",
        "branches[min(int(index), len",
    ),
    ("_conditionals.py", "[index <= 0, *inner", "[index == 0, *inner"),
    ("_refill/refill.py", "following + number - 1", "following + number"),
    ("_vmap/batches.py", "-(-size // batch_size)", "size // batch_size"),
    ("_vmap/batches.py", "np.arange(total) < size", "np.arange(total) <= size"),
    ("_vmap/mapped.py", "np.arange(total) < self.size", "np.arange(total) <= 1"),
    ("_reduce/exact.py", "(total < a[0])", "(total <= a[0])"),
    ("_reduce/exact.py", "n = -(-n // rows)", "n = n // rows"),
    ("_reduce/reducer.py", "np.where(n > 0, n, np.nan)", "np.where(n > 1, n, np.nan)"),
    (
        "_reduce/reducer.py",
        "jnp.min(kept) if self.minimal else jnp.max(kept)",
        "jnp.max(kept)",
    ),
    ("_spaces/axis.py", "positions / max(n - 1, 1)", "positions / n"),
    ("_spaces/space.py", "if not 0 <= i < size", "if not 0 <= i <= size"),
    (
        "_spaces/space.py",
        "(array < 0, array + size, array)",
        "(array < 0, size, array)",
    ),
    ("_spaces/space.py", "for name in names}) > 1", "for name in names}) > 2"),
    ("_data/loader.py", "rest > 0 and not self.drop_remainder", "rest > 0"),
    ("_data/loader.py", "epoch + (start > last)", "epoch + (start >= last)"),
    ("_data/loader.py", "if batch_size > size:", "if batch_size >= size:"),
    ("_data/loader.py", "at >= np.uint32(size)", "at > np.uint32(size)"),
    ("_data/shuffle.py", "(outside := x >= size)", "(outside := x > size)"),
    ("_data/source.py", "if not -size <= i < size", "if not -size < i < size"),
    ("_data/source.py", "== first + n - 1 and", "== first + n and"),
    ("_sharding/place.py", "len(spec) > leaf.ndim", "len(spec) >= leaf.ndim"),
    ("_sharding/pipelined.py", "(number >= 0) & (", "(number > 0) & ("),
    ("_sharding/pipelined.py", "if size % count or not size", "if not size"),
    ("_jaxprs/split.py", "jnp.uint32(length - 1) - n", "jnp.uint32(length) - n"),
    ("_jaxprs/jaxpr.py", "max(most, now + inside)", "max(most, now)"),
    (
        "_check.py",
        "operator.index(value) < minimum",
        "operator.index(value) <= minimum",
    ),
    ("testing/_laws/law.py", "wrong = apart > allowed", "wrong = apart < allowed"),
    ("testing/_laws/extensions.py", "if not 1 <= n <= MAX", "if not 0 <= n <= MAX"),
    ("_sweep/request.py", "if not 0 <= index < count", "if not 0 <= index <= count"),
    ("_sweep/request.py", "float(timeout) > 0", "float(timeout) >= 0"),
    ("_sweep/remote.py", "if call.tries >= _TRIES or", "if call.tries > _TRIES or"),
    (
        "_sweep/work/work.py",
        "min(last * self.each, self.points.size)",
        "last * self.each",
    ),
    ("_results/plot.py", "int(np.argmin(np.abs(", "int(np.argmax(np.abs("),
    ("_results/files.py", "(points < last)] - first", "(points < last)]"),
]
# The test that looks for the text of each mutant would catch all of them.
OPTIONS = ["-p", "no:cacheprovider", "--ignore=tests/package/test_changed.py"]
MOST_SECONDS = 1200
"""The time that a folder of tests gets; a mutant may loop forever."""
LEAST = 0.94
"""The share that has to be caught."""


def caught_by(folder, number, broken):
    """Return the first test that fails in a copy of the files with a mutant.

    Tests that fail without it, too, are added to `broken`, and catch nothing.
    """
    name, old, new = MUTANTS[number]
    file = folder / "eqx_pipe" / name
    text = file.read_text()
    for tests in folders_of([f"eqx_pipe/{name}"]):
        while True:
            file.write_text(text.replace(old, new))
            failed = _first_failure(folder, tests, broken)
            file.write_text(text)
            if not failed:
                break
            test = failed.partition(" ")[2].split(" - ")[0]
            if "::" not in test or not _first_failure(folder, test, []):
                return failed
            broken.append(test)
    return None


def _first_failure(folder, tests, broken):
    command = [sys.executable, "-m", "pytest", "-qx", *OPTIONS, tests]
    try:
        done = subprocess.run(
            command + [f"--deselect={test}" for test in broken],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(folder)},
            capture_output=True,
            text=True,
            timeout=MOST_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"{tests} took more than {MOST_SECONDS} s"
    if done.returncode in (0, 5):  # 5: no tests
        return None
    lines = done.stdout.splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return (failed or lines or [done.stderr])[-1]


def main():
    """Try mutants; exit with 1 if too few are caught."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("numbers", nargs="*", type=int, help="default: all")
    numbers = parser.parse_args().numbers or range(len(MUTANTS))
    left, broken = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in (".ci", "eqx_pipe", "tests", "docs", "examples", "benchmarks"):
            shutil.copytree(
                ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__")
            )
        for file in [*ROOT.glob("*.md"), *ROOT.glob("*.toml"), ROOT / "mkdocs.yml"]:
            shutil.copy(file, folder)
        for number in numbers:
            begun = time.monotonic()
            test = caught_by(folder, number, broken)
            left += [] if test else [number]
            took = f"{time.monotonic() - begun:.0f} s"
            print(number, *MUTANTS[number], took, test or "NOT CAUGHT", sep=" | ")
            sys.stdout.flush()
    caught = 1 - len(left) / len(numbers)
    if broken:
        print("fail without a mutant, too:", *broken, sep="\n")
    print(f"{caught:.0%} of {len(numbers)} mutants are caught; not {left}")
    sys.exit(caught < LEAST)


if __name__ == "__main__":
    main()
