"""Add the pages outside `docs/` to the site, such as the README, and all as plain text.

`llms.txt` lists the pages with their first paragraphs; `llms-full.txt` contains them.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

_ROOT = Path(__file__).parents[2]

_TEXTS = {
    "README.md": "index.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "performance.md",
    "tests/README.md": "tests.md",
}

_ENTRY = re.compile(
    r"\[`((?:[a-z]+\.)*((?:[A-Z]\w*\.)?\w+)[^`]*)`\]\(\.\./\.\./(eqx_pipe/[\w/]+)\.py\)"
)
"""A call in a table of the reference, its name without the module, and its source."""

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    for source, target in _TEXTS.items():
        text = (_ROOT / source).read_text()
        files.append(File.generated(config, target, content=_moved(text, source)))
    return files


def on_page_markdown(
    markdown: str, page: Page, config: MkDocsConfig, files: Files
) -> str:
    """Return a page of `docs/` with links to the pages that live elsewhere."""
    _WRITTEN[page.file.src_uri] = markdown
    if page.file.generated_by is not None:
        return markdown
    if page.file.src_uri.startswith("api/"):
        markdown = _ENTRY.sub(_to_docstring, markdown)
    return _moved(markdown, f"docs/{page.file.src_uri}")


_WRITTEN: dict[str, str] = {}
"""The text of each page of the build."""
_ORDER: list[str] = []
"""The pages in the order of the navigation."""


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    """Note the order of the pages."""
    _ORDER[:] = [page.file.src_uri for page in nav.pages]
    return nav


def on_post_build(config: MkDocsConfig) -> None:
    """Write the pages as plain text, in one file, and a list of them."""
    site, entries = Path(config.site_dir), []
    for uri, text in ((uri, _WRITTEN[uri]) for uri in _ORDER):
        title = re.search(r"^# (.*)", text, re.MULTILINE)[1]
        found = re.search(r"\n\n([A-Z*].*?)\n\n", text + "\n\n", re.DOTALL)
        summary = _LINK.sub(r"\2", " ".join(found[1].split())) if found else ""
        html = f"{config.site_url}{uri.removesuffix('.md')}.html"
        entries.append(f"- [{title}]({html}): {summary}\n")
    head = f"# {config.site_name}\n\n> {config.site_description}\n\n## Pages\n\n"
    (site / "llms.txt").write_text(head + "".join(entries))
    (site / "llms-full.txt").write_text("\n\n".join(map(_WRITTEN.get, _ORDER)))


def _to_docstring(found: re.Match[str]) -> str:
    """Return a link to the docstring of a name in place of that to its source."""
    call, name, path = found.groups()
    return f"[`{call}`](#{path.replace('/', '.')}.{name})"


def _moved(text: str, source: str) -> str:
    """Return a text whose links lead to the places of pages on the site."""

    def moved(found: re.Match[str]) -> str:
        picture, words, target, part = found.groups()
        path = (_ROOT / source).parent.joinpath(target).resolve()
        path = path / "README.md" if path.is_dir() else path
        inside = path.relative_to(_ROOT).as_posix()
        if path.parent == _ROOT / "examples" and path.name == "README.md":
            inside = "docs/examples/index.md"
        elif path.parent == _ROOT / "examples":
            inside = f"docs/examples/{path.stem}.md"
            if part is not None and part.startswith("#picture-"):
                shown = f"examples/{path.stem}-{part.removeprefix('#picture-')}.png"
                return f"[![{words}]({shown})](examples/{path.stem}.md)"
        elif path.exists() and path.suffix != ".md" and not picture:
            return f"{words} (`{inside}`)" if inside not in words else words
        page = _TEXTS.get(inside, inside.removeprefix("docs/"))
        return f"{picture}[{words}]({page}{part or ''})"

    return _LINK.sub(moved, text)
