"""What the record of a store says, checked before anything is made of it."""

import json
import math
from pathlib import Path
from typing import Any

from .._errors import describe_value, value_error
from .folder import is_name

FORMAT = 1
"""The version of what is written in a store."""

RECORD = "eqx_pipe_store"
"""The attribute that says what a store is for, as JSON text."""

COUNT = range(1, 2**63)
"""In a schema: what can be counted."""

_LAYOUT = {
    "lengths": [COUNT],
    "split": range(64),
    "count": COUNT,
    "variables": [str],
    "status": str,
}


def read_record(function: str, path: Path, text: str) -> dict[str, Any]:
    """The record of the store at `path`, of which the part on its layout is checked."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise damaged(function, path, f"it is no JSON ({error})") from error
    check_record(function, path, record, {"format": int})
    if record["format"] != FORMAT:
        raise value_error(
            function,
            f"the store `{path}` has the format {record['format']!r}, this "
            f"version of eqx_pipe knows the format {FORMAT}.",
            "Use the version that made it (its attribute `eqx_pipe`), or give a "
            "path where there is nothing yet.",
        )
    check_record(function, path, record, _LAYOUT)
    lengths, split, names = record["lengths"], record["split"], record["variables"]
    if split >= len(lengths) or record["count"] > lengths[split]:
        wrong = f"`split` and `count` are {split} and {record['count']}"
        raise damaged(function, path, f"{wrong} for the lengths {lengths}")
    if math.prod(lengths) not in COUNT:
        raise damaged(function, path, f"`lengths` is {lengths}")
    names = [*names, record["status"]]
    if len(set(names)) < len(names) or not all(map(is_name, names)):
        wrong = describe_value(names)
        raise damaged(function, path, f"the names of its arrays are {wrong}")
    return record


def check_record(function: str, path: Path, record: Any, schema: Any) -> None:
    """Raises a `ValueError` unless a record is as a schema says."""
    found = misfit(record, schema)
    if found is not None:
        raise damaged(function, path, found)


def misfit(value: Any, schema: Any, place: str = "") -> str | None:
    """Where a value that was read from JSON is not as its schema says, if anywhere.

    A schema is a type; a range, for an integer in it; a list of one schema, for a list
    of any length; a dict with the key `str`, for a dict with any keys; or a dict with
    the keys that there must be, beside others.
    """
    kind = schema if isinstance(schema, type) else type(schema)
    fits = isinstance(value, int if kind is range else kind)
    if not fits or type(value) is bool or (kind is range and value not in schema):
        # A list or a dict may be too deep to be written down.
        nested = isinstance(value, list | dict)
        came = f"a {type(value).__name__}" if nested else describe_value(value)
        return f"{_named(place)} is {came}"
    children: list[tuple[str, Any, Any]] = []
    if isinstance(schema, list):
        children = [(f"{place}[{i}]", x, schema[0]) for i, x in enumerate(value)]
    elif isinstance(schema, dict):
        inner = dict.fromkeys(value, schema[str]) if str in schema else schema
        for key, each in inner.items():
            if key not in value:
                return f"{_named(place)} has no `{key}`"
            children.append((f"{place}.{key}" if place else key, value[key], each))
    found = (misfit(x, each, name) for name, x, each in children)
    return next((text for text in found if text is not None), None)


def _named(place: str) -> str:
    return f"`{place}`" if place else "it"


def damaged(function: str, path: Path, what: str) -> ValueError:
    """The error for a record that is not what it was when the store was made."""
    return value_error(
        function,
        f"the record of the store `{path}` is damaged: {what}.",
        "Put back its `zarr.json` from a copy, or give another path; "
        "`xarray.open_zarr` may still show the values.",
    )
