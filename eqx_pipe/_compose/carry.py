"""What loops carry from one pass to the next."""

from .._errors import bullets, structure_error
from .._stage import Scope
from .._tree import differences
from .._types import PyTree


def check_carry(function: str, scope: Scope, before: PyTree, after: PyTree) -> None:
    """Raise unless a stage returned what it was given; else no loop can run it."""
    lines = differences(before, after)
    if lines:
        raise structure_error(
            function,
            f"the stage{scope.where} gives something else to the next pass than it "
            f"takes; first what it takes, then what it gives:{bullets(lines)}",
            "Return the structure, shapes and dtypes of the input (in a `scan` those "
            "of the carry); for stages that differ use `chain`.",
        )
