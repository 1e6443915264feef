"""Stages of equal structure stacked into one, every array with a leading axis.

`repeat` and `ensemble` make them from a function of one key, or from existing stages.
"""

import dataclasses
import operator
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array

from .._captured import cells
from .._check import check_int
from .._errors import describe_value, structure_error, type_error
from .._keys import check_key, parameters
from .._stage import as_stage, is_state_index, why_not
from .._tree import differences
from .._types import AnyStage, Key, PyTree, StageLike
from .container import Container, read_list

_PLAIN = bool | int | float | complex | str | bytes

Makers: TypeAlias = Callable[..., StageLike] | Sequence[StageLike]
"""A function that makes a stage from a key, or the stages themselves."""

_Own = TypeVar("_Own", bound="Stacked")  # beartype takes `Self` in decorated classes


class Stacked(Container):
    """The base of `Repeat` and `Ensemble`: stages stacked into one."""

    if TYPE_CHECKING:  # fields of both, which they declare
        stages: ClassVar[AnyStage]
        size: ClassVar[int]

    def children(self) -> Mapping[str, AnyStage]:
        """Return the stages stacked into one: arrays have a leading axis of `size`."""
        return {"0": self.stages}

    def __len__(self) -> int:
        return self.size

    def segments(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.size)))

    def child(self, segment: str) -> AnyStage:
        return self.pick(int(segment))

    def pick(self, position: int) -> AnyStage:
        """Return the stage at that position, its arrays unstacked.

        If it is stateful, its state is that slice of `state.substate(pipe)`.
        """
        return _each_array(lambda every: every[position], self.stages)

    def with_child(self: _Own, segment: str, stage: StageLike) -> _Own:
        """Return a copy with the arrays of one stage set to those of another.

        A stateful stage keeps the current state.
        """
        function, i = type(self).__name__.lower(), int(segment)
        new = _read_stage(function, f"[{i}]", stage)
        new = align(function, "stage", f"[{i}]", self.pick(i), new)
        stages = _each_array(lambda all, one: all.at[i].set(one), self.stages, new)
        return dataclasses.replace(self, stages=stages)

    def sliced(self: _Own, part: slice) -> _Own:
        stages = _each_array(lambda every: every[part], self.stages)
        size = len(range(self.size)[part])
        return dataclasses.replace(self, stages=stages, size=size)


def _each_array(fn: Callable[..., Array], tree: PyTree, *others: PyTree) -> PyTree:
    """Map over the arrays of trees; other leaves come from the first tree."""
    return jtu.tree_map(
        lambda leaf, *more: fn(leaf, *more) if eqx.is_array(leaf) else leaf,
        tree,
        *others,
    )


def read_stacked(
    function: str, make: Any, n: Any, key: Any, fewest: int
) -> tuple[AnyStage, int]:
    """Return the stages stacked into one, and their number.

    `make` is a list of stages, or a function that makes one from a key and is traced
    once.
    """
    if not isinstance(make, list | tuple):
        return _made(function, make, n, key, fewest)
    if n is not None or key is not None:
        raise type_error(
            function,
            f"got {len(make)} stages, and `{'key' if n is None else 'n'}` too.",
            "Give the stages alone, or a function that makes one from a key, "
            f"`{function}(make, n, key=key)`.",
        )
    given = read_list(function, make)
    first, *others = (_as_jax(stage) for stage in given)
    aligned = [
        align(function, f"stages[{i}]", "stages[0]", first, stage)
        for i, stage in enumerate(others, 1)
    ]
    return _each_array(lambda *every: jnp.stack(every), first, *aligned), len(given)


def _read_stage(function: str, argument: str, stage: object) -> AnyStage:
    return _as_jax(as_stage(function, argument, stage))


def _as_jax(stage: AnyStage) -> AnyStage:
    """Return a stage with JAX arrays only, as only these are stacked."""
    return jtu.tree_map(
        lambda v: jnp.asarray(v) if isinstance(v, np.ndarray) else v, stage
    )


