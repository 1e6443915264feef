"""Look up and replace inputs in a mapping from names."""

from collections.abc import Iterable, Mapping

from .._check import check_name
from .._errors import describe_value, nearest, quoted, structure_error, type_error
from .._stage import Scope, enter
from .._types import AnyStage, MaybeState, Output, PyTree, Segment


def check_over(function: str, over: object) -> None:
    """Raise unless `over` is `None` or a valid name of an input."""
    if over is not None and not isinstance(over, str):
        raise type_error(
            function,
            f"`over` is {describe_value(over)}.",
            'Give the name of the input that every stage replaces, as `over="x"`. (A '
            "stage cannot have the name `over`.)",
        )
    if over is not None:
        check_name(function, "over", over)


def in_order(
    function: str,
    stages: Iterable[tuple[Segment, AnyStage]],
    over: str | None,
    x: PyTree,
    state: MaybeState,
    scope: Scope,
) -> Output:
    """Run stages left to right; with `over` each gets the whole mapping."""
    y, before = entry_of(function, over, x, scope), None
    for segment, stage in stages:
        given = y if over is None else replaced(x, over, y)
        try:
            y, state = enter(scope, segment, stage, given, state=state)
        except Exception as error:
            if y is None and before is not None:
                error.add_note(
                    f"The stage before it, `{before}`, returned None: does it lack a "
                    "`return`?"
                )
            raise
        before = segment
    return y, state


def entry_of(function: str, over: str | None, x: PyTree, scope: Scope) -> PyTree:
    """Return the entry that each stage replaces; without `over` the whole input."""
    return x if over is None else look_up(function, [over], x, scope)[over]


def look_up(
    function: str, names: Iterable[str], x: PyTree, scope: Scope, exact: bool = False
) -> dict[str, PyTree]:
    """Return the inputs of these names; raise unless `x` is a mapping with all of them.

    If `exact`, `x` must have no other entries.
    """
    names = tuple(names)
    if not isinstance(x, Mapping):
        raise structure_error(
            function,
            f"the input{scope.where} is {describe_value(x)}.",
            f"Give a dict of the inputs by name: {_example(names)}.",
        )
    missing = [name for name in names if name not in x]
    if missing:
        raise structure_error(
            function,
            f"the input{scope.where} has no entry {quoted(missing)}.",
            nearest(missing[0], x),
        )
    extra = [name for name in x if name not in names]
    if exact and extra:
        only = ", ".join(f'{name}="{name}"' for name in names)
        raise structure_error(
            function,
            f"the input{scope.where} has the entry {quoted(extra)}, which the "
            f"{function} does not take.",
            f"{nearest(extra[0], names)} Pass only these: "
            f"`eqx_pipe.feed({function}, {only})`.",
        )
    return {name: x[name] for name in names}


def replaced(x: Mapping[str, PyTree], name: str, y: PyTree) -> dict[str, PyTree]:
    """Return the mapping with the entry `name` replaced."""
    return {**x, name: y}


def _example(names: Iterable[str]) -> str:
    return "`{" + ", ".join(f'"{name}": ...' for name in names) + "}`"
