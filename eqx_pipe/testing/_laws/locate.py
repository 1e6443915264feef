"""Locate the stage inside a pipeline that breaks a law, and print its input."""

import contextlib
from typing import Any

import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer

from ..._stage import Composite, Scope, copy_state, is_stateful
from ..._tree import is_key_array, join_path, leaf_text, leaves_with_names
from ..._types import PyTree, StageLike
from .law import Broken, Law, must_work
from .trial import Call, Trial, copied, trial_of


def locate(law: Law, trial: Trial, how: Broken) -> tuple[str, Trial, Broken]:
    """Return the path of the innermost stage that breaks the law, with its trial."""
    for name, inner in _trials_inside(trial).items():
        try:
            _ = inner.plain
            with must_work("a call"):
                law.test(inner)
        except Broken as found:
            path, inner, found = locate(law, inner, found)
            return join_path(name, path) if path else name, inner, found
        except Exception:
            continue
    return "", trial, how


def _trials_inside(trial: Trial) -> dict[str, Trial]:
    """Return a trial for each child of a composite, with its inputs from a plain call.

    The branches of `cond` and similar stages are left out: their inputs are traced.
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
        # In a loop or under `vmap` the inputs are tracers, so no law can be checked.
        given = jtu.tree_leaves((args, named, state, key))
        if name in seen or any(isinstance(v, Tracer) for v in given):
            return
        own = copy_state(state) if is_stateful(stage) else None
        names = ("x",) if len(args) == 1 else tuple(f"x{i}" for i in range(len(args)))
        inputs = {**dict(zip(names, args, strict=True)), **named}
        seen[name] = trial_of(Call(stage, inputs, own, key, names), trial.own_tolerance)

    call = trial.call
    if isinstance(call.fn, Composite) and len(call.args) == 1:
        (x,) = jtu.tree_map(copied, list(call.args.values()))
        with contextlib.suppress(Exception):
            call.fn.run(x, copy_state(call.state), Scope(call.key, watch=watch))
    return seen


def input_text(tree: PyTree) -> str:
    """Return an input as text: values of small arrays, shapes of large arrays."""
    named = leaves_with_names(tree)
    shown = [f"{name}: {_value_text(v)}".removeprefix(": ") for name, v in named[:6]]
    return ", ".join(shown + ["..."] * (len(named) > 6)) or "nothing"


def _value_text(leaf: Any) -> str:
    if not hasattr(leaf, "dtype") or is_key_array(leaf):
        return leaf_text(leaf)
    array = np.asarray(leaf)
    if array.size > 12:
        return leaf_text(leaf)
    wide = array.astype(np.float64) if array.dtype.kind == "V" else array
    text = np.array2string(wide, separator=", ", precision=6)
    return f"{' '.join(text.split())} {leaf_text(leaf)}"