def _made(
    function: str, make: Any, n: Any, key: Any, fewest: int
) -> tuple[AnyStage, int]:
    """Make stages from keys under `vmap`, with one trace for any number of stages."""
    check_int(function, "n", n, fewest)
    check_key(function, key, required=True)
    by_keyword = _takes_keyword(function, make)
    size = operator.index(n)

    def make_one(key: Key) -> AnyStage:
        made = make(key=key) if by_keyword else make(key)
        return _read_stage(function, "make(key)", made)

    # Not `split`: its first keys may depend on the number of keys.
    keys = jax.vmap(lambda i: jr.fold_in(key, i))(jnp.arange(size))
    # Not a loop: each iteration would make its own state indices, which cannot be
    # stacked.
    return eqx.filter_vmap(make_one)(keys), size


def _takes_keyword(function: str, make: Any) -> bool:
    """Return whether a factory takes its key as a keyword; raise if it takes none."""
    # `filter_jit(make)` is also a Module, which wraps the function.
    is_layer = isinstance(make, eqx.Module) and not hasattr(make, "__wrapped__")
    if not callable(make) or is_layer:
        shown = f"a `{type(make).__name__}`" if is_layer else describe_value(make)
        raise type_error(
            function,
            f"`make` is {shown}.",
            "Give a function that makes one stage from a key: `lambda key: "
            "equinox.nn.Linear(3, 3, key=key)`; or a list of stages. To apply one "
            "layer several times, write `repeat(layer, n, shared=True)`.",
        )
    key = parameters(make).get("key")
    if key is not None and key.kind is key.KEYWORD_ONLY:  # `partial(Layer, 3, 3)`
        return True
    wrong = why_not(make, 1)
    if wrong:
        raise type_error(
            function,
            f"`make` cannot be called with one key: {wrong}.",
            "Wrap it: `lambda key: Layer(..., key=key)`.",
        )
    return False


def align(
    function: str, argument: str, other: str, first: AnyStage, stage: AnyStage
) -> AnyStage:
    """Return the stage with the functions and the state indices of the first.

    Raise unless the two differ in the values of arrays only.
    """
    ours, structure = jtu.tree_flatten(first, is_leaf=is_state_index)
    theirs, their_structure = jtu.tree_flatten(stage, is_leaf=is_state_index)
    if structure == their_structure:
        both = zip(ours, theirs, strict=True)
        stage = structure.unflatten([_as_first(a, b) for a, b in both])
    found = differences(first, stage)
    if found:
        raise structure_error(
            function,
            f"`{other}` and `{argument}` differ: {found[0]}.",
            "Only the values of arrays may differ. Give each the same settings, share "
            "functions between them, or use `eqx_pipe.chain`, which takes any stages.",
        )
    return stage


def _as_first(ours: PyTree, theirs: PyTree) -> PyTree:
    if is_state_index(ours) and is_state_index(theirs):
        # Each stage has its own state indices. Each keeps its initial state, unless the
        # first stage has moved its initial state into a `State`.
        has_init = bool(jtu.tree_leaves(ours.init))
        return eqx.tree_at(lambda i: i.init, ours, theirs.init) if has_init else ours
    return ours if _same_function(ours, theirs) else theirs


def _same_function(ours: Any, theirs: Any) -> bool:
    """Return whether both have the same code and equal values in their closures."""
    if not isinstance(ours, types.FunctionType) or type(theirs) is not type(ours):
        return False
    if ours.__code__ is not theirs.__code__:
        return False
    held = [(*cells(fn).values(), *(fn.__defaults__ or ())) for fn in (ours, theirs)]
    return all(map(_same, *held)) and ours.__kwdefaults__ == theirs.__kwdefaults__


def _same(ours: Any, theirs: Any) -> bool:
    # Arrays are compared by identity: values can be large, or traced.
    plain = isinstance(ours, _PLAIN) and type(ours) is type(theirs) and ours == theirs
    return ours is theirs or plain or _same_function(ours, theirs)
