"""Stages of equal structure, applied one after the other under one scan."""

import operator
from collections.abc import Callable, Mapping
from typing import Any, Literal, SupportsIndex, TypeAlias, cast, overload

import equinox as eqx
import jax
import jax.numpy as jnp

from .._check import check_bool, check_callable, check_int, check_same
from .._errors import type_error
from .._stage import Composite, Passes, Scope, as_stage, enter, own_state
from .._tree import as_arrays
from .._types import AnyStage, Key, MaybeState, Output, PyTree, StageLike
from .feed import Broadcast, carried_entry, read_broadcast
from .stacked import Makers, Stacked, read_stacked

Policy: TypeAlias = Callable[..., Any]
"""A policy of `jax.checkpoint_policies`: the values to keep for the backward pass."""


class Repeat(Stacked):
    """Stages of equal structure under one scan; see `repeat`."""

    fewest = 0

    stages: AnyStage
    size: int = eqx.field(static=True)
    broadcast: tuple[str, ...] = eqx.field(static=True, default=())
    remat: bool | Policy = eqx.field(static=True, default=False)
    unroll: int = eqx.field(static=True, default=1)

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        return _loop(self, self.stages, self.size, True, x, state, scope)


class SharedRepeat(Composite):
    """One stage under a scan, with the same parameters each time; see `repeat`."""

    stage: AnyStage
    n: int = eqx.field(static=True)
    broadcast: tuple[str, ...] = eqx.field(static=True, default=())
    remat: bool | Policy = eqx.field(static=True, default=False)
    unroll: int = eqx.field(static=True, default=1)

    def children(self) -> Mapping[str, AnyStage]:
        return {"stage": self.stage}

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        return _loop(self, self.stage, self.n, False, x, state, scope)


def _loop(
    pipe: "Repeat | SharedRepeat",
    stage: AnyStage,
    size: int,
    stacked: bool,
    x: PyTree,
    state: MaybeState,
    scope: Scope,
) -> Output:
    """Run a stage under one scan; if it is stacked, each step runs one slice."""
    begin, inputs = carried_entry("repeat", pipe.broadcast, x, scope)
    if size == 0:
        return begin, state
    carry, constant = eqx.partition(as_arrays(begin), eqx.is_array)
    own, put_back = own_state(stage, state)
    # A stacked state is scanned over. Any other state is carried, since a state may be
    # used only once, and the body is traced repeatedly.
    scanned, carried = (own, None) if stacked else (None, own)
    parts, rest = eqx.partition(stage, eqx.is_array) if stacked else (None, stage)
    # The index is needed only for random draws: without a key there is none.
    index = None if scope.key is None else jnp.arange(size)
    passes = Passes(scope, size if stacked else None)
    segment = 0 if stacked else "stage"

    def body(before: PyTree, slices: PyTree) -> PyTree:
        (part, carried), (arrays, scanned, i) = before, slices
        inner, given = passes.begin(), eqx.combine(part, constant)
        # The trace stands for all stages; errors name the first.
        child, state = (
            (eqx.combine(arrays, rest), scanned) if stacked else (rest, carried)
        )
        # Entries that are broadcast are constants of the loop, not part of the carry.
        y, state = enter(inner, segment, child, inputs(given), state=state, index=i)
        y = as_arrays(y)
        check_output("repeat", scope, given, y)
        scanned, carried = (state, None) if stacked else (None, state)
        return (eqx.filter(y, eqx.is_array), carried), (scanned, passes.arrays())

    (carry, carried), (scanned, values) = jax.lax.scan(
        with_remat(body, pipe.remat),
        (carry, carried),
        (parts, scanned, index),
        size,
        unroll=pipe.unroll,
    )
    passes.end(values)
    state = put_back(scanned if stacked else carried)
    return eqx.combine(carry, constant), state


def check_output(function: str, scope: Scope, x: PyTree, y: PyTree) -> None:
    """Raise unless the output of a stage can be the input of the next one."""
    check_same(
        function,
        f"the output of the stage{scope.where} differs from its input; first what it "
        "got, then what it returned",
        x,
        y,
        "Return the structure, shapes and dtypes of the input, or use `chain`.",
    )


def with_remat(body: Callable[..., Any], remat: bool | Policy) -> Callable[..., Any]:
    """Return the body of a scan, with rematerialisation if requested."""
    if remat is False:
        return body
    # Inside a scan, XLA cannot merge the recomputation with the forward pass.
    policy = None if remat is True else remat
    return jax.checkpoint(body, policy=policy, prevent_cse=False)


@overload
def repeat(
    make: Makers,
    n: SupportsIndex | None = None,
    *,
    key: Key | None = None,
    shared: Literal[False] = False,
    broadcast: Broadcast = (),
    remat: bool | Policy = False,
    unroll: SupportsIndex = 1,
) -> Repeat: ...


@overload
def repeat(
    make: StageLike,
    n: SupportsIndex,
    *,
    shared: Literal[True],
    broadcast: Broadcast = (),
    remat: bool | Policy = False,
    unroll: SupportsIndex = 1,
) -> SharedRepeat: ...


