"""Stages on entries of their input: `at`, `feed`, and `broadcast=`."""

import functools as ft
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, SupportsIndex, TypeAlias

import equinox as eqx

from .._check import check_is, check_name
from .._errors import describe_value, nearest, quoted, structure_error
from .._stage import Composite, Scope, as_stage
from .._tree import is_none, leaves_with_names
from .._types import AnyStage, MaybeState, Output, PyTree, StageLike

Where: TypeAlias = str | SupportsIndex | tuple[Hashable, ...]
"""A key or index, or a path of them."""


class At(Composite):
    """A stage on one part of its input; see `at`."""

    stage: AnyStage
    where: tuple[Hashable, ...] = eqx.field(static=True)

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        def select(x: PyTree) -> PyTree:
            return ft.reduce(_step, self.where, x)

        parts: list[PyTree] = []
        try:
            # Not just `select(x)`: `tree_at` also rejects values that are not part of
            # the pytree, such as static fields.
            eqx.tree_at(select, x, replace_fn=parts.append, is_leaf=is_none)
        except Exception as error:
            path = ".".join(map(str, self.where))
            wrong = f"the input{scope.where} has no entry `{path}`."
            cure = nearest(path, [name for name, _ in leaves_with_names(x)])
            raise structure_error("at", wrong, cure) from error
        y, state = scope.enter("stage", self.stage, parts[0], state=state)
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


Broadcast: TypeAlias = str | Sequence[str]
"""The name of an entry of the input that every stage or step reads, or their names."""


def read_broadcast(function: str, broadcast: Broadcast) -> tuple[str, ...]:
    """Return the names of the entries that are broadcast."""
    cure = 'Give the names of the entries that are only read, as `broadcast=("mask", '
    cure += '"memory")`. (A stage cannot have the name `broadcast`.)'
    check_is(function, "broadcast", broadcast, str | list | tuple, cure)
    names = (broadcast,) if isinstance(broadcast, str) else tuple(broadcast)
    for name in names:
        check_name(function, "broadcast", name)
    return names


def carried_entry(
    function: str, broadcast: tuple[str, ...], x: PyTree, scope: Scope
) -> tuple[PyTree, Callable[[PyTree], PyTree]]:
    """Return the entry that each stage replaces, and the input of a stage from it.

    Without `broadcast` they are the whole input, and the identity.
    """
    if not broadcast:
        return x, lambda y: y
    look_up(function, broadcast, x, scope, others=("x",))
    others = [name for name in x if name not in broadcast]
    if len(others) != 1:
        wrong = f"the input{scope.where} has the entries {quoted(x)}, of which "
        wrong += f"{quoted(broadcast)} are broadcast and {len(others)} are left."
        cure = "Leave one, which the output of each stage replaces, and add the others "
        cure += "to `broadcast`. Several values to replace may be a tuple or dict in "
        cure += "one entry."
        raise structure_error(function, wrong, cure)
    (name,) = others
    return x[name], lambda y: {**x, name: y}


def look_up(
    function: str,
    names: Iterable[str],
    x: PyTree,
    scope: Scope,
    exact: bool = False,
    others: tuple[str, ...] = (),
) -> dict[str, PyTree]:
    """Return the inputs of these names; raise unless `x` is a mapping with all of them.

    If `exact`, `x` must have no other entries. `others` are further ones for the
    example in a message.
    """
    names = tuple(names)
    if not isinstance(x, Mapping):
        wrong = f"the input{scope.where} is {describe_value(x)}."
        example = ", ".join(f'"{name}": ...' for name in (*names, *others))
        cure = f"Give a dict of the inputs by name: `{{{example}}}`."
        raise structure_error(function, wrong, cure)
    missing = [name for name in names if name not in x]
    if missing:
        wrong = f"the input{scope.where} has no entry {quoted(missing)}."
        cure = nearest(missing[0], x)
        raise structure_error(function, wrong, cure)
    extra = [name for name in x if name not in names]
    if exact and extra:
        only = ", ".join(f'{name}="{name}"' for name in names)
        wrong = f"the input{scope.where} has the entry {quoted(extra)}, which the "
        wrong += f"{function} does not take."
        cure = f"{nearest(extra[0], names)} Pass only these: "
        cure += f"`eqx_pipe.feed({function}, {only})`."
        raise structure_error(function, wrong, cure)
    return {name: x[name] for name in names}


class Feed(Composite):
    """A stage fed from a mapping; see `feed`."""

    stage: AnyStage
    inputs: tuple[str, ...] = eqx.field(static=True)
    # Pairs of an input's name in the stage and its name in the mapping.
    keywords: tuple[tuple[str, str], ...] = eqx.field(static=True)

    def with_child(self, segment: str, stage: StageLike) -> "Feed":
        return feed(stage, *self.inputs, **dict(self.keywords))

    def settings(self) -> dict[str, list[str]]:
        return {"inputs": [*self.inputs, *(f"{k}={n}" for k, n in self.keywords)]}

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        names = [*self.inputs, *dict(self.keywords).values()]
        entries = look_up("feed", names, x, scope)
        args = [entries[name] for name in self.inputs]
        named = {keyword: entries[name] for keyword, name in self.keywords}
        return scope.enter("stage", self.stage, *args, state=state, named=named)


def feed(stage: StageLike, *inputs: str, **keywords: str) -> Feed:
    """Call a stage with some entries of a mapping.

    A layer or function of several inputs gets them by position and by keyword. A
    pipeline takes one input: the entry listed by position, or one mapping of all
    entries listed by keyword.

    **Arguments:**

    - `stage`: the stage. Its path is `stage`.
    - `inputs`: the names of entries that are passed by position. A name may be
        repeated.
    - `keywords`: the names of entries that are passed by keyword: `mask="padding"`
        passes the entry `padding` as `mask`. (Keyword only.)

    **Returns:** a stage that takes a mapping, and returns the output of `stage`. It
    ignores entries that are not listed.

    **Raises:**

    - `TypeError` if the stage cannot be called with such inputs.
    - `StructureError` (a `ValueError`), when called, if the mapping lacks one of the
      entries.

    **Laws:** `feed(f, "x")` is `at("x", f)` followed by the entry `x`.

    !!! example

        >>> import equinox as eqx, eqx_pipe as ep, jax.numpy as jnp, jax.random as jr
        >>> attention = eqx.nn.MultiheadAttention(2, 4, key=jr.key(0))
        >>> attend = ep.feed(attention, "x", "x", "x", mask="mask")
        >>> attend({"x": jnp.ones((3, 4)), "mask": jnp.tri(3, dtype=bool)}).shape
        (3, 4)
    """
    for argument, names in (("inputs", inputs), ("keywords", keywords.values())):
        for name in names:
            check_name("feed", argument, name)
    by = [f"`{name}`" for name in inputs]
    by += [f"`{keyword}={name}`" for keyword, name in keywords.items()]
    cure = "Name the inputs in the order in which the stage takes them, or by its "
    cure += 'names: `feed(layer, "x", mask="mask")`; those of a pipeline by its names '
    cure += 'alone: `feed(pipe, x="x", mask="mask")`.'
    num, named, text = len(inputs), tuple(keywords), ", ".join(by) or "no input"
    module = as_stage("feed", "stage", stage, cure, num, named, text)
    return Feed(module, inputs, tuple(keywords.items()))
