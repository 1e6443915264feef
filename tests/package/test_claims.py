"""The figures of the documentation, compared with what the benchmarks recorded."""

import functools
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "claims.md"
PERFORMANCE = ROOT / "benchmarks" / "README.md"
LINK = re.compile(r"\[[^\]]*\]\(([^)#]+)(?:#([^)]+))?\)")
UNITS = {"GiB": 1024.0, "MiB": 1.0, "s": 1000.0, "ms": 1.0, "": 1.0}


def cells(line):
    """Return the cells of a row of a Markdown table."""
    return [cell.strip() for cell in line.strip().strip("|").split(" | ")]


def rows_of(title):
    """Return the rows of the table in a section of the page, without its header."""
    section = PAGE.read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [cells(line) for line in lines[2:]]


def with_commands(rows):
    """Return rows in which `the same` stands for the command above it."""
    for row, before in zip(rows[1:], rows, strict=False):
        if row[3] == "the same":
            row[3] = before[3]
    return rows


FIGURES = with_commands(rows_of("Figures"))


def page_of(cell):
    """Return the file that a cell links to."""
    return (PAGE.parent / LINK.search(cell)[1]).resolve()


def number_of(text):
    """Return the number in a text in the smallest unit, and half of its last digit."""
    digits, unit = re.fullmatch(r"([\d.,]+)(?: (\w+))?", text).groups()
    plain = digits.replace(",", "")
    decimals = len(plain.partition(".")[2])
    scale = UNITS[unit or ""]
    return float(plain) * scale, 0.5000001 * 10**-decimals * scale


def over(row):
    """Return the first ratio of a row: to the code by hand, or to another side."""
    return next(value for name, value in row.items() if name.startswith("over "))


@functools.cache
def recorded(name):
    """Return the names that expressions over a benchmark's JSON may use."""
    path = ROOT / "benchmarks/results" / f"{name}.json"
    rows = json.loads(path.read_text())["rows"]
    by_side = {(row["case"], row.get("side")): row for row in rows}
    return {
        "rows": rows,
        "row": {row["case"]: row for row in rows},
        "ms": lambda *place: 1e3 * by_side[place]["time"],
        "mib": lambda *place: by_side[place]["peak_MiB"],
        "ratio": lambda *place: over(by_side[place])["median"],
        "LOADERS": ("in order 32", "in order 256", "shuffled 32", "shuffled 256"),
    }


def section_of(anchor):
    """Return the section of the performance page with an anchor as on GitHub."""
    for part in re.split(r"^#+ ", PERFORMANCE.read_text(), flags=re.MULTILINE):
        title, _, text = part.partition("\n")
        if re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") == anchor:
            return text
    raise LookupError(f"{PERFORMANCE} has no section {anchor}")


def has(text, figure):
    """Return whether a text contains a figure, not as a part of a longer number."""
    return re.search(rf"(?<![\d.,]){re.escape(figure)}(?!\d|[.,]\d)", text) is not None


@pytest.mark.parametrize("row", FIGURES, ids=[f"{r[0]} {r[1]}" for r in FIGURES])
def test_a_figure_is_the_recorded_one_rounded(row):
    page, _, figures, command, source = row
    figures, text = figures.split("; "), page_of(page).read_text()
    assert all(has(text, figure) for figure in figures)
    benchmark = command.strip("`").split()[0]
    assert (ROOT / "benchmarks" / f"{benchmark}.py").exists()
    if source.startswith("`"):
        names = recorded(benchmark)
        values = [float(eval(code, dict(names))) for code in source[1:-1].split("`; `")]
    else:
        link, _, raw = source.partition(": ")
        raw, section = raw.split("; "), section_of(LINK.search(link)[2])
        assert all(has(section, value.split(" ")[0]) for value in raw)
        values = [number_of(value)[0] for value in raw]
    for figure, value in zip(figures, values, strict=True):
        shown, tolerance = number_of(figure)
        assert abs(shown - value) <= tolerance, (figure, value)


@pytest.mark.parametrize("row", rows_of("Properties"), ids=lambda row: row[0])
def test_a_property_names_tests_that_exist(row):
    assert page_of(row[0]).exists()
    paths = re.findall(r"`([^`]+)`", row[2])
    assert paths and all((ROOT / path).exists() for path in paths)


def test_every_figure_with_a_link_is_in_the_table():
    """A page that links a figure to the performance page has a row for that section."""
    listed = {(page_of(row[0]), LINK.search(row[4])) for row in FIGURES}
    listed = {(page, link and link[2]) for page, link in listed}
    commands = {(page_of(row[0]), row[3].strip("`").split()[0]) for row in FIGURES}
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        pattern = r"\[[^\]]*\d[^\]]*\]\((?:\.\./)?benchmarks/README\.md#([^)]+)\)"
        for anchor in re.findall(pattern, page.read_text()):
            name = anchor.removesuffix("py")
            assert (page, anchor) in listed or (page, name) in commands, (page, anchor)