def repeat(
    make: Makers | StageLike,
    n: SupportsIndex | None = None,
    *,
    key: Key | None = None,
    shared: bool = False,
    broadcast: Broadcast = (),
    remat: bool | Policy = False,
    unroll: SupportsIndex = 1,
) -> Repeat | SharedRepeat:
    """Apply `n` stages of equal structure one after the other.

    Stage `i` is `make(fold_in(key, i))`. The function is traced once, under
    `equinox.filter_vmap` over the keys, so the parameters are stacked; the stages run
    under one `jax.lax.scan`. Neither the compile time nor the size of the program grows
    with `n`. When called with a key, stage `i` draws from `fold_in(key, i)`.

    Existing stages, with trained weights for instance, are given as a list,
    `repeat([first, second])`, without `n` and `key`.

    In both cases each stage has its own parameters, even if their initial values are
    equal: `repeat([layer] * 4)` and `repeat(lambda key: layer, 4, key=key)` are four
    copies of a layer, which differ after training. To apply one layer four times write
    `repeat(layer, 4, shared=True)`.

    `n = 0` is the identity, as `chain()` is. All stages share their non-array leaves,
    such as functions.

    **Arguments:**

    - `make`: a function of one key, by position or as the keyword `key`, that returns a
        stage; or a list of stages that differ in the values of their arrays only
        (functions must have the same code and equal values in their closures). A stage
        must return the structure, shapes and dtypes that it takes.
    - `n`: the number of stages, at least 0.
    - `key`: a PRNG key for the parameters. (Keyword only.)
    - `shared`: whether `make` is one stage, to be applied `n` times with the same
        parameters, without `key`. (Keyword only.)
    - `broadcast`: the name, or names, of the entries that every stage reads, if the
        stages take a mapping of several inputs, as in `chain`; they are constants of
        the loop. The output of each stage replaces the one other entry. (Keyword only.)
    - `remat`: whether to recompute intermediate values in the backward pass, instead of
        keeping those of all stages: True, or a policy of `jax.checkpoint_policies` that
        selects the values to keep. (Keyword only.)
    - `unroll`: the number of stages per iteration of the loop; see `jax.lax.scan`. A
        larger program may run faster. (Keyword only.)

    **Returns:** a stage, with the container methods of a `chain`; `[i]` is the stage at
    position `i`, `[:2]` a `repeat` of the first two. To replace a stage, write
    `pipe.replace({i: stage})`; to set one array, set a slice of the stacked array:
    `equinox.tree_at(lambda p: p.stages.weight, pipe, replace_fn=lambda w:
    w.at[i].set(new))`. With `shared` it has one stage, at the path `stage`, and no
    length or index; `outputs` stacks the values of all steps.

    **Shapes:** an array of a stage of shape `(*a,)` is held as `(n, *a)`.

    **Raises:**

    - `TypeError` if `make` is not a function of one key, or does not return a stage, or
      `n` is not an integer, or `key` is not a key, or either is given with a list, or
      `remat` is neither a bool nor a function.
    - `ValueError` if `n` is negative, or `unroll` not positive, or a list is empty.
    - `StructureError` (a `ValueError`) if stages of a list differ in more than the
      values of arrays; when called, if a stage's output differs from its input in
      structure, shape or dtype. The error names the leaves.

    **Laws:** `repeat(make, n, key=key)` is the loop `for i in range(n): x = make(
    fold_in(key, i))(x)`, forward and in gradients; `repeat(list(pipe))` is `pipe`;
    `repeat(f, n, shared=True)` is `chain(f, ..., f)` with shared parameters.

    !!! example

        >>> import equinox as eqx, eqx_pipe as ep, jax.numpy as jnp, jax.random as jr
        >>> make = lambda key: ep.chain(eqx.nn.Linear(3, 3, key=key), jnp.tanh)
        >>> deep = ep.repeat(make, 50, key=jr.key(0))
        >>> deep(jnp.ones(3)).shape, deep[-1][0].weight.shape, len(deep)
        ((3,), (3, 3), 50)
        >>> ep.repeat(deep[0], 50, shared=True).stage[0].weight.shape
        (3, 3)
    """
    broadcast = read_broadcast("repeat", broadcast)
    if not isinstance(remat, bool):
        cure = "Give True, False, or a function of `jax.checkpoint_policies`."
        check_callable("repeat", "remat", remat, cure)
    check_int("repeat", "unroll", unroll, 1)
    check_bool("repeat", "shared", shared)
    settings = (broadcast, remat, unroll.__index__())
    if not shared:
        return Repeat(*read_stacked("repeat", make, n, key, Repeat.fewest), *settings)
    if key is not None:
        raise type_error(
            "repeat",
            "`shared=True` with a `key`, from which nothing is made.",
            "Give the stage itself: `repeat(layer, 4, shared=True)`.",
        )
    check_int("repeat", "n", n, 0)
    stage = as_stage("repeat", "make", make)
    return SharedRepeat(stage, operator.index(cast(SupportsIndex, n)), *settings)
