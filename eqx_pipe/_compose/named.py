"""Several inputs as one mapping from names: looked up, and one of them replaced."""

from collections.abc import Collection, Iterable, Mapping

from .._check import check_name
from .._errors import describe_value, nearest, quoted, structure_error, type_error
from .._stage import Scope, enter
from .._types import AnyStage, MaybeState, Output, PyTree, Segment


def check_over(function: str, over: object) -> None:
    """Raises unless `over` is `None`, or can be the name of an input."""
    if over is not None and not isinstance(over, str):
        raise type_error(
            function,
            f"`over` is {describe_value(over)}.",
            'Give the name of the input that every stage replaces, as `over="x"`. (A '
            "stage cannot have the name `over`.)",
        )
    if over is not None:
        check_name(function, "over", over)


def named_over(over: str | None) -> frozenset[str]:
    """The name of the entry that is worked on, if there is one."""
    return frozenset() if over is None else frozenset([over])


def in_order(
    function: str,
    stages: Iterable[tuple[Segment, AnyStage]],
    over: str | None,
    x: PyTree,
    state: MaybeState,
    scope: Scope,
) -> Output:
    """Runs stages left to right; with `over` each is given the whole mapping."""
    y = x if over is None else look_up(function, [over], x, scope)[over]
    for segment, stage in stages:
        given = y if over is None else replaced(x, over, y)
        y, state = enter(scope, segment, stage, given, state=state)
    return y, state


def look_up(
    function: str, names: Iterable[str], x: PyTree, scope: Scope
) -> Mapping[str, PyTree]:
    """The inputs of these names; raises unless `x` is a mapping that has them all."""
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
            f"the input{scope.where} has no {quoted(missing)}.",
            nearest(missing[0], x),
        )
    return {name: x[name] for name in names}


def look_up_all(names: Collection[str], x: PyTree, scope: Scope) -> dict[str, PyTree]:
    """The inputs of a graph by name; raises unless they are those that it takes."""
    inputs = look_up("graph", names, x, scope)
    extra = [name for name in x if name not in names]
    if extra:
        listed = quoted(extra)
        raise structure_error(
            "graph",
            f"the input{scope.where} has {listed}, which the graph does not take.",
            f"{nearest(extra[0], names)} Hand on only these: "
            '`eqx_pipe.feed(graph, x="x")`.',
        )
    return dict(inputs)


def replaced(x: Mapping[str, PyTree], name: str, y: PyTree) -> dict[str, PyTree]:
    """The mapping with another value of that name; the rest as it is."""
    return {**x, name: y}


def _example(names: Iterable[str]) -> str:
    return "`{" + ", ".join(f'"{name}": ...' for name in names) + "}`"
