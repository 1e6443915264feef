"""A stage on one part of a pytree."""

import functools as ft
from collections.abc import Hashable, Mapping
from typing import Any, SupportsIndex, TypeAlias

import equinox as eqx

from .._check import check_is
from .._errors import nearest, structure_error
from .._stage import Composite, Scope, as_stage, enter
from .._tree import is_none, leaves_with_names
from .._types import AnyStage, MaybeState, Output, PyTree, StageLike

Where: TypeAlias = str | SupportsIndex | tuple[Hashable, ...]
"""A key or index, or a path of them."""


class At(Composite):
    """A stage on one part of its input; see `at`."""

    stage: AnyStage
    where: tuple[Hashable, ...] = eqx.field(static=True)

    def children(self) -> Mapping[str, AnyStage]:
        return {"stage": self.stage}

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        def select(x: PyTree) -> PyTree:
            return ft.reduce(_step, self.where, x)

        found: list[PyTree] = []
        try:
            # Not just `select(x)`: `tree_at` also rejects values that are not part of
            # the pytree, such as static fields.
            eqx.tree_at(select, x, replace_fn=found.append, is_leaf=is_none)
        except Exception as error:
            path = ".".join(map(str, self.where))
            raise structure_error(
                "at",
                f"the input{scope.where} has no entry `{path}`.",
                nearest(path, [name for name, _ in leaves_with_names(x)]),
            ) from error
        y, state = enter(scope, "stage", self.stage, found[0], state=state)
        return eqx.tree_at(select, x, y, is_leaf=is_none), state


def _step(x: Any, key: Any) -> PyTree:
    """Return the entry of `x` at a key, index or attribute name."""
    named = isinstance(key, str) and not isinstance(x, Mapping)
    return getattr(x, key) if named else x[key]


def at(where: Where, stage: StageLike) -> At:
    """Apply a stage to one part of the input; the rest passes through unchanged.

    **Arguments:**

    - `where`: one key or index (`"image"`, `0`), or a tuple of them read as a path
        (`("meta", "w")`). A key of a dict, a field of a Module or a named tuple, an
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
    cure = "Give a key or an index, or a tuple of them read as a path."
    check_is("at", "where", where, tuple | str | SupportsIndex, cure)
    path = where if isinstance(where, tuple | str) else where.__index__()
    return At(child, path if isinstance(path, tuple) else (path,))
