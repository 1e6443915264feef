"""Trying a law on a stage, and saying which stage inside it breaks it, and how."""

import contextlib
import dataclasses
import functools as ft
import sys
from typing import Any

import equinox as eqx
import jax.tree_util as jtu
from equinox.nn import State
from jax.core import Tracer

from ..._stage import Composite, Lift, Scope, call, copy_state, is_stateful
from ..._tree import join_path
from ..._types import Key, PyTree, StageLike
from .compare import Bound, tolerance_of
from .held import held
from .law import Broken, Law, broken
from .shrink import input_text, shrink
from .trial import Trial, trial_of


def check(
    law: Law,
    stage: StageLike,
    x: PyTree,
    state: State | None,
    key: Key | None,
    rtol: Bound,
    atol: Bound,
    **options: Any,
) -> Trial:
    """Raises an `AssertionError` if a stage breaks a law; returns what was tried."""
    __tracebackhide__ = True
    function = f"testing.check_{law.name}"
    tolerance = tolerance_of(function, rtol, atol)
    trial = trial_of(function, stage, x, state, key, tolerance)
    law = dataclasses.replace(law, test=ft.partial(law.test, **options))
    try_law(law, trial)
    return trial


def try_law(law: Law, trial: Trial) -> None:
    """The same for arguments that have been checked."""
    __tracebackhide__ = True
    how = law.broken_by(trial)
    if how is None:
        return
    path, inner, how = locate(law, trial, how)
    if not _hypothesis_shrinks():
        with contextlib.suppress(Exception):
            inner, how = shrink(law, inner, how)
    raise broken_by_stage(law, path, inner, how)


def broken_by_stage(law: Law, path: str, trial: Trial, how: Broken) -> AssertionError:
    """The error for a law broken by the stage at a path."""
    return broken(
        f"check_{law.name}",
        f"the law `{law.name}` is broken: {law.rule}",
        how,
        [f"stage: {f'`{path}` ' if path else ''}({stage_text(trial.stage)})"],
        [
            f"smallest input found: {input_text(trial.x)}",
            f"If this is meant, leave the law out: `check_stage(..., "
            f"skip=({law.name!r},))`.",
        ],
    )


def _hypothesis_shrinks() -> bool:
    """Whether hypothesis runs the test, which itself looks for a smaller input."""
    hypothesis = sys.modules.get("hypothesis")
    return hypothesis is not None and hypothesis.currently_in_test_context()


def stage_text(stage: StageLike) -> str:
    """The name of a stage's type, or of the function that it stands for."""
    fn = stage.fn if isinstance(stage, Lift) else stage
    return getattr(fn, "__name__", type(fn).__name__)


# Which stage inside a composite breaks the law.


def locate(law: Law, trial: Trial, how: Broken) -> tuple[str, Trial, Broken]:
    """The path of the innermost stage that breaks the law, and how it does."""
    for name, inner in _trials_inside(trial).items():
        with contextlib.suppress(Exception):
            found = law.broken_by(inner)
            if found is not None:
                path, inner, found = locate(law, inner, found)
                return join_path(name, path) if path else name, inner, found
    return "", trial, how


def _trials_inside(trial: Trial) -> dict[str, Trial]:
    """For each child of a composite what it is called with in a plain call.

    Those are left out whose input is only known while something is traced, such as the
    branches of a `cond`.
    """
    if not isinstance(trial.stage, Composite):
        return {}
    seen = _Seen()
    with contextlib.suppress(Exception):
        spied = _with_spies(trial.stage, seen)
        # A stage that keeps its input is seen to do so if this is another than before.
        x = jtu.tree_map(lambda v: v.copy() if eqx.is_array(v) else v, trial.x)
        call(spied, (x,), copy_state(trial.state), Scope(trial.key))
    return {
        k: dataclasses.replace(v, tolerance=trial.tolerance) for k, v in seen.items()
    }


class _Seen(dict):
    """A dict that may stand in a static field: it is known by its identity."""

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


class _Packed(eqx.Module):
    """A stage of several inputs as a stage of one tuple."""

    stage: StageLike

    def __call__(self, x: PyTree, *, key: Key | None = None) -> PyTree:
        return call(self.stage, tuple(x), None, Scope(key))[0]


class _Spy(eqx.nn.StatefulLayer):
    """A stage that notes what it is called with."""

    stage: Any
    name: str = eqx.field(static=True)
    seen: _Seen = eqx.field(static=True)

    def is_stateful(self) -> bool:
        return is_stateful(self.stage)

    def __call__(self, *args: PyTree, key: Key | None = None) -> Any:
        given, state = args, None
        if self.is_stateful():
            *given, state = args
        copy, before = copy_state(state), held(self.stage)
        y, new = call(self.stage, tuple(given), state, Scope(key))
        known = not any(isinstance(v, Tracer) for v in jtu.tree_leaves((args, key)))
        if known and self.name not in self.seen:
            one = len(given) == 1
            stage, x = (self.stage, given[0]) if one else (_Packed(self.stage), given)
            self.seen[self.name] = Trial(stage, x, copy, key, held=before)
        return (y, new) if self.is_stateful() else y


def _with_spies(stage: Composite, seen: _Seen) -> Any:
    """The composite with each child behind a spy."""
    names: dict[int, list[str]] = {}
    for name, child in stage.children().items():
        names.setdefault(id(child), []).append(name)  # one child may stand twice

    def spied(node: Any) -> Any:
        waiting = names.get(id(node))
        return _Spy(node, waiting.pop(0), seen) if waiting else node  # pyright: ignore

    return jtu.tree_map(
        spied, stage, is_leaf=lambda node: node is not stage and id(node) in names
    )
