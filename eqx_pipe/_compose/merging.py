"""Combinators that join the outputs of their stages."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, SupportsIndex, cast

import equinox as eqx

from .._check import check_callable, check_draws_apart, is_integer
from .._errors import describe_value, nearest, type_error, value_error
from .._stage import Scope, as_stage, enter
from .._stage.signature import why_not
from .._tree import join_path
from .._types import AnyStage, MaybeState, Output, PyTree, StageLike
from .container import Container
from .merge import MERGES, Merge, merge_outputs, on_one_device_set
from .named import Names


class Merging(Container):
    """The base of `Parallel` and `Gated`.

    `merge` is the stage, where a callable was given, else `None` and `builtin` says
    which of ours.
    """

    if TYPE_CHECKING:
        merge: ClassVar[AnyStage | None]
        builtin: ClassVar[str | None]
        axis: ClassVar[int]
    else:
        merge: eqx.AbstractVar[AnyStage | None]
        builtin: eqx.AbstractVar[str | None]
        axis: eqx.AbstractVar[int]

    def _merge_child(self) -> dict[str, AnyStage]:
        return {} if self.builtin else {"merge": cast(AnyStage, self.merge)}

    def settings(self) -> dict[str, Any]:
        settings = {"merge": self.builtin} if self.builtin else {}
        along = self.builtin in ("concat", "stack")
        return {**settings, "axis": self.axis} if along else settings

    def paths(self, scope: Scope) -> list[str]:
        """The paths of the stages, counted from the root."""
        return [join_path(scope.path, segment) for segment in self.segments]

    def merged(
        self, outputs: Sequence[PyTree], state: MaybeState, scope: Scope
    ) -> Output:
        """One output from those of the stages."""
        if self.builtin is None:
            merge = self._merge_child()["merge"]
            return enter(scope, "merge", merge, tuple(outputs), state=state)
        function, names = self._function, list(map(str, self.segments))
        with on_one_device_set(function):
            y = merge_outputs(
                function, self.builtin, self.axis, names, self.paths(scope), outputs
            )
        return y, state


def read_merge(
    function: str,
    merge: Merge | StageLike,
    axis: SupportsIndex,
    names: Names,
    reserved: Sequence[str] = (),
) -> tuple[AnyStage | None, str | None, int]:
    """The fields `merge`, `builtin` and `axis`; raises unless they fit the names.

    `reserved` are names that no stage may have, besides that of a callable merge.
    """
    if not is_integer(axis):
        raise type_error(
            function,
            f"`axis` is {describe_value(axis)}.",
            "Give one integer; a negative one counts from the end.",
        )
    stage, builtin = None, None
    if isinstance(merge, str):
        builtin = _read_builtin(function, merge, names)
    else:
        stage = _read_callable(function, merge)
        reserved = (*reserved, "merge")
    for name in set(reserved) & set(names or ()):
        raise value_error(
            function,
            f"a stage has the name `{name}`, which is that of an argument.",
            "Rename the stage.",
        )
    check_draws_apart(function, (*(names or ()), *reserved))
    return stage, builtin, axis.__index__()


def _read_builtin(function: str, merge: str, names: Names) -> str:
    if merge not in MERGES:
        raise value_error(
            function,
            f"`merge` is {describe_value(merge)}.",
            f"{nearest(merge, MERGES)} Or give a callable on the tuple of outputs.",
        )
    if merge == "dict" and names is None:
        raise value_error(
            function,
            '`merge="dict"`, and the stages have no names.',
            'Give them in a mapping from names to stages, or use `merge="tuple"`.',
        )
    return merge


def _read_callable(function: str, merge: StageLike) -> AnyStage:
    check_callable(function, "merge", merge)
    wrong = why_not(merge, 1)
    if wrong:
        raise type_error(
            function,
            f"`merge` cannot be called with one argument: {wrong}.",
            "It gets one tuple with the outputs of all stages: `lambda outputs: "
            "outputs[0] + outputs[1]`.",
        )
    return as_stage(function, "merge", merge)
