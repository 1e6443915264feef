"""The tests of what changed, and the mutants that they are tried on."""

import re
import subprocess
from pathlib import Path

import pytest
from support.changed import ROOT, folders_of, paths_of
from support.mutants import MUTANTS

pytest.importorskip("grimp")

NEAREST = {
    "eqx_pipe/_compose/cond.py": ["compose", "data", "sharding"],
    "eqx_pipe/_train/schedulers.py": ["train", "search"],
    "eqx_pipe/_data/source.py": ["data"],
    "eqx_pipe/_store/disk.py": ["store", "search", "sweep", "train"],
    "eqx_pipe/_sweep/flight_files.py": ["store"],
    "eqx_pipe/testing/_laws/law.py": ["testing"],
}


@pytest.mark.parametrize("file", NEAREST)
def test_a_package_is_tested_with_those_that_import_it(file):
    found = [Path(path).name for path in folders_of([file])]
    assert found[0] == NEAREST[file][0] and {*NEAREST[file]} <= {*found}
    assert {"mistakes", "package"} <= {*found}
    assert "vmap" not in found


def test_every_file_has_tests():
    for path in (ROOT / "eqx_pipe").rglob("*.py"):
        file = path.relative_to(ROOT).as_posix()
        if file not in ("eqx_pipe/__init__.py", "eqx_pipe/_types.py"):
            assert len(folders_of([file])) > 2, file


def test_changed_tests_and_their_helpers():
    assert "tests/data/test_bits.py" in paths_of(["tests/data/test_bits.py"])
    assert "tests/sweep/test_ways.py" in paths_of(["tests/support/executors.py"])
    assert "tests/store/test_attack.py" in paths_of(["tests/support/attack.py"])
    assert paths_of(["README.md", "tests/conftest.py"]) == ["tests"]
    both = paths_of(["eqx_pipe/_data/source.py", "tests/data/test_bits.py"])
    assert "tests/data" in both and "tests/data/test_bits.py" not in both


@pytest.mark.parametrize("file", sorted({file for file, _, _ in MUTANTS}))
def test_the_text_of_each_mutant_is_there_once(file):
    """Replace a mutant whose text is gone by another one of the same file."""
    text = (ROOT / "eqx_pipe" / file).read_text()
    for name, old, new in MUTANTS:
        assert name != file or (text.count(old) == 1 and old != new), old
    assert len(MUTANTS) == 60


def test_the_weekly_workflow_runs_every_part():
    done = subprocess.run(
        [ROOT / ".ci" / "thorough", "--list"],
        capture_output=True,
        text=True,
        check=True,
    )
    workflow = (ROOT / ".github" / "workflows" / "weekly.yml").read_text()
    assert re.findall(r"^ +- ([a-z0-9-]+)$", workflow, re.MULTILINE) == (
        done.stdout.split()
    )
