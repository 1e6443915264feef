"""A stage on one part of a pytree."""

import copy
import dataclasses
import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, SupportsIndex, TypeAlias

import equinox as eqx
import jax.tree_util as jtu
import numpy as np

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
    path: tuple[Hashable, ...] | None = eqx.field(static=True)
    select: (
        Callable[[PyTree], PyTree] | None
    )  # the `tree_at`-style function, where one was given

    def children(self) -> Mapping[str, AnyStage]:
        return {"stage": self.stage}

    def settings(self) -> dict[str, Any]:
        if self.path is None:
            return {"where": getattr(self.select, "__name__", str(self.select))}
        return {"where": [k if isinstance(k, int) else str(k) for k in self.path]}

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        if self.select is None:
            part, put = _followed(self.path or (), x, scope)
        else:
            part, put = _selected(self.select, x, scope)
        y, state = enter(scope, "stage", self.stage, part, state=state)
        return put(y), state


Put = Callable[[PyTree], PyTree]


def _followed(
    path: tuple[Hashable, ...], x: PyTree, scope: Scope
) -> tuple[PyTree, Put]:
    """The part at the end of `path`, and how to put another in its place."""
    part, rebuilds = x, []
    for depth, key in enumerate(path):
        labels, parts, rebuild = _one_level(part)
        index = _position(key, part, labels)
        if index is None:
            inside = "".join(f".{k}" for k in path[:depth])
            whole = f"`{inside}` of the input" if inside else "the input"
            raise structure_error(
                "at",
                f"{whole}{scope.where}, a `{type(part).__name__}`, has no part "
                f"`{key}`.",
                nearest(key, labels),
            )
        rebuilds.append((rebuild, parts, index))
        part = parts[index]

    def put(y: PyTree) -> PyTree:
        for rebuild, parts, index in reversed(rebuilds):
            y = rebuild([*parts[:index], y, *parts[index + 1 :]])
        return y

    return part, put


def _one_level(
    x: PyTree,
) -> tuple[Sequence[Hashable], list[PyTree], Callable[[list], PyTree]]:
    """One level of a pytree: what its parts are called, the parts, the way back."""
    if isinstance(x, dict):  # JAX would sort it

        def rebuild(parts):
            # Of its own class, such as `defaultdict`.
            new = copy.copy(x)
            new.update(zip(x, parts, strict=True))
            return new

        return list(x), list(x.values()), rebuild
    named, structure = jtu.tree_flatten_with_path(x, is_leaf=lambda y: y is not x)
    if not jtu.treedef_is_leaf(structure):
        labels = [_label(path[0]) for path, _ in named]
        return labels, [part for _, part in named], structure.unflatten
    # One that JAX does not know is a leaf to it.
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        labels = [field.name for field in dataclasses.fields(x)]

        def replace(parts):
            return dataclasses.replace(x, **dict(zip(labels, parts, strict=True)))

        return labels, [getattr(x, name) for name in labels], replace
    return [], [], lambda parts: x


def _label(entry: object) -> Hashable:
    """What one entry of a key path is called in Python."""
    for attribute in ("name", "key", "idx"):
        if hasattr(entry, attribute):
            return getattr(entry, attribute)
    return str(entry)


def _position(key: Hashable, x: PyTree, labels: Sequence[Hashable]) -> int | None:
    """Where among the parts `key` is; sequences count from the end too."""
    if isinstance(x, list | tuple) and isinstance(key, int):
        size = len(labels)
        return key % size if -size <= key < size else None
    return labels.index(key) if key in labels else None


def _selected(
    select: Callable[[PyTree], PyTree], x: PyTree, scope: Scope
) -> tuple[PyTree, Put]:
    """The part that a `tree_at`-style function names, and the way back."""
    found = []

    def look(part):
        found.append(part)
        return part

    try:
        # Not just `select(x)`: `tree_at` also refuses what is no part of `x`.
        eqx.tree_at(select, x, replace_fn=look, is_leaf=_is_none)
    except Exception as error:
        raise structure_error(
            "at",
            f"`where` names no part of the input{scope.where} ({error!r}).",
            f"{nearest('', [f'.{name}' for name, _ in leaves_with_names(x)])} It must "
            "take the input and return one part of it unchanged, as for "
            "`equinox.tree_at`.",
        ) from error
    if len(found) != 1:
        raise structure_error(
            "at",
            f"`where` names {len(found)} parts of the input{scope.where}.",
            "Return one part, or put one `at` after another.",
        )
    return found[0], lambda y: eqx.tree_at(select, x, y, is_leaf=_is_none)


def _is_none(x: object) -> bool:
    return x is None


def at(where: Where, stage: StageLike) -> At:
    """Applies a stage to one part of the input; the rest passes untouched.

    **Arguments:**

    - `where`: one key or index (`"image"`, `0`), a tuple of them read as a path
        (`("meta", "w")`), or a function from the input to one part of it, as for
        `equinox.tree_at`. A key of a dict, a field of a dataclass, a named tuple or a
        Module, an index of a list or tuple (a negative one counts from the end).
    - `stage`: the stage for the part, which may return anything. Its path is `stage`.

    **Returns:** a stage from pytrees to pytrees with the same containers.

    **Raises:**

    - `TypeError` if `where` is none of these, or `stage` is not a stage.
    - `StructureError` (a `ValueError`), when called, if the input has no such part;
      names those it has.

    **Laws:** those of a lens: `at(w, Identity())` returns its input; the part of the
    output is the stage's output; `chain(at(w, f), at(w, g))` is `at(w, chain(f, g))`.

    !!! example

        >>> import eqx_pipe as ep, jax.numpy as jnp
        >>> ep.at("image", jnp.negative)({"image": 1.0, "label": "a dog"})
        {'image': Array(-1., dtype=float32, weak_type=True), 'label': 'a dog'}
        >>> ep.at((0, "a"), lambda x: x + 1)([{"a": 1}, 2])
        [{'a': 2}, 2]
    """
    child = as_stage("at", "stage", stage)
    if callable(where) and not isinstance(where, type):
        return At(child, None, where)
    path = where if isinstance(where, tuple) else (where,)
    return At(child, tuple(_read_key(key, where) for key in path), None)


def _read_key(key: object, where: object) -> Hashable:
    if isinstance(key, np.integer):
        return operator.index(key)
    # Keys of a dict may be anything; alone, only what is plainly a key or an index.
    allowed = Hashable if isinstance(where, tuple) else str | int
    never = key is None or isinstance(key, bool | float) or callable(key)
    if not never and isinstance(key, allowed):
        return key
    raise type_error(
        "at",
        f"`where` is {describe_value(where)}.",
        "Give a key or an index, a tuple of them read as a path, or a function "
        "from the input to one part of it: `lambda x: x.image`.",
    )
