"""Trying a law on a stage, and which stage inside it breaks the law."""

import contextlib
import dataclasses
import functools as ft
from typing import Any

import equinox as eqx
import jax.tree_util as jtu
import numpy as np
from equinox.nn import State
from jax.core import Tracer

from ..._stage import Composite, Lift, Scope, call, copy_state, is_stateful
from ..._tree import join_path, leaf_text, leaves_with_names
from ..._types import Key, PyTree, StageLike
from .compare import Bound
from .held import held
from .law import Broken, Law, broken
from .trial import Trial, is_numbers, trial_of


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
    trial = trial_of(f"testing.{law.check}", stage, x, state, key, rtol, atol)
    law = dataclasses.replace(law, test=ft.partial(law.test, **options))
    try_law(law, trial)
    return trial


def try_law(law: Law, trial: Trial) -> None:
    """The same for arguments that have been checked."""
    __tracebackhide__ = True
    how = law.broken_by(trial)
    if how is None:
        return
    raise broken_by_stage(law, *locate(law, trial, how))


def broken_by_stage(law: Law, path: str, trial: Trial, how: Broken) -> AssertionError:
    """The error for a law broken by the stage at a path."""
    leave_out = f"check_stage(..., skip=({law.name!r},))"
    return broken(
        law.check,
        f"the law `{law.name}` is broken: {law.rule}",
        how,
        [f"stage: {f'`{path}` ' if path else ''}({stage_text(trial.stage)})"],
        [
            f"input: {input_text(trial.x)}",
            f"If this is meant, leave the law out: `{leave_out}`.",
        ],
    )


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
    seen: dict[str, Trial] = {}

    def watch(
        name: str,
        stage: StageLike,
        args: tuple[PyTree, ...],
        state: Any,
        key: Any,
        named: dict[str, PyTree],
    ) -> None:
        # In a loop or under `vmap` there are no numbers to try a law on.
        if name in seen or any(
            isinstance(v, Tracer) for v in jtu.tree_leaves((args, named, state, key))
        ):
            return
        own = copy_state(state) if is_stateful(stage) else None
        stage, x = (
            (stage, args[0])
            if len(args) == 1 and not named
            else (_Packed(stage), (args, named))
        )
        seen[name] = Trial(stage, x, own, key, trial.tolerance, held(stage))

    if isinstance(trial.stage, Composite):
        # A stage that keeps its input is seen to do so if this is another than before.
        x = jtu.tree_map(lambda v: v.copy() if eqx.is_array(v) else v, trial.x)
        with contextlib.suppress(Exception):
            trial.stage.run(x, copy_state(trial.state), Scope(trial.key, watch=watch))
    return seen


class _Packed(eqx.Module):
    """A stage of several inputs as a stage of one: those by position, and by name."""

    stage: StageLike

    def __call__(self, x: PyTree, *, key: Key | None = None) -> PyTree:
        args, named = x
        return call(self.stage, tuple(args), None, Scope(key), named)[0]


def input_text(x: PyTree) -> str:
    """An input in a line or two: values of small arrays, shapes of large ones."""
    named = leaves_with_names(x)
    shown = [f"{name}: {_value_text(v)}".removeprefix(": ") for name, v in named[:6]]
    return ", ".join(shown + ["..."] * (len(named) > 6)) or "nothing"


def _value_text(leaf: Any) -> str:
    if not is_numbers(leaf):
        return leaf_text(leaf)
    array = np.asarray(leaf)
    if array.size and not array.astype(bool).any():
        return f"zeros {leaf_text(leaf)}"
    if array.size > 12:
        return leaf_text(leaf)
    wide = array.astype(np.float64) if array.dtype.kind == "V" else array
    text = np.array2string(wide, separator=", ", precision=6)
    return f"{' '.join(text.split())} {leaf_text(leaf)}"
