"""The law that indices are inside their arrays."""

import linecache
import re
from typing import Any

import jax
from jax.experimental import checkify

from ..._jaxprs import Equation, equations
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
            error = jax.jit(checked)(*programs.leaves(trial.call))[0].get()
    except Exception as error:  # such as for gathers with batching dims in JAX 0.12
        raise Undecided(f"JAX's `checkify` raises {error_line(error)}") from error
    if error is None:
        return None
    text = " ".join(error.split()).removesuffix(".")
    # JAX's message has the shape of the array, but not the operation.
    shape = re.search(r"shape (\(.*?\))", text)
    suspects = [
        eqn
        for eqn in equations(programs.jaxpr)
        if eqn.primitive.name.startswith(_INDEXED)
        and (shape is None or shape[1] == str(getattr(eqn.invars[0].aval, "shape", "")))
    ]
    if suspects and all(map(_is_meant, suspects)):
        return f"an index is out of bounds, by a `mode` that was chosen: {text}"
    raise Broken(f"{text}; clip it, or name a `mode` if this is meant")


def _is_meant(eqn: Equation) -> bool:
    """Return whether the source line sets a `mode`, or is in an installed package."""
    if eqn.params.get("mode") == jax.lax.GatherScatterMode.CLIP:
        return True
    file, line = place_of(eqn)
    return "site-packages" in file or "mode=" in linecache.getline(file, line)


def place_of(eqn: Equation) -> tuple[str, int]:
    """Return the file and line outside JAX that made an equation."""
    trace: Any = eqn.source_info.traceback
    frames = [] if trace is None else trace.frames
    jax_itself = str(jax.__file__).rpartition("__init__")[0]
    own = [frame for frame in frames if not frame.file_name.startswith(jax_itself)]
    return (own[0].file_name, own[0].line_num) if own else ("", 0)
