"""One stage many times over, each time with parameters of its own."""

import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any, SupportsIndex

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np

from .._check import check_int, check_key
from .._errors import (
    bullets,
    describe_value,
    message,
    structure_error,
    type_error,
    value_error,
)
from .._stage import Scope, as_stage, enter
from .._stage.hidden import check_nothing_traced
from .._tree import as_arrays, differences
from .._types import AnyStage, Key, MaybeState, Output, PyTree, StageLike
from .alike import same_draws
from .container import Container
from .named import check_over, look_up, replaced


class Repeat(Container):
    """Stages of equal structure under one scan; see `repeat`."""

    stages: AnyStage
    size: int = eqx.field(static=True)
    over: str | None = eqx.field(static=True, default=None)

    def children(self) -> Mapping[str, AnyStage]:
        """The stages stacked into one: every array has a leading axis of `size`."""
        return {"0": self.stages}

    def multiplicity(self) -> int:
        return self.size

    def segments(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.size)))

    def child(self, segment: str) -> AnyStage:
        return self.pick(int(segment))

    def with_child(self, segment: str, stage: AnyStage) -> "Repeat":
        """The same with the arrays of one stage set."""
        new = jtu.tree_map(_as_jax, stage)
        lines = differences(jtu.tree_map(_as_jax, self.child(segment)), new)
        if lines:
            raise structure_error(
                "repeat",
                f"its stages are of equal structure, and what is put at `{segment}` "
                f"differs; first what is there, then what comes:{bullets(lines)}",
                "Give a stage of the structure, shapes and dtypes of the others, or "
                "use a `chain`.",
            )
        i = int(segment)
        stages = jtu.tree_map(
            lambda old, leaf: old.at[i].set(leaf) if eqx.is_array(old) else old,
            self.stages,
            new,
        )
        return Repeat(stages, self.size, self.over)

    def settings(self) -> dict[str, Any]:
        return {"n": self.size} | ({} if self.over is None else {"over": self.over})

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        over = self.over
        begin = x if over is None else look_up("repeat", [over], x, scope)[over]
        if self.size == 0:
            return begin, state
        stacked, rest = eqx.partition(self.stages, eqx.is_array)
        carry, constant = eqx.partition(as_arrays(begin), eqx.is_array)
        whole = state if self.is_stateful() else None
        states = None if whole is None else whole.substate(self.stages)
        # Scanned over only where something draws from it: no key, no index.
        index = None if scope.key is None else jnp.arange(self.size)
        silent = scope.silent()

        def body(carry, slices):
            part, part_state, i = slices
            stage, given = eqx.combine(part, rest), eqx.combine(carry, constant)
            # All stages are traced as the first, so the first is named in errors.
            # What is only read is no part of the carry: a constant of the loop.
            inputs = given if over is None else replaced(x, over, given)
            y, part_state = enter(silent, 0, stage, inputs, state=part_state, index=i)
            y = as_arrays(y)
            check_same("repeat", scope, given, y)
            return eqx.filter(y, eqx.is_array), part_state

        carry, states = jax.lax.scan(body, carry, (stacked, states, index), self.size)
        if whole is not None and states is not None:
            state = whole.update(states)
        return eqx.combine(carry, constant), state

    def __len__(self) -> int:
        return self.size

    def pick(self, position: int) -> AnyStage:
        """The stage made for that position, its arrays unstacked.

        If it is stateful, its state is that slice of `state.substate(pipe)`.
        """
        if any(map(_is_wrapped, jtu.tree_leaves(self.stages))):
            raise value_error(
                "repeat",
                f"`[{position}]` is cut out of stacked arrays, so `tree_at` cannot "
                "put anything in its place.",
                f'Write `pipe.replace({{"{position}": stage}})`, or set a slice of a '
                "stacked array: `tree_at(lambda pipe: "
                "pipe[...].stages.weight, pipe, replace_fn=lambda w: "
                f"w.at[{position}].set(new))`.",
            )
        return jtu.tree_map(
            lambda leaf: leaf[position] if eqx.is_array(leaf) else leaf, self.stages
        )


def _as_jax(leaf: PyTree) -> PyTree:
    return jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf


def _is_wrapped(leaf: object) -> bool:
    """Whether `equinox.tree_at` asks, which hands out wrappers in place of leaves."""
    return type(leaf).__name__ == "_LeafWrapper"


def check_same(function: str, scope: Scope, given: PyTree, y: PyTree) -> None:
    """Raises unless a stage returned what it takes; else no loop can run it."""
    lines = differences(given, y)
    if lines:
        raise structure_error(
            function,
            f"the stage{scope.where} gives something else than it takes; first "
            f"what it takes, then what it gives:{bullets(lines)}",
            "Each stage is fed by the one before, so return the structure, shapes "
            "and dtypes of the input; for stages that differ use `chain`.",
        )


