"""The size and the words of the documentation, as far as a machine can check them."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
TEXTS = [
    *PAGES,
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "examples").glob("*.py")),
]
CODE_PAGES = ["CONTRIBUTING.md", "docs/how_it_works.md", "tests/README.md"]
DIALECT = (
    r"say|says|said|tells|told|kit|house|anew|begun|of which|one's own"
    r"|what is (?:told|said|given|asked)"
)

ODD = {"What", "Whether", "How", "Has", "Of", "Where", "Who"}


def lines_of(path):
    """Return the lines of a text with their numbers."""
    return list(enumerate(path.read_text().splitlines(), start=1))


def test_pages_are_few_and_short():
    assert len(PAGES) <= 30
    assert len(lines_of(ROOT / "README.md")) <= 100
    sizes = {path.name: len(lines_of(path)) for path in PAGES}
    assert max(sizes.values()) <= 380, sizes


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_texts_use_plain_words(path):
    """Keep out the figures of speech that readers tripped over."""
    word = re.compile(rf"(?<![\w-])(?:{DIALECT})(?![\w-])", re.IGNORECASE)
    prose = ((number, re.sub(r"`[^`]*`", "", line)) for number, line in lines_of(path))
    assert [(number, line) for number, line in prose if word.search(line)] == []


@pytest.mark.parametrize("page", CODE_PAGES)
def test_files_that_contributors_are_sent_to_exist(page):
    folders = ("eqx_pipe", "tests", "benchmarks", "docs", "examples")
    files = {path.name for folder in folders for path in (ROOT / folder).rglob("*.py")}
    named = set(re.findall(r"`(?:[\w/]*/)?(\w+\.py)`", (ROOT / page).read_text()))
    assert named and sorted(named - files) == []


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_examples_show_values(path):
    """A bare `True` shows nothing: print a value, or assert."""
    assert [number for number, line in lines_of(path) if line == "True"] == []


@pytest.mark.parametrize("folder", ["eqx_pipe", "tests"])
def test_docstrings_begin_plainly(folder):
    """Begin with a verb or a noun; ruff's D401 covers functions only."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        nodes = ast.walk(ast.parse(path.read_text()))
        texts = [ast.get_docstring(node) for node in nodes if isinstance(node, kinds)]
        found += [
            (path.name, text) for text in texts if text and text.split()[0] in ODD
        ]
    assert found == []
