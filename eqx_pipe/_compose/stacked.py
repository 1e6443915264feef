"""Stages of equal structure held as one, every array with a leading axis.

`repeat` and `ensemble` are made of them: from a function of one key, or from stages
that there are already.
"""

import dataclasses
import inspect
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np

from .._check import check_int
from .._errors import (
    describe_value,
    message,
    structure_error,
    type_error,
    value_error,
)
from .._keys import check_key
from .._stage import Item, Items, Own, Scope, as_stage
from .._stage.base import state_indices
from .._stage.hidden import check_nothing_traced
from .._types import AnyStage, Key, PyTree, StageLike
from .align import align
from .alike import same_draws
from .container import Container, read_list, reordered

Makers: TypeAlias = Callable[..., StageLike] | Sequence[StageLike]
"""A function that makes a stage from a key, or the stages themselves."""

_Own = TypeVar("_Own", bound="Stacked")  # beartype takes `Self` in decorated classes


class Stacked(Container):
    """The base of `Repeat` and `Ensemble`: stages stacked into one."""

    fewest: ClassVar[int] = 0

    if TYPE_CHECKING:  # fields of both, which they declare
        stages: ClassVar[AnyStage]
        size: ClassVar[int]

    def children(self) -> Mapping[str, AnyStage]:
        """The stages stacked into one: every array has a leading axis of `size`."""
        return {"0": self.stages}

    def settings(self) -> dict[str, Any]:
        return {"n": self.size}

    def __len__(self) -> int:
        return self.size

    def pick(self, position: int) -> AnyStage:
        """The stage at that position, its arrays unstacked.

        If it is stateful, its state is that slice of `state.substate(pipe)`.
        """
        if any(map(_is_wrapped, jtu.tree_leaves(self.stages))):
            raise value_error(
                self._function,
                f"`[{position}]` is cut out of stacked arrays, so `tree_at` cannot "
                "put anything in its place.",
                f'Write `pipe.replace({{"{position}": stage}})`, or set a slice of a '
                "stacked array: `tree_at(lambda pipe: "
                "pipe[...].stages.weight, pipe, replace_fn=lambda w: "
                f"w.at[{position}].set(new))`.",
            )
        return self._sliced(position)

    def multiplicity(self) -> int:
        return self.size

    def segments(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.size)))

    def child(self, segment: str) -> AnyStage:
        return self.pick(int(segment))

    def with_child(self: _Own, segment: str, stage: StageLike) -> _Own:
        """The same with the arrays of one stage set to those of another.

        A stateful stage goes on with the state that is there.
        """
        index = int(segment)
        new = _read_stage(self._function, f"[{index}]", stage)
        new = align(self._function, "stage", f"[{index}]", self.pick(index), new)
        stages = jtu.tree_map(
            lambda every, one: (
                every.at[index].set(one) if eqx.is_array(every) else every
            ),
            self.stages,
            new,
        )
        return dataclasses.replace(self, stages=stages)

    def listed(self) -> list[Item]:
        return [Item(None, self.stages, i) for i in range(self.size)]

    def with_items(self: _Own, items: Items, own: Own) -> _Own:
        if len(items) < self.fewest:
            raise value_error(
                self._function,
                f"none of its {self.size} stages is left.",
                f"It needs {self.fewest} at least.",
            )
        given = [item.stage for item in items if item.origin is None]
        read = [self._read_new(stage) for stage in given]
        places = range(self.size, self.size + len(read))
        order = reordered(items, range(self.size), places)
        taken: Any = np.asarray(order, int)
        if order and order == list(range(order[0], order[0] + len(order))):
            taken = slice(order[0], order[0] + len(order))  # needs no gather

        def joined(every: PyTree, *new: PyTree) -> PyTree:
            if not eqx.is_array(every):
                return every
            rows = (every, *(one[None] for one in new))
            return (jnp.concatenate(rows) if new else every)[taken]

        stages = jtu.tree_map(joined, self.stages, *read)
        return dataclasses.replace(self, stages=stages, size=len(items))

    def _read_new(self, stage: StageLike) -> AnyStage:
        """A stage to be stacked beside those that there are."""
        read = _read_stage(self._function, "stage", stage)
        if self.is_stateful():
            _check_holds_state(self._function, "pipe", self.stages)
            _check_holds_state(self._function, "stage", read)
        if not self.size:
            raise value_error(
                self._function,
                "it has no stages, beside which others could be stacked.",
                f"Write `{self._function}([stage])`.",
            )
        return align(self._function, "stage", "[0]", self._sliced(0), read)

    def own_state(self, state: eqx.nn.State, scope: Scope) -> eqx.nn.State:
        """The states of the stages, stacked; raises unless it is one for each."""
        own = state.substate(self.stages)
        sizes = {leaf.shape[0] for leaf in jtu.tree_leaves(own)} - {self.size}
        if sizes:
            raise structure_error(
                self._function,
                f"the state{scope.where} is one of {sizes.pop()} stages, and here are "
                f"{self.size}.",
                "Of the state of the whole give the part of these: `jax.tree.map("
                "lambda leaf: leaf[:2], state.substate(pipe))` for `pipe[:2]`.",
            )
        return own

    def _sliced(self, item: int) -> AnyStage:
        return jtu.tree_map(
            lambda leaf: leaf[item] if eqx.is_array(leaf) else leaf, self.stages
        )


