"""The law that indices are inside their arrays, and the source lines of equations."""

import linecache
import re
from collections.abc import Sequence
from typing import Any

import jax
from jax.experimental import checkify

from ..._jaxprs import Equation
from .law import Broken, Undecided, error_line, law
from .trial import Trial

_INDEXED = ("gather", "scatter", "dynamic_slice", "dynamic_update_slice")


@law("index", "no index lies outside of its array, where JAX clamps or drops it.")
def index_law(trial: Trial) -> str | None:
    programs = trial.programs
    if not any(name.startswith(_INDEXED) for name in programs.primitives):
        return None
    checked = checkify.checkify(programs.function, errors=checkify.index_checks)
    try:
        with programs.context():
            error = jax.jit(checked)(*trial.leaves)[0].get()
    except Exception as error:  # such as for gathers with batching dims in JAX 0.12
        raise Undecided(f"JAX's `checkify` raises {error_line(error)}") from error
    if error is None:
        return None
    text = re.sub(_NEGATIVE, _as_written, " ".join(error.split()).removesuffix("."))
    # JAX's message has the shape of the array, but not the operation.
    shape = re.search(r"shape (\(.*?\))", text)
    suspects = [
        eqn
        for eqn in programs.equations
        if eqn.primitive.name.startswith(_INDEXED)
        and (shape is None or shape[1] == str(getattr(eqn.invars[0].aval, "shape", "")))
    ]
    if suspects and all(map(_is_meant, suspects)):
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


def lines_of(eqn: Equation) -> list[tuple[str, int]]:
    """Return the files and lines outside JAX that made an equation, innermost first."""
    trace: Any = eqn.source_info.traceback
    frames = [] if trace is None else trace.frames
    jax_itself = str(jax.__file__).rpartition("__init__")[0]
    lines = [(frame.file_name, frame.line_num) for frame in frames]
    return [line for line in lines if not line[0].startswith(jax_itself)]


def is_installed(file: str) -> bool:
    """Return whether a file belongs to an installed package."""
    return "site-packages" in file


def user_line(lines: Sequence[tuple[str, int]]) -> str:
    """Return the innermost line outside of installed packages as text, or `""`."""
    for file, line in lines:
        if file and not is_installed(file) and not file.startswith(_THIS):
            return f" (at {file}:{line})"
    return ""


_THIS = __file__.rpartition("testing")[0]
