"""Reading stages given by position or in one mapping."""

from collections.abc import Mapping, Sequence

from .._check import check_draws_apart, check_name
from .._errors import type_error, value_error
from .._stage import as_stage
from .._types import AnyStage

Names = tuple[str, ...] | None
"""The names of stages; `None` where they have positions."""


def read_stages(
    function: str, argument: str, stages: Sequence[object]
) -> tuple[Names, tuple[AnyStage, ...]]:
    """The names, if there are any, and the children.

    `stages` is what a constructor got as `*stages`: stages, or one mapping of them.
    """
    mappings = [s for s in stages if isinstance(s, Mapping)]
    if mappings and len(stages) > 1:
        raise type_error(
            function,
            f"`{argument}` is a mapping of names {list(mappings[0])} together with "
            f"{len(stages) - 1} more positional arguments.",
            "Give all by position, or all in one mapping.",
        )
    named = mappings[0] if mappings else None
    if not (stages if named is None else named):
        raise value_error(function, f"no {argument}.", "Give at least one.")
    if named is None:
        labelled = [(f"{argument}[{i}]", stage) for i, stage in enumerate(stages)]
        names = None
    else:
        for name in named:
            check_name(function, argument, name)
        check_draws_apart(function, named)
        labelled = [(f'{argument}["{name}"]', stage) for name, stage in named.items()]
        names = tuple(named)
    return names, tuple(as_stage(function, label, stage) for label, stage in labelled)
