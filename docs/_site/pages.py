"""The pages of the site that are not written in `docs/`.

These are the texts that live where one looks for them on disk (README, CHANGELOG, ...),
and the reference: two pages for the names of `eqx_pipe`, one for each public module.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import eqx_pipe

_ROOT = Path(__file__).parents[2]

_TEXTS = {
    "README.md": "index.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "performance.md",
    "tests/README.md": "tests.md",
}

_COMPOSE = ("_compose", "_stage", "_errors")
"""The packages whose names are on the first page of the reference of `eqx_pipe`."""

_MODULES = {
    "search": "Searches",
    "reduce": "Reductions",
    "sharding": "Sharding",
    "data": "Data",
    "testing": "Tests of your own",
}
"""The public modules, and the titles of their pages."""

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages."""
    for source, target in _TEXTS.items():
        text = (_ROOT / source).read_text()
        files.append(File.generated(config, target, content=_moved(text, source)))
    for name, text in _reference().items():
        files.append(File.generated(config, f"api/{name}.md", content=text))
    return files


def on_page_markdown(
    markdown: str, page: Page, config: MkDocsConfig, files: Files
) -> str:
    """The text of a page in `docs/` with links to the pages that live elsewhere."""
    if page.file.generated_by is not None:
        return markdown
    return _moved(markdown, f"docs/{page.file.src_uri}")


def _moved(text: str, source: str) -> str:
    """The text with links that lead where the pages lie on the site."""

    def moved(found: re.Match[str]) -> str:
        picture, words, target, part = found.groups()
        path = (_ROOT / source).parent.joinpath(target).resolve()
        path = path / "README.md" if path.is_dir() else path
        inside = path.relative_to(_ROOT).as_posix()
        if path.parent == _ROOT / "examples":
            inside = f"docs/examples/{path.stem}.md"
            if part is not None and part.startswith("#picture-"):
                shown = f"examples/{path.stem}-{part.removeprefix('#picture-')}.png"
                return f"[![{words}]({shown})](examples/{path.stem}.md)"
        elif path.exists() and path.suffix != ".md" and not picture:
            return f"{words} (`{inside}`)" if inside not in words else words
        page = _TEXTS.get(inside, inside.removeprefix("docs/"))
        return f"{picture}[{words}]({page}{part or ''})"

    return _LINK.sub(moved, text)


def _reference() -> dict[str, str]:
    """Return the text of each page of the reference."""
    pages = {"compose": "# Composing\n", "sweep": "# Spaces and sweeps\n"}
    names = set(eqx_pipe.__all__) - set(_MODULES)
    for name in sorted(names, key=lambda name: (name.endswith("Error"), name)):
        package = getattr(eqx_pipe, name).__module__.split(".")[1]
        page = "compose" if package in _COMPOSE else "sweep"
        pages[page] += f"\n::: eqx_pipe.{name}\n"
    for module, title in _MODULES.items():
        found = [n for n in dir(getattr(eqx_pipe, module)) if not n.startswith("_")]
        found.sort(key=lambda name: (not name.startswith("check"), name))
        pages[module] = f"# {title}\n" + "".join(
            f"\n::: eqx_pipe.{module}.{name}\n" for name in found
        )
    return pages
