"""The pages of the site that are not written in `docs/`.

These are the texts that live where one looks for them on disk (README, CHANGELOG, ...),
and the reference, a page for each room with every public name in it.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import eqx_pipe
import eqx_pipe.search
import eqx_pipe.testing

_ROOT = Path(__file__).parents[2]

_TEXTS = {
    "README.md": "index.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "performance.md",
    "tests/README.md": "tests.md",
}

_ROOMS = {
    "compose": ("Composing", ("_compose", "_stage", "_views", "_errors")),
    "sweep": ("Spaces and sweeps", ("_spaces", "_sweep", "_refill")),
    "search": ("Searches", ("_explore",)),
    "reduce": ("Reductions", ("_reduce",)),
    "shard": ("Sharding", ("_sharding", "_pipelined")),
    "data": ("Data", ("_data",)),
}
"""The pages of the reference: their titles, and the packages whose names they hold."""

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
    """The text of each page of the reference."""
    rooms = {name: f"# {title}\n" for name, (title, _) in _ROOMS.items()}
    for name in sorted(dir(eqx_pipe), key=lambda name: name.endswith("Error")):
        value = getattr(eqx_pipe, name)
        if name.startswith("_") or not hasattr(value, "__module__"):
            continue
        room = value.__module__.split(".")[1]
        page = next(page for page, (_, inside) in _ROOMS.items() if room in inside)
        rooms[page] += f"\n::: eqx_pipe.{name}\n"
    names = [name for name in dir(eqx_pipe.search) if not name.startswith("_")]
    rooms["search"] += "".join(f"\n::: eqx_pipe.search.{name}\n" for name in names)
    names = [name for name in dir(eqx_pipe.testing) if not name.startswith("_")]
    rooms["testing"] = "# Tests of your own\n" + "".join(
        f"\n::: eqx_pipe.testing.{name}\n"
        for name in sorted(names, key=lambda name: (not name.startswith("check"), name))
    )
    return rooms