def _is_wrapped(leaf: object) -> bool:
    """Whether `equinox.tree_at` asks, which hands out wrappers in place of leaves."""
    return type(leaf).__name__ == "_LeafWrapper"


def read_stacked(
    function: str, make: Any, n: Any, key: Any, fewest: int
) -> tuple[AnyStage, int]:
    """The stages stacked into one, and how many they are.

    They are given as a list, or by a function that makes one from a key and is traced
    once.
    """
    if not isinstance(make, list | tuple):
        return _made(function, make, n, key, fewest)
    if n is not None or key is not None:
        raise type_error(
            function,
            f"{len(make)} stages are given, and `{'key' if n is None else 'n'}` too.",
            "Give the stages alone, or a function that makes one from a key, "
            f"`{function}(make, n, key=key)`.",
        )
    given = read_list(function, make)
    stages = [_read_stage(function, f"stages[{i}]", s) for i, s in enumerate(given)]
    for i, stage in enumerate(stages):
        _check_holds_state(function, f"stages[{i}]", stage)
    first, *others = stages
    aligned = [
        align(function, f"stages[{i}]", "stages[0]", first, stage)
        for i, stage in enumerate(others, 1)
    ]
    return jtu.tree_map(
        lambda *v: jnp.stack(v) if eqx.is_array(v[0]) else v[0], first, *aligned
    ), len(stages)


def _read_stage(function: str, argument: str, stage: object) -> AnyStage:
    """A stage whose arrays are all JAX's, as only these are stacked."""
    child = as_stage(function, argument, stage)
    return jtu.tree_map(
        lambda v: jnp.asarray(v) if isinstance(v, np.ndarray) else v, child
    )


def _check_holds_state(function: str, argument: str, stage: AnyStage) -> None:
    """Raises if a stage has given its state away, which then cannot be stacked."""
    if any(not jtu.tree_leaves(index.init) for index in state_indices(stage)):
        raise value_error(
            function,
            f"the state of `{argument}` was taken out of it by "
            "`equinox.nn.make_with_state`.",
            "Make the stages and this in one function, and give that to "
            "`equinox.nn.make_with_state`.",
        )


def _made(
    function: str, make: Any, n: Any, key: Any, fewest: int
) -> tuple[AnyStage, int]:
    """Stages made from keys, under `vmap`: by one trace, however many they are."""
    check_int(function, "n", n, fewest)
    check_key(function, key)
    if key is None:
        raise type_error(
            function,
            "`key` is None.",
            "Give the key from which the stages are made: `key=jax.random.key(0)`.",
        )
    by_keyword = _takes_keyword(function, make)
    size = operator.index(n)
    alike = []

    def make_stage(key: Key) -> Any:
        return make(key=key) if by_keyword else make(key)

    def make_one(key: Key) -> AnyStage:
        made = make_stage(key)
        stage = _read_stage(function, "make_stage(key)", made)
        check_nothing_traced(function, "make_stage(key)", stage)
        alike.extend(same_draws(make_stage, stage, key) if size > 1 else ())
        return stage

    # Not `split`, which does not promise the same first keys for another number.
    keys = jax.vmap(lambda i: jr.fold_in(key, i))(jnp.arange(size))
    # Not a loop: each pass would make markers of state of its own, which cannot be
    # stacked.
    stages = eqx.filter_vmap(make_one)(keys)
    if alike:
        warnings.warn(
            message(
                function,
                f"the {size} stages begin with equal parameters: "
                f"{', '.join(f'`{name}`' for name in alike)} of `make_stage(key)` are "
                "drawn at random, but not from that key.",
                "Draw them from the argument: `lambda key: Layer(..., key=key)`. If "
                "they are meant to be equal, draw them outside of `make_stage`.",
            ),
            # At the line of the user who called `repeat` or `ensemble`.
            stacklevel=4,
        )
    return stages, size


def _takes_keyword(function: str, make_stage: Any) -> bool:
    """Whether the maker takes its key as a keyword; raises if it takes no key."""
    layer = isinstance(make_stage, eqx.Module) and not hasattr(
        make_stage,
        "__wrapped__",  # `filter_jit(make)` is a module too
    )
    if not callable(make_stage) or layer:
        raise type_error(
            function,
            f"`make_stage` is {describe_value(make_stage)}.",
            "Give a function that makes one stage from a key: `lambda key: "
            "equinox.nn.Linear(3, 3, key=key)`; or a list of stages.",
        )
    try:
        signature = inspect.signature(make_stage)
    except (TypeError, ValueError):  # some builtins have no signature
        return False
    key = signature.parameters.get("key")
    if key is not None and key.kind is key.KEYWORD_ONLY:  # `partial(Layer, 3, 3)`
        return True
    try:
        signature.bind(None)
    except TypeError as error:
        raise type_error(
            function,
            f"`make_stage` cannot be called with one key ({error}).",
            "Wrap it: `lambda key: Layer(..., key=key)`.",
        ) from None
    return False
