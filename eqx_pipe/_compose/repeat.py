"""Stages of equal structure: stacked into one, and applied in turn or side by side.

`repeat` and `ensemble` stack stages, every array with a leading axis, from a function
of one key or from existing stages. The stages of a `repeat` run under one scan, those
of an `ensemble` under `vmap`.
"""

import dataclasses
import operator
import types
from collections.abc import Callable, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    SupportsIndex,
    TypeAlias,
    TypeVar,
    cast,
    get_args,
    overload,
)

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array

from .._captured import cells
from .._check import check_bool, check_callable, check_choice, check_int, check_same
from .._errors import describe_value, structure_error, type_error
from .._keys import check_key, parameters
from .._stage import (
    Composite,
    Passes,
    Scope,
    as_stage,
    is_state_index,
    own_state,
    why_not,
)
from .._tree import as_arrays, combine, differences, join_path
from .._types import AnyStage, Key, MaybeState, Output, PyTree, StageLike
from .container import Container, read_list
from .entries import Broadcast, carried_entry, read_broadcast
from .parallel import FOLDS, check_arrays

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
    stages = read_list(function, make)
    first, *others = (_as_jax(stage) for stage in stages)
    aligned = [
        align(function, f"stages[{i}]", "stages[0]", first, stage)
        for i, stage in enumerate(others, 1)
    ]
    return _each_array(lambda *every: jnp.stack(every), first, *aligned), len(stages)


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
    lines = differences(first, stage)
    if lines:
        raise structure_error(
            function,
            f"`{other}` and `{argument}` differ: {lines[0]}.",
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
    stage_state, put_back = own_state(stage, state)
    # A stacked state is scanned over. Any other state is carried, since a state may be
    # used only once, and the body is traced repeatedly.
    scanned, carried = (stage_state, None) if stacked else (None, stage_state)
    parts, rest = eqx.partition(stage, eqx.is_array) if stacked else (None, stage)
    # The index is needed only for random draws: without a key there is none.
    index = None if scope.key is None else jnp.arange(size)
    passes = Passes(scope, size if stacked else None)
    segment = 0 if stacked else "stage"

    def body(before: PyTree, slices: PyTree) -> PyTree:
        (part, carried), (arrays, scanned, i) = before, slices
        inner, value = passes.begin(), eqx.combine(part, constant)
        # The trace stands for all stages; errors name the first.
        child, state = (
            (eqx.combine(arrays, rest), scanned) if stacked else (rest, carried)
        )
        # Entries that are broadcast are constants of the loop, not part of the carry.
        y, state = inner.enter(segment, child, inputs(value), state=state, index=i)
        y = as_arrays(y)
        check_output("repeat", scope, value, y)
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


Join: TypeAlias = Literal["mean", "sum", "max", "min", "prod", "stack"]
"""The merge of the outputs of the members."""


class Ensemble(Stacked):
    """Stages of equal structure under one `vmap`; see `ensemble`."""

    stages: AnyStage
    size: int = eqx.field(static=True)
    merge: str = eqx.field(static=True, default="mean")

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        stacked, rest = eqx.partition(self.stages, eqx.is_array)
        states, put_back = own_state(self.stages, state)
        index = None if scope.key is None else jnp.arange(self.size)
        passes = Passes(scope, self.size)
        constants = []

        def one(part, part_state, i):
            stage, inner = eqx.combine(part, rest), passes.begin()
            # The trace stands for all members; errors name the first.
            y, part_state = inner.enter(0, stage, x, state=part_state, index=i)
            arrays, constant = eqx.partition(as_arrays(y), eqx.is_array)
            # `vmap` returns only arrays; other leaves, such as text, are returned this
            # way.
            constants.append(constant)
            return arrays, part_state, passes.arrays()

        every = jax.vmap(one, axis_size=self.size)
        y, states, values = every(stacked, states, index)
        passes.end(values)
        state = put_back(states)
        y = combine(y, constants[-1])
        if self.merge == "stack":
            return y, state
        path, merge = join_path(scope.path, 0), f'merge="{self.merge}"'
        check_arrays("ensemble", path, y, merge, ', or use `merge="stack"`.')
        over = FOLDS[self.merge].over
        return jtu.tree_map(lambda leaf: over(leaf, axis=0), y), state


def ensemble(
    make: Makers,
    n: SupportsIndex | None = None,
    *,
    key: Key | None = None,
    merge: Join = "mean",
) -> Ensemble:
    """Apply `n` models of equal structure to the same input and merge the outputs.

    Member `i` is `make(fold_in(key, i))`. The function is traced once, and the
    parameters are stacked, as in `repeat`; the members run together under `jax.vmap`.
    When called with a key, member `i` draws from `fold_in(key, i)`. Existing models are
    given as a list, without `n` and `key`.

    `.stages` is one stage with the stacked arrays of all members, for
    `equinox.filter_vmap`: `filter_vmap(loss)(pipe.stages, batches)` calls a function of
    a member and a batch for every member, each with its own batch.
    `eqx_pipe.sharding.shard(pipe, mesh, P("models"))` spreads the members over the
    devices of a mesh axis.

    **Arguments:**

    - `make`: a function of one key, by position or as the keyword `key`, that returns
        a stage; or a list of stages that differ in the values of their arrays only.
    - `n`: the number of members, at least 1.
    - `key`: a PRNG key for the parameters. (Keyword only.)
    - `merge`: `"mean"`, `"sum"`, `"max"`, `"min"` or `"prod"`, leaf by leaf over the
        members, or `"stack"`: all outputs, along a new leading axis. For any other
        merge, add a stage: `chain(ensemble(..., merge="stack"), stage)`. (Keyword
        only.)

    **Returns:** a stage, with the container methods of a `chain`; `[i]` is member `i`,
    `[:2]` an ensemble of the first two.

    **Shapes:** an array of a member of shape `(*a,)` is held as `(n, *a)`; an output
    leaf `(*b,)` of the members stays `(*b,)`, and becomes `(n, *b)` with `"stack"`.

    **Raises:**

    - `TypeError` if `make` is not a function of one key, or does not return a stage, or
      `n` is not an integer, or `key` is not a key, or either is given with a list; when
      called, if the merge cannot act on a leaf (text, keys).
    - `ValueError` if `n` is not positive, a list is empty, or `merge` is unknown.
    - `StructureError` (a `ValueError`) if members of a list differ in more than the
      values of arrays; the error names the first such leaf.

    **Laws:** with `merge="stack"`, `pipe(x, key=key)[i]` is `pipe[i](x,
    key=fold_in(key, i))`; `"mean"` is the mean of these, and so on.

    !!! example

        >>> import equinox as eqx, eqx_pipe as ep, jax.numpy as jnp, jax.random as jr
        >>> make = lambda key: eqx.nn.MLP(3, 2, 8, 1, key=key)
        >>> models = ep.ensemble(make, 5, key=jr.key(0), merge="stack")
        >>> ys = models(jnp.ones(3))
        >>> ys.shape, ys.std(axis=0).shape, len(models), models[0](jnp.ones(3)).shape
        ((5, 2), (2,), 5, (2,))
    """
    check_choice("ensemble", "merge", merge, get_args(Join))
    stages, size = read_stacked("ensemble", make, n, key, Ensemble.fewest)
    return Ensemble(stages, size, merge)
