"""Paths from users, checked before anything is written."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from ._errors import describe_value, message, type_error, value_error


def as_path(function: str, path: object, argument: str = "path") -> Path:
    """Return the absolute path; raise unless it is a path on this machine."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    if not isinstance(text, str):
        raise type_error(
            function,
            f"`{argument}` is {describe_value(path)}.",
            "Give a path as a text or a `pathlib.Path`.",
        )
    # A URL would become a folder named `s3:` in the current folder.
    if "://" in text or "\0" in text or not text:
        raise value_error(
            function,
            f"`{argument}` is {describe_value(text)}.",
            "Give a path on a disk, also a shared one; finished files can be copied to "
            "other places.",
        )
    try:
        return Path(os.path.expanduser(text)).absolute()
    except OSError as error:
        raise FileNotFoundError(
            message(
                function,
                f"`{argument}` is {text!r}, relative to a current folder that does not "
                f"exist ({error}).",
                "Give an absolute path, or change to a folder that exists.",
            )
        ) from error


def write_text(
    function: str,
    path: str | os.PathLike[str],
    makers: Mapping[str, Callable[[], str]],
    overwrite: bool,
) -> None:
    """Write the text that the function for the suffix of `path` returns."""
    place = as_path(function, path)
    if place.suffix not in makers:
        known = " or ".join(f"`{suffix}`" for suffix in makers)
        raise value_error(
            function,
            f"`path` is {str(place)!r}, with the suffix {place.suffix!r}.",
            f"Give a path that ends in {known}.",
        )
    if os.path.lexists(place) and not overwrite:
        raise FileExistsError(
            message(
                function,
                f"{str(place)!r} already exists.",
                "Choose another path, or give `overwrite=True`.",
            )
        )
    text = makers[place.suffix]()
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text, encoding="utf-8")
