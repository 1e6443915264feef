"""The law that indices are inside their arrays, and the source lines of equations."""

import linecache
import re
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax

from ..._jaxprs import Equation
from .law import Broken, Undecided, error_line, law
from .trial import Trial

_INDEXED = ("gather", "scatter", "dynamic_slice", "dynamic_update_slice")


@law("index", "no index lies outside of its array, where JAX clamps or drops it.")
def index_law(trial: Trial) -> str | None:
    programs = trial.programs
    indexed = [e for e in programs.equations if e.primitive.name.startswith(_INDEXED)]
    meant = [_is_meant(eqn) for eqn in indexed]
    if all(is_installed(_file_of(eqn)) for eqn in indexed):
        return None
    try:
        error = programs.index_error(trial.leaves)
    except Exception as error:  # such as for gathers with batching dims in JAX 0.12
        raise Undecided(f"JAX's `checkify` raises {error_line(error)}") from error
    if error is None:
        return None
    text = re.sub(_NEGATIVE, _as_written, " ".join(error.split()).removesuffix("."))
    # JAX's message has the shape of the array, but not the operation.
    shape = re.search(r"shape (\(.*?\))", text)
    shapes = [str(getattr(eqn.invars[0].aval, "shape", "")) for eqn in indexed]
    suspects = [
        is_meant
        for is_meant, other in zip(meant, shapes, strict=True)
        if shape is None or shape[1] == other
    ]
    if suspects and all(suspects):
        return f"an index is out of bounds, by a `mode` that was chosen: {text}"
    raise Broken(f"{text}; clip it, or name a `mode` if this is meant")


_NEGATIVE = r"index (-\d+)( is out of bounds for axis \d+ with size (\d+))"


def _as_written(found: re.Match[str]) -> str:
    """Return a negative index as it was before JAX added the size of the axis."""
    return f"index {int(found[1]) - int(found[3])}{found[2]}"


def _is_meant(eqn: Equation) -> bool:
    """Return whether the source line sets a `mode`, or is in an installed package."""
    if eqn.params.get("mode") == jax.lax.GatherScatterMode.CLIP:
        return True
    file, line = next(iter(lines_of(eqn)), ("", 0))
    return is_installed(file) or "mode=" in linecache.getline(file, line)


def _file_of(eqn: Equation) -> str:
    return next(iter(lines_of(eqn)), ("", 0))[0]


def lines_of(eqn: Equation) -> list[tuple[str, int]]:
    """Return the files and lines outside JAX that made an equation, innermost first."""
    trace: Any = eqn.source_info.traceback
    frames = [] if trace is None else trace.frames
    lines = [(frame.file_name, frame.line_num) for frame in frames]
    return [line for line in lines if not line[0].startswith(_JAX)]


def outside_equinox(lines: Sequence[tuple[str, int]]) -> list[str]:
    """Return the files of lines, without those of Equinox's transformations."""
    return [
        file
        for file, _ in lines
        if not file.startswith(_EQUINOX)
        or file.startswith((f"{_EQUINOX}nn", f"{_EQUINOX}internal"))
    ]


_JAX, _EQUINOX = (str(m.__file__).rpartition("__init__")[0] for m in (jax, eqx))


def is_installed(file: str) -> bool:
    """Return whether a file belongs to an installed package."""
    return "site-packages" in file


def is_of_user(eqn: Equation) -> bool:
    """Return whether an equation was made outside of installed packages."""
    files = outside_equinox(lines_of(eqn))
    return bool(files) and not is_installed(files[0])


def user_line(lines: Sequence[tuple[str, int]]) -> str:
    """Return the innermost line outside of installed packages as text, or `""`."""
    for file, line in lines:
        if file and not is_installed(file) and not file.startswith(_THIS):
            return f" (at {file}:{line})"
    return ""


_THIS = __file__.rpartition("testing")[0]
