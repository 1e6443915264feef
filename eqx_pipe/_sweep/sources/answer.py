"""What a worker answers, checked before it is kept."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool

from ..._errors import SweepError, describe_value, message


def checked(
    answer: Any, row: Sequence[jax.ShapeDtypeStruct], count: int, which: str
) -> tuple[list[np.ndarray], Bool[np.ndarray, " rows"]]:
    """The values that a worker answers with, and which are ok; or raises its error.

    There are `count` rows, each with leaves as in `row`. An array that keeps values
    would cast or broadcast others. `which` names the chunk.
    """
    wanted = [f"{leaf.dtype}{[count, *leaf.shape]}" for leaf in row]
    wanted, came = [*wanted, f"bool[{count}]"], describe_value(answer)
    if isinstance(answer, tuple) and len(answer) == 3:
        values, ok, error = answer
        if isinstance(error, Exception):
            raise error
        if isinstance(values, list):
            found = [_form(leaf) for leaf in (*values, ok)]
            if found == wanted:
                return values, ok
            came = ", ".join(found)
    raise SweepError(
        message(
            "sweep",
            f"for {which}, a worker answered {came}, where {', '.join(wanted)} was "
            "asked for.",
            "Nothing of it is kept. Give the workers the same versions of eqx_pipe and "
            "JAX, and see that the executor gives back what the submitted function "
            "returns.",
        )
    )


def _form(leaf: Any) -> str:
    if not isinstance(leaf, np.ndarray):
        return describe_value(leaf)
    return f"{leaf.dtype}{list(leaf.shape)}"
