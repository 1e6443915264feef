"""The reference as the site shows it: each name with its signature and docstring."""

import html
import importlib
import inspect
import re
from pathlib import Path

import pytest

pytest.importorskip("mkdocstrings_handlers")  # the extra `docs`
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Build the pages of the reference alone, since the site also runs notebooks."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    config = load_config(
        str(ROOT / "mkdocs.yml"),
        docs_dir=str(ROOT / "docs" / "api"),
        site_dir=str(folder),
        nav=None,
        hooks=[],
        strict=False,
    )
    build(config)
    return {path.stem: path.read_text() for path in folder.glob("*.html")}


def text_of(markup):
    """Return the text of HTML without its tags, with single spaces."""
    plain = html.unescape(re.sub(r"<[^>]*>", "", markup)).replace("¶", " ")
    return " ".join(plain.split())


def letters(text):
    """Return only letters and digits, which Markdown leaves as they are."""
    return re.sub(r"[\W_]+", "", text)


def sections(page):
    """Return the HTML of each entry of a page by its heading."""
    parts = re.split(r"<h3 ", page)[1:]
    names = [text_of("<" + part.partition("</h3>")[0]) for part in parts]
    return {n.removesuffix(" dataclass"): p for n, p in zip(names, parts, strict=True)}


def test_each_name_has_its_signature_and_its_docstring(pages, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs" / "_site")
    reference = importlib.import_module("reference")
    doctests = importlib.import_module("doctests")
    for page in reference.TITLES:
        found = sections(pages[page])
        entries = reference.entries(page)
        assert found.keys() == {path.rpartition(".")[2] for path, _ in entries}
        for path, value in entries:
            name, markup = path.rpartition(".")[2], found[path.rpartition(".")[2]]
            first = inspect.getdoc(value).split("\n\n")[0]
            assert letters(first) in letters(text_of(markup)), name
            assert "._" in path or f'id="{path}"' in pages[page]
            headings = re.findall(r"<h4.*?</h4>", markup, re.DOTALL)
            assert not [h for h in map(text_of, headings) if re.match("_[^_]", h)]
            if inspect.isfunction(value) or value in doctests.constructed():
                code = re.search(r"doc-signature.*?</pre></div>", markup, re.DOTALL)
                text = text_of("<" + code[0])
                names = re.findall(r"(\w+)(?=[:=,)]| =)", text)
                assert text.startswith(f"{name}("), name
                assert {*inspect.signature(value).parameters} <= {*names}, name
                assert "draw" not in names or name == "check_axis", name
