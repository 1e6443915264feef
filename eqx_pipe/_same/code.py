"""Code, arrays and texts in a form that is the same in every process."""

import dis
import functools as ft
import hashlib
import types
from typing import Any, NamedTuple

import numpy as np

from .._captured import code_names, global_names, is_library
from .._tree import as_data


def digest(text: str | bytes) -> str:
    """Return a short hash of a text."""
    # Names may contain unpaired surrogates.
    data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    return hashlib.sha256(data).hexdigest()[:32]


def array_text(x: Any) -> str:
    """Return an array as its dtype, shape and the hash of its values."""
    raw = np.asarray(as_data(x))
    weak = "~" if getattr(x, "weak_type", False) else ""
    shape = ",".join(map(str, raw.shape))
    return f"{x.dtype}{weak}[{shape}]#{digest(np.ascontiguousarray(raw).tobytes())}"


@ft.lru_cache(1024)
def code_text(code: types.CodeType) -> str:
    """Return code as a text without lines, and names of variables or the function."""
    # Constants count where they are loaded, and a docstring nowhere.
    steps = [
        f"{i.opcode}:{_constant(i.argval) if i.opcode in dis.hasconst else i.arg}"
        for i in dis.get_instructions(code)
    ]
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount
    # Callers may pass parameters by name.
    parameters = code.co_varnames[: counts[0] + counts[2]]
    flags = code.co_flags & ~_HAS_DOCSTRING, code.co_exceptiontable.hex()
    return f"{steps} {code.co_names} {parameters} {counts} {flags}"


_HAS_DOCSTRING = 0x4000000


def _constant(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return code_text(value)
    if isinstance(value, frozenset):
        return f"frozenset{sorted(map(_constant, value))}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant, value))})"
    return repr(value)


class Names(NamedTuple):
    """The names in code that may lead to what it reads.

    `looked_up` are the names of attributes, globals and imports, and `read` the globals
    among them; `every` also has texts. `imported` are the full names that modules which
    the code itself imports may have.
    """

    every: frozenset[str]
    looked_up: frozenset[str]
    read: tuple[str, ...]
    imported: tuple[str, ...]


@ft.lru_cache(1024)
def names_of(code: types.CodeType, package: str) -> Names:
    """Return the names in code of a module in a package."""
    names, texts = code_names(code), _texts_in(code)
    parts = package.split(".")
    above = [".".join(parts[:n]) for n in range(1, len(parts) + 1) if parts[0]]
    return Names(
        every=texts.union(names),
        looked_up=frozenset(names),
        read=tuple(sorted(global_names(code))),
        imported=(*names, *(f"{p}.{name}" for p in above for name in names)),
    )


def _texts_in(code: types.CodeType) -> frozenset[str]:
    # Texts may be names, too: of a keyword, of an attribute of a pattern.
    texts = set[str]()
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            texts |= _texts_in(value)
        for text in value if isinstance(value, tuple) else (value,):
            if isinstance(text, str) and text.isidentifier():
                texts.add(text)
    return frozenset(texts)


_KNOWN = frozenset(
    "absl beartype chex diffrax equinox eqx_pipe jax jaxlib jaxtyping lineax ml_dtypes"
    " numpy optax optimistix optuna scipy typeguard typing_extensions"
    " wadler_lindig".split()
)
"""The packages whose functions read nothing that users change. Others count as code."""


@ft.lru_cache(4096)
def is_fixed_file(filename: str) -> bool:
    """Return whether a file belongs to Python, or to a package that counts as fixed."""
    if not is_library(filename):
        return False
    _, found, rest = filename.replace("\\", "/").rpartition("-packages/")
    return not found or rest.split("/")[0].removesuffix(".py") in _KNOWN
