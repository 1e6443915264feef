"""All examples in the docs and in the package's docstrings, run as they stand."""

import ast
import codeop
import doctest
import importlib.util
import re
from pathlib import Path

import jax
import pytest
from support.helpers import slow_unless

import eqx_pipe

ROOT = Path(__file__).parents[2]
PACKAGE = Path(eqx_pipe.__file__).parent
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def docstrings(path):
    """Yield the docstrings with examples in a source file, as (name, line, text)."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(ast.parse(path.read_text())):
        text = ast.get_docstring(node, clean=False) if isinstance(node, kinds) else None
        if text and ">>> " in text:
            name = getattr(node, "name", "module")
            yield name, node.body[0].lineno - 1, text


def blocks(path):
    """Yield the blocks of Python in a page, as (name, line, text)."""
    text = path.read_text()
    for match in re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        yield path.stem, text[: match.start(1)].count("\n"), match[1]


def with_prompts(text):
    """Return a block as a doctest: its code with prompts, and its output without `#>`.

    A page shows code that can be pasted, and what it prints in comments:

        1 + 1
        #> 2
    """
    inside = set()
    for node in ast.parse(text).body:
        first = min(
            [node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]
        )
        inside.update(range(first + 1, node.end_lineno + 1))
    lines = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("#>"):
            lines.append(line[3:] or "<BLANKLINE>")
        elif number in inside:
            lines.append(f"... {line}")
        else:
            lines.append(line and f">>> {line}")
    return "\n".join(lines) + "\n"


def paste(text):
    """Compile a block line by line, as Python does with what is pasted into it."""
    waiting = []
    for line in [*text.splitlines(), ""]:
        waiting.append(line)
        if codeop.compile_command("\n".join(waiting)) is not None:
            waiting = []
    assert not waiting


SOURCES = {
    str(path.relative_to(PACKAGE.parent)): list(docstrings(path))
    for path in sorted(PACKAGE.rglob("*.py"))
}
PAGES = {
    str(path.relative_to(ROOT)): list(blocks(path))
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
}


NOTEBOOKS = sorted((ROOT / "examples").glob("*.py"))


def not_installed(text):
    """Return the optional libraries that a block imports and that are missing here."""
    packages = "grain|orbax|SALib|optuna|evosax|adaptive|tvboptim"
    names = re.findall(rf"^[> ]*(?:import|from) ({packages})", text, re.MULTILINE)
    names += ["adaptive"] * ("ep.search.Adaptive" in text)
    names += ["llvmlite"] * ("ep.kernel" in text)
    return {name for name in names if importlib.util.find_spec(name) is None}


@pytest.fixture(autouse=True)
def default_settings():
    """Set JAX's defaults, which are less strict than those of the other tests."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


TRAINED = {"README.md", "docs/tour.md"}
"""Pages that show numbers from trainings, which each processor rounds differently."""

DECIMALS = re.compile(r"-?\d+\.\d\d+")


class NearlyEqual(doctest.OutputChecker):
    """Accept decimals that differ by one in the last place that the page shows."""

    def check_output(self, want, got, optionflags):
        shown = iter(DECIMALS.findall(want))

        def nearly(found):
            number = next(shown, found[0])
            unit = 10.0 ** -len(number.partition(".")[2])
            near = abs(float(number) - float(found[0])) < 1.1 * unit
            return number if near else found[0]

        return super().check_output(want, DECIMALS.sub(nearly, got), optionflags)


def run(file, name, line, text, variables):
    """Run one docstring or block; fail with doctest's own report."""
    test = doctest.DocTestParser().get_doctest(text, variables, name, file, line)
    report = []
    checker = NearlyEqual() if file in TRAINED else None
    runner = doctest.DocTestRunner(checker, optionflags=FLAGS)
    runner.run(test, out=report.append, clear_globs=False)
    if report:
        pytest.fail("".join(report), pytrace=False)
    return test.globs


DEAR = "_compose", "_search", "_reduce", "testing"
"""Packages with slow tests: their examples take four fifths of the time."""

EXAMPLES = [name for name, found in SOURCES.items() if found]
QUICK = [name for name in EXAMPLES if not Path(name).parts[1].startswith(DEAR)]


@pytest.mark.parametrize("file", slow_unless(QUICK, EXAMPLES))
def test_docstrings(file):
    for name, line, text in SOURCES[file]:
        if missing := not_installed(text):
            pytest.skip(f"an example needs {', '.join(sorted(missing))}")
        run(file, name, line, text, {})


@pytest.mark.parametrize(
    "file",
    slow_unless({"README.md"}, [name for name, found in PAGES.items() if found]),
)
def test_pages(file):
    """The blocks of a page run in order and share their variables."""
    variables, skipped = {}, set()
    for name, line, text in PAGES[file]:
        if missing := not_installed(text):
            skipped |= missing
        else:
            variables = run(file, name, line, with_prompts(text), variables)
    if skipped:
        pytest.skip(f"without the examples that need {', '.join(sorted(skipped))}")


@pytest.mark.parametrize("file", PAGES)
def test_blocks_can_be_pasted(file):
    """Into Python, which ends a function at a blank line, into IPython and a file."""
    for _, _, text in PAGES[file]:
        paste(text)
        error = text.find("#> Traceback")
        assert error < 0 or not re.search(r"^[^#\n]", text[error:], re.MULTILINE), text


def test_a_block_that_cannot_be_pasted_fails():
    assert with_prompts("def f():\n    return 2\n\nf()\n#> 2\n") == (
        ">>> def f():\n...     return 2\n\n>>> f()\n2\n"
    )
    for text in (">>> 1", "if a:\n    b\nc", "if a:\n    b\n\n    c"):
        with pytest.raises(SyntaxError):
            paste(text)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_shown_and_well_formed(path):
    """The site runs them."""
    text = path.read_text()
    assert text.startswith("# %% [markdown]\n# # ")
    kinds = re.split(r"^# %%(.*)\n", text, flags=re.MULTILINE)[1::2]
    assert set(kinds) == {"", " [markdown]"}
    ast.parse(text)
    assert f"examples/{path.stem}.md" in (ROOT / "mkdocs.yml").read_text()


def test_the_examples_are_found():
    assert len(NOTEBOOKS) >= 7
    assert len(PAGES["README.md"]) >= 2
    assert len(QUICK) >= 20


def test_a_wrong_example_fails():
    with pytest.raises(pytest.fail.Exception, match="Expected:\n    3"):
        run("page.md", "page", 0, ">>> 1 + 1\n3\n", {})
