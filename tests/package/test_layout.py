"""The layout of the tests: their folders, imports and markers."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = set(
    "compose data sharding spaces sweep store reduce search testing package clients "
    "mistakes support".split()
)
SOURCES = {path: path.read_text() for path in ROOT.rglob("*.py")}
IMPORT = re.compile(r"^\s*(?:from|import)\s.*?\b(test_\w+)", re.MULTILINE)


def test_the_folders_are_those_of_the_packages():
    parts = {path.relative_to(ROOT).parts for path in SOURCES}
    assert {folder for folder, *inside in parts if inside} == FOLDERS


def test_no_file_imports_a_test_file():
    """Helpers that several files need belong in `support`."""
    names = {path.stem for path in SOURCES}
    found = {path.name: names & set(IMPORT.findall(t)) for path, t in SOURCES.items()}
    assert not {name: imported for name, imported in found.items() if imported}
    assert IMPORT.findall("    from .test_chain import stages") == ["test_chain"]


def test_every_marker_is_defined(request):
    defined = {re.split(r"[:(]", line)[0] for line in request.config.getini("markers")}
    used = {n for t in SOURCES.values() for n in re.findall(r"pytest\.mark\.(\w+)", t)}
    assert "slow" in used and used <= defined
