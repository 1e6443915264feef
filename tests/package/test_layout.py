"""The layout of the tests: their folders, imports and markers."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = set(
    "compose data kernel sharding spaces sweep store reduce search show train vmap "
    "testing package clients mistakes support".split()
)
SOURCES = {path: path.read_text() for path in ROOT.rglob("*.py")}
PRIVATE = re.compile(r"^\s*from (eqx_pipe(?:\.testing)?\._\w+)", re.MULTILINE)
# Files that import private modules. New tests go through the public API. Those in
# `support` damage, replace or watch the files of a store; `ways` lowers the limit above
# which a sweep computes in several parts, `long_points` that above which it splits a
# loop; `test_batch_size` and `test_compiled` choose a size for devices that are not
# there; `kernel/test_values` reads the code of kernels; `conftest` forgets programs.
KNOWN = set(
    "conftest clients/test_jaxprs data/test_shuffle kernel/test_values "
    "show/test_events store/test_cloud sweep/test_batch_size sweep/test_compiled "
    "sweep/test_memory support/attack support/bucket support/helpers "
    "support/long_points support/simulate support/small_store support/stores "
    "support/trainings support/ways".split()
)
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


def test_few_files_import_private_modules():
    names = {
        path: path.relative_to(ROOT).with_suffix("").as_posix() for path in SOURCES
    }
    found = {names[path] for path, text in SOURCES.items() if PRIVATE.search(text)}
    assert found <= KNOWN
    assert PRIVATE.findall("    from eqx_pipe._cli import main") == ["eqx_pipe._cli"]


def test_every_marker_is_defined(request):
    defined = {re.split(r"[:(]", line)[0] for line in request.config.getini("markers")}
    used = {n for t in SOURCES.values() for n in re.findall(r"pytest\.mark\.(\w+)", t)}
    assert "slow" in used and used <= defined
