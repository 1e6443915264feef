"""Which stage inside a composite is the one that breaks a law."""

import contextlib
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.tree_util as jtu
from jax.core import Tracer

from ..._stage import Composite, Scope, call, copy_state, is_stateful
from ..._tree import join_path
from ..._types import Key, PyTree
from .compare import Finding
from .held import held
from .trial import Packed, Trial

Find = Callable[[Trial], Finding | None]
"""A law's `find` with its tolerance."""


def locate(find: Find, trial: Trial, finding: Finding) -> tuple[str, Trial, Finding]:
    """The path of the innermost stage that breaks the law, and how it does."""
    for name, inner in trials_inside(trial).items():
        with contextlib.suppress(Exception):
            found = find(inner)
            if found is not None:
                path, inner, found = locate(find, inner, found)
                return join_path(name, path) if path else name, inner, found
    return "", trial, finding


def trials_inside(trial: Trial) -> dict[str, Trial]:
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
    return seen


class _Seen(dict):
    """A dict that may stand in a static field: it is known by its identity."""

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


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
            stage, x = (self.stage, given[0]) if one else (Packed(self.stage), given)
            self.seen[self.name] = Trial(stage, x, copy, key, before)
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
