"""The page of mistakes: what our tests get wrong on purpose, and what they are told."""

import ast
import functools as ft
import importlib
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FunctionType

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import eqx_pipe

_TESTS = Path(__file__).parents[2] / "tests"

_HEAD = """# Mistakes and their cures

Every mistake on this page is made by our tests, which hold the message to its promise:
it says what was wrong, where, and what to do. The page is made from them, with the
messages as they are. Helpers such as `key()`, `ones` or `linear` are small values that
tests share.
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the page."""
    files.append(File.generated(config, "mistakes.md", content=_page()))
    return files


def _page() -> str:
    """The text of the page: for each room its mistakes, each with its answer."""
    eqx_pipe.use_cpu_devices(8)
    sys.path.insert(0, str(_TESTS))
    try:
        rooms = importlib.import_module("mistakes").ROOMS
    finally:
        sys.path.remove(str(_TESTS))
    parts = [_HEAD]
    for room, rows in rooms.items():
        parts.append(f"## {room}\n")
        for _, make, *_ in rows:
            parts.append(f"```python\n{_code(make)}\n```\n")
            parts.append(f"```{{.text .message}}\n{_answer(make)}\n```\n\n---\n")
    return "\n".join(parts)


def _answer(make: Callable[[], object]) -> str:
    """The error, with the notes below it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            make()
        except Exception as error:
            text = error.args[0] if isinstance(error, KeyError) else error
            notes = getattr(error, "__notes__", [])
            return "\n".join([f"{type(error).__name__}: {text}", *notes])
    raise AssertionError("no error")


def _code(make: object) -> str:
    """What is done wrong, as it is written in the tests."""
    if not isinstance(make, FunctionType):
        return f"{make}"
    source, tree = _parsed(make.__code__.co_filename)
    line = make.__code__.co_firstlineno
    for node in ast.walk(tree):  # from outside to inside
        if getattr(node, "lineno", None) != line:
            continue
        if isinstance(node, ast.Lambda):
            return ast.unparse(node.body)
        if isinstance(node, ast.FunctionDef):
            return "\n".join(map(ast.unparse, node.body))
    return source.splitlines()[line - 1].strip()


@ft.cache
def _parsed(name: str) -> tuple[str, ast.Module]:
    source = Path(name).read_text()
    return source, ast.parse(source)
