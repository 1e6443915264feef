"""What the record of a store says, checked before anything is made of it."""

import json
import math
from pathlib import Path
from typing import Any

from .._errors import describe_value, message
from .names import is_name

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
        raise ValueError(
            message(
                function,
                f"the store `{path}` has the format {record['format']!r}, this "
                f"version of eqx_pipe knows the format {FORMAT}.",
                "Use the version that made it (its attribute `eqx_pipe`), or give a "
                "path where there is nothing yet.",
            )
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


def misfit(value: Any, schema: Any, place: str = "it") -> str | None:
    """Where a value that was read from JSON is not as its schema says, if anywhere.

    A schema is a type; a range, for an integer in it; a list of one schema, for a list
    of any length; a dict with the key `str`, for a dict with any keys; or a dict with
    the keys that there must be, beside others.
    """
    children: list[tuple[str, Any, Any]] = []
    if isinstance(schema, range):
        fits = type(value) is int and value in schema
    elif isinstance(schema, type):
        fits = type(value) is schema
    elif isinstance(schema, list):
        fits = type(value) is list
        if fits:
            children = [(f"[{i}]", x, schema[0]) for i, x in enumerate(value)]
    else:
        fits = type(value) is dict
        keys = value if fits and str in schema else schema
        if fits and not all(key in value for key in keys):
            missing = next(key for key in keys if key not in value)
            return f"{place} has no `{missing}`"
        if fits:
            children = [(k, value[k], schema.get(str, schema.get(k))) for k in keys]
    if not fits:
        return f"{place} is {describe_value(value)}"
    found = (misfit(x, inner, f"`{name}`") for name, x, inner in children)
    return next((text for text in found if text is not None), None)


def damaged(function: str, path: Path, what: str) -> ValueError:
    """The error for a record that is not what it was when the store was made."""
    return ValueError(
        message(
            function,
            f"the record of the store `{path}` is damaged: {what}.",
            "Put back its `zarr.json` from a copy, or give another path; "
            "`xarray.open_zarr` may still show the values.",
        )
    )
