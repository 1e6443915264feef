"""Patterns of paths, which choose stages or arrays."""

import difflib
import functools as ft
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase

from .._errors import describe_value, quoted, type_error, value_error


def check_patterns(function: str, argument: str, patterns: Iterable[object]) -> None:
    """Raise a `TypeError` unless each is a non-empty string."""
    for pattern in patterns:
        if not isinstance(pattern, str) or not pattern.removeprefix("!"):
            raise type_error(
                function,
                f"`{argument}` holds {describe_value(pattern)}.",
                'Give patterns of paths, as strings: `"head"`, `"blocks.*.attn"`.',
            )


def matches(pattern: str, path: str, *, below: bool = False) -> bool:
    """Return whether a pattern matches a path of names and positions joined by dots.

    Each part is matched like a file name in a shell: `*` and `?` match characters of
    one part, `[abc]` one of these characters, and `**` any number of parts, including
    none. With `below` a pattern also matches all paths below its matches.
    """
    return _matches(tuple(pattern.split(".")), tuple(path.split(".")), below)


# With several `**` the same rest of a path is matched repeatedly.
@ft.cache
def _matches(pattern: tuple[str, ...], path: tuple[str, ...], below: bool) -> bool:
    if not pattern:
        return below or not path
    if pattern[0] == "**":
        ends = range(len(path) + 1)
        return any(_matches(pattern[1:], path[end:], below) for end in ends)
    if not path or not fnmatchcase(path[0], pattern[0]):
        return False
    return _matches(pattern[1:], path[1:], below)


def chooser(patterns: Iterable[str], *, below: bool = False) -> Callable[[str], bool]:
    """Return a function that tests whether a path is chosen; the last match decides.

    A pattern that begins with `!` excludes its matches; if the first pattern does, all
    paths are chosen that no pattern excludes.
    """
    read = [(p.removeprefix("!"), not p.startswith("!")) for p in patterns]

    def chosen(path: str) -> bool:
        found = bool(read) and not read[0][1]
        for pattern, keep in read:
            if matches(pattern, path, below=below):
                found = keep
        return found

    return chosen


def check_matched(
    function: str,
    patterns: Iterable[str],
    paths: Iterable[str],
    what: str = "stage",
    *,
    below: bool = False,
) -> None:
    """Raise a `ValueError` if a pattern matches none of the paths.

    `what` is the noun for a path's target in the message.
    """
    known = list(dict.fromkeys(paths))
    named = _with_parents(known) if below else known
    for pattern in patterns:
        bare = pattern.removeprefix("!")
        if not any(matches(bare, path, below=below) for path in known):
            raise value_error(
                function,
                f"`{pattern}` matches no {what}.",
                nearest_paths(bare, named),
            )


def _with_parents(paths: Iterable[str]) -> list[str]:
    """Return the paths and those of their parents, the shortest first."""
    parts = [path.split(".") for path in paths]
    found = (".".join(p[:end]) for p in parts for end in range(1, len(p) + 1))
    return sorted(dict.fromkeys(found), key=lambda path: path.count("."))


def nearest_paths(path: str, known: Iterable[str], limit: int = 8) -> str:
    """Return a sentence with some of the paths, the likeliest first."""
    paths = list(known)
    close = difflib.get_close_matches(path, paths, n=limit, cutoff=0.5)
    shown = list(dict.fromkeys([*close, *paths]))[:limit]
    more = f", and {len(paths) - limit} more" if len(paths) > limit else ""
    hint = f"Did you mean `{close[0]}`? " if close else ""
    return f"{hint}Known paths: {quoted(shown) or 'none'}{more}."
