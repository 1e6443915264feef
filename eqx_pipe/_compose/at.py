"""A stage on one part of a pytree."""

import functools as ft
from collections.abc import Callable, Hashable, Mapping
from typing import Any, SupportsIndex, TypeAlias, cast

import equinox as eqx

from .._check import is_integer
from .._errors import describe_value, nearest, structure_error, type_error
from .._stage import Composite, Scope, as_stage, enter
from .._tree import leaves_with_names
from .._types import AnyStage, MaybeState, Output, PyTree, StageLike

Where: TypeAlias = (
    str | SupportsIndex | tuple[Hashable, ...] | Callable[[PyTree], PyTree]
)
"""A key or index, a path of them, or a function as `equinox.tree_at` takes it."""


class At(Composite):
    """A stage on one part of its input; see `at`."""

    stage: AnyStage
    where: tuple[Hashable, ...] | Callable[[PyTree], PyTree] = eqx.field(static=True)

    def children(self) -> Mapping[str, AnyStage]:
        return {"stage": self.stage}

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        select = _as_function(self.where)
        part = _selected(self.where, select, x, scope)
        y, state = enter(scope, "stage", self.stage, part, state=state)
        return eqx.tree_at(select, x, y, is_leaf=_is_none), state


def _as_function(where: Where) -> Callable[[PyTree], PyTree]:
    if not isinstance(where, tuple):
        return cast(Callable[[PyTree], PyTree], where)
    return lambda x: ft.reduce(_step, where, x)


def _step(x: Any, key: Any) -> PyTree:
    """Return the entry of `x` at a key, index or attribute name."""
    named = isinstance(key, str) and not isinstance(x, Mapping)
    return getattr(x, key) if named else x[key]


def _selected(
    where: Where, select: Callable[[PyTree], PyTree], x: PyTree, scope: Scope
) -> PyTree:
    """Return the part that `select` returns, as `equinox.tree_at` finds it."""
    found = []

    def look(part):
        found.append(part)
        return part

    try:
        # Not just `select(x)`: `tree_at` also rejects values that are not part of `x`.
        eqx.tree_at(select, x, replace_fn=look, is_leaf=_is_none)
    except Exception as error:
        path = ".".join(map(str, where)) if isinstance(where, tuple) else ""
        wrong = f"`where` selects no part of the input{scope.where} ({error!r})."
        cure = nearest(path, [name for name, _ in leaves_with_names(x)])
        if path:
            wrong = f"the input{scope.where} has no entry `{path}`."
        else:
            cure += " Return one part of the input unchanged, as for `equinox.tree_at`."
        raise structure_error("at", wrong, cure) from error
    if len(found) != 1:
        raise structure_error(
            "at",
            f"`where` selects {len(found)} parts of the input{scope.where}.",
            "Return one part, or put one `at` after another.",
        )
    return found[0]


def _is_none(x: object) -> bool:
    return x is None


def at(where: Where, stage: StageLike) -> At:
    """Apply a stage to one part of the input; the rest passes through unchanged.

    **Arguments:**

    - `where`: one key or index (`"image"`, `0`), a tuple of them read as a path
        (`("meta", "w")`), or a function from the input to one part of it, as for
        `equinox.tree_at`. A key of a dict, a field of a Module or a named tuple, an
        index of a list or tuple (a negative one counts from the end).
    - `stage`: the stage for the part, which may return anything. Its path is `stage`.

    **Returns:** a stage from pytrees to pytrees with the same containers.

    **Raises:**

    - `TypeError` if `where` has another type, or `stage` is not a stage.
    - `StructureError` (a `ValueError`), when called, if the input has no such part; the
      error lists its entries.

    **Laws:** the lens laws: `at(w, Identity())` is the identity; the selected part of
    the output is the stage's output; `chain(at(w, f), at(w, g))` is
    `at(w, chain(f, g))`.

    !!! example

        >>> import eqx_pipe as ep, jax.numpy as jnp
        >>> ep.at("image", jnp.negative)({"image": 1.0, "label": "a dog"})
        {'image': Array(-1., dtype=float32, weak_type=True), 'label': 'a dog'}
        >>> ep.at((0, "a"), lambda x: x + 1)([{"a": 1}, 2])
        [{'a': 2}, 2]
    """
    child = as_stage("at", "stage", stage)
    if callable(where) and not isinstance(where, type):
        return At(child, where)
    if not isinstance(where, tuple | str) and not is_integer(where):
        raise type_error(
            "at",
            f"`where` is {describe_value(where)}.",
            "Give a key or an index, a tuple of them read as a path, or a function "
            "from the input to one part of it: `lambda x: x.image`.",
        )
    path = where if isinstance(where, tuple | str) else where.__index__()
    return At(child, path if isinstance(path, tuple) else (path,))