def repeat(
    make_stage: Callable[..., StageLike],
    n: SupportsIndex,
    *,
    key: Key,
    over: str | None = None,
) -> Repeat:
    """Applies `n` stages of equal structure one after the other.

    Stage `i` is `make_stage(fold_in(key, i))`. The function is traced once, under
    `equinox.filter_vmap` over the keys, so that the parameters are stacked; the stages
    run under one `jax.lax.scan`. So neither the time to compile nor the size of the
    program grows with `n`. When called with a key, stage `i` draws from
    `fold_in(key, i)`.

    `n = 0` is the identity, as `chain()` is. What a stage holds besides arrays is
    shared by all of them.

    **Arguments:**

    - `make_stage`: a function of one key, by position or as the keyword `key`, that
        returns a stage. A stage must return the structure, shapes and dtypes that it
        takes.
    - `n`: how many, at least 0.
    - `key`: a PRNG key for the parameters. (Keyword only.)
    - `over`: the name of the entry that the stages replace in turn, if they take a
        mapping of several inputs, as in `chain`. The others are constants of the loop.
        (Keyword only.)

    **Returns:** a stage, a container as a `chain` is; `[i]` is the stage made for
    position `i`. To put another there write `pipe.replace({i: stage})`; to set one
    array, set a slice of the stacked one: `equinox.tree_at(lambda p: p.stages.weight,
    pipe, replace_fn=lambda w: w.at[i].set(new))`.

    **Shapes:** an array of a stage of shape `(*a,)` is held as `(n, *a)`.

    **Raises:**

    - `TypeError` if `make_stage` is not a function of one key, or does not return a
      stage, or `n` is not an integer, or `key` is not a key.
    - `ValueError` if `n` is negative, or a function in the stage closes over arrays or
      modules made from the key.
    - `StructureError` (a `ValueError`), when first called, if a stage returns something
      else than it takes; names the leaves.

    **Warns** if parameters are drawn at random, but not from the key: they are equal in
    all stages.

    **Laws:** `repeat(make, n, key=key)` is the loop `for i in range(n): x = make(
    fold_in(key, i))(x)`, forward and in gradients.

    !!! example

        >>> import equinox as eqx, eqx_pipe as ep, jax.numpy as jnp, jax.random as jr
        >>> make = lambda key: ep.chain(eqx.nn.Linear(3, 3, key=key), jnp.tanh)
        >>> deep = ep.repeat(make, 50, key=jr.key(0))
        >>> deep(jnp.ones(3)).shape, deep[-1][0].weight.shape, len(deep)
        ((3,), (3, 3), 50)
    """
    check_over("repeat", over)
    check_int("repeat", "n", n, 0)
    check_key("repeat", key)
    if key is None:
        raise type_error(
            "repeat",
            "`key` is None.",
            "Give the key from which the stages are made: `key=jax.random.key(0)`.",
        )
    by_keyword = _takes_keyword(make_stage)

    size = n.__index__()
    alike = []

    def make(key):
        return make_stage(key=key) if by_keyword else make_stage(key)  # pyright: ignore

    def make_one(key):
        made = make(key)
        stage = as_stage("repeat", "make_stage(key)", made)
        check_nothing_traced("repeat", "make_stage(key)", stage)
        alike.extend(same_draws(make, stage, key) if size > 1 else ())
        # NumPy's arrays too, which `filter_vmap` would neither stack nor leave alone.
        return jtu.tree_map(_as_jax, stage)

    keys = jax.vmap(lambda i: jr.fold_in(key, i))(jnp.arange(size))
    stages = eqx.filter_vmap(make_one)(keys)
    if alike:
        warnings.warn(
            message(
                "repeat",
                f"the {size} stages begin with equal parameters: "
                f"{', '.join(f'`{name}`' for name in alike)} of `make_stage(key)` are "
                "drawn at random, but not from that key.",
                "Draw them from the argument: `lambda key: Layer(..., key=key)`. If "
                "they are meant to be equal, draw them outside of `make_stage`.",
            ),
            stacklevel=2,
        )
    return Repeat(stages, size, over)


def _takes_keyword(make_stage: Any) -> bool:
    """Whether the maker takes its key as a keyword; raises if it takes no key."""
    layer = isinstance(make_stage, eqx.Module) and not hasattr(
        make_stage,
        "__wrapped__",  # `filter_jit(make)` is a module too
    )
    if not callable(make_stage) or layer:
        raise type_error(
            "repeat",
            f"`make_stage` is {describe_value(make_stage)}.",
            "Give a function that makes one stage from a key: `lambda key: "
            "equinox.nn.Linear(3, 3, key=key)`.",
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
            "repeat",
            f"`make_stage` cannot be called with one key ({error}).",
            "Wrap it: `lambda key: Layer(..., key=key)`.",
        ) from None
    return False
