"""What is accepted as a source of records, and how one is told from another."""

import zlib
from collections.abc import Mapping
from typing import TypeAlias

import jax
from jaxtyping import Array

from .._errors import describe_value, type_error
from .._tree import leaf_text, leaves_with_names
from .._types import PyTree
from .adapters import has_columns
from .array_source import ArraySource, DeviceSource
from .host_source import HostSource, Records

Source: TypeAlias = DeviceSource | HostSource
"""A source as loaders hold it."""

SourceLike: TypeAlias = Source | Array | Records
"""Whatever is accepted where a source is; an array of JAX stays on the device."""


def as_source(function: str, argument: str, source: SourceLike) -> Source:
    """A source, after a check that it is one."""
    if isinstance(source, DeviceSource | HostSource):
        return source
    if isinstance(source, jax.Array):
        return ArraySource(source)
    lacks = next((a for a in ("getitem", "len") if not hasattr(source, f"__{a}__")), "")
    if not (lacks or isinstance(source, Mapping | tuple)):
        return HostSource(source)
    # Not before it is sure to be shown: this may take long.
    wrong = f"`{argument}` is {describe_value(source)}"
    cure = (
        "Give `ArraySource(tree)`, or anything with `__len__` and `__getitem__`: a "
        "NumPy array or memory map, a Grain `MapDataset`, a Hugging Face dataset, a "
        "list of records. A stream cannot be sought: keep its records, or read them by "
        "number."
    )
    if lacks:
        wrong += f", without `__{lacks}__`"
    elif isinstance(source, Mapping) and any(map(has_columns, source.values())):
        names = " or ".join(f"[{name!r}]" for name in source)
        cure = f"Choose one of its parts: {names}."
    else:
        cure = "Wrap a pytree of arrays: `ArraySource(tree)`. A list of records is a "
        cure += "source as it stands."
    raise type_error(function, wrong + ".", cure)


def schema_of(struct: PyTree) -> int:
    """A number for the structure, shapes and dtypes of a record."""
    named = [(name, leaf_text(leaf)) for name, leaf in leaves_with_names(struct)]
    return zlib.crc32(repr(named).encode())
