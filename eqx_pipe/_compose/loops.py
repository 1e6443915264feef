"""Loops: stages of equal structure in turn or side by side, over steps, over examples.

`repeat` and `ensemble` stack stages, every array with a leading axis, from a function
of one key or from existing stages. The stages of a `repeat` run under one scan, those
of an `ensemble` under `vmap`. `scan` applies a cell to each step of a sequence, and
`batched` a stage to each example of a batch.
"""

import dataclasses
import operator
import types
from collections.abc import Callable, Hashable, Mapping, Sequence
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
)

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from .._check import (
    check_bool,
    check_callable,
    check_carry,
    check_choice,
    check_dense,
    check_int,
    check_same,
    common_size,
    is_integer,
)
from .._errors import describe_value, structure_error, type_error, value_error
from .._jaxprs import draws_together, trace
from .._keys import check_draws, check_mapped_key, is_rbg, parameters
from .._mesh_context import check_mesh, is_explicit
from .._same import Fixed, live_key
from .._stage import (
    Composite,
    Passes,
    Scope,
    as_stage,
    is_composite,
    is_state_index,
    is_stateful,
    own_state,
    why_not,
)
from .._tree import (
    as_arrays,
    differences,
    is_none,
    is_ref,
    is_sparse,
    join_path,
    numpy_as_jax,
    path_name,
    struct_of,
)
from .._types import AnyStage, Key, MaybeState, Output, PyTree, StageLike
from .._vmap import leaf_axes, vmap
from .container import Container, read_list
from .entries import Broadcast, carried_entry, look_up, read_broadcast
from .parallel import FOLDS, check_arrays

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

    def one(leaf: object, *more: Any) -> Any:
        return fn(leaf, *more) if eqx.is_array(leaf) else leaf

    return jtu.tree_map(one, tree, *others)


def read_stacked(
    function: str, make: object, n: object, key: object, fewest: int
) -> tuple[AnyStage, int]:
    """Return the stages stacked into one, and their number.

    `make` is a list of stages, or a function that makes one from a key and is traced
    once.
    """
    if not isinstance(make, list | tuple):
        return _made(function, make, n, key, fewest)
    if n is not None or key is not None:
        wrong = f"got {len(make)} stages, and `{'key' if n is None else 'n'}` too."
        cure = "Give the stages alone, or a function that makes one from a key, "
        cure += f"`{function}(make, n, key=key)`."
        raise type_error(function, wrong, cure)
    stages = read_list(function, make)
    first, *others = map(numpy_as_jax, stages)
    pairs = enumerate(others, 1)
    aligned = [align(function, f"stages[{i}]", "stages[0]", first, x) for i, x in pairs]
    return _each_array(lambda *every: jnp.stack(every), first, *aligned), len(stages)


def _read_stage(function: str, argument: str, stage: object) -> AnyStage:
    return numpy_as_jax(as_stage(function, argument, stage))


def _made(
    function: str, make: Any, n: Any, key: Any, fewest: int
) -> tuple[AnyStage, int]:
    """Make stages from keys under `vmap`, with one trace for any number of stages."""
    check_int(function, "n", n, fewest)
    check_mapped_key(function, key, required=True)
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


def _takes_keyword(function: str, make: object) -> bool:
    """Return whether a factory takes its key as a keyword; raise if it takes none."""
    # `filter_jit(make)` is also a Module, which wraps the function.
    is_layer = isinstance(make, eqx.Module) and not hasattr(make, "__wrapped__")
    if not callable(make) or is_layer:
        shown = f"a `{type(make).__name__}`" if is_layer else describe_value(make)
        wrong = f"`make` is {shown}."
        cure = "Give a function that makes one stage from a key: `lambda key: "
        cure += "equinox.nn.Linear(3, 3, key=key)`; or a list of stages. To apply one "
        cure += "layer several times, write `repeat(layer, n, shared=True)`."
        raise type_error(function, wrong, cure)
    key = parameters(make).get("key")
    if key is not None and key.kind is key.KEYWORD_ONLY:  # `partial(Layer, 3, 3)`
        return True
    wrong = why_not(make, 1)
    if wrong:
        wrong = f"`make` cannot be called with one key: {wrong}."
        cure = "Wrap it: `lambda key: Layer(..., key=key)`."
        raise type_error(function, wrong, cure)
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
        wrong = f"`{other}` and `{argument}` differ: {lines[0]}."
        cure = "Only the values of arrays may differ. Give each the same settings, "
        cure += "share functions between them, or use `eqx_pipe.chain`, which takes "
        cure += "any stages."
        raise structure_error(function, wrong, cure)
    return stage


def _as_first(ours: PyTree, theirs: PyTree) -> PyTree:
    if is_state_index(ours) and is_state_index(theirs):
        # Each stage has its own state indices. Each keeps its initial state, unless the
        # first stage has moved its initial state into a `State`.
        has_init = bool(jtu.tree_leaves(ours.init))
        return eqx.tree_at(lambda i: i.init, ours, theirs.init) if has_init else ours
    function = isinstance(ours, types.FunctionType)
    return ours if function and live_key(ours) == live_key(theirs) else theirs


Policy: TypeAlias = Callable[..., Any]
"""A policy of `jax.checkpoint_policies`: the values to keep for the backward pass."""


class Repeat(Stacked):
    """Stages of equal structure under one scan; see `repeat`."""

    fewest: ClassVar[int] = 0

    stages: AnyStage
    size: int = eqx.field(static=True)
    broadcast: tuple[str, ...] = eqx.field(static=True, default=())
    remat: bool | Fixed = eqx.field(static=True, default=False)
    unroll: int = eqx.field(static=True, default=1)

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        return _loop(self, x, state, scope)


class SharedRepeat(Composite):
    """One stage under a scan, with the same parameters each time; see `repeat`."""

    stage: AnyStage
    n: int = eqx.field(static=True)
    broadcast: tuple[str, ...] = eqx.field(static=True, default=())
    remat: bool | Fixed = eqx.field(static=True, default=False)
    unroll: int = eqx.field(static=True, default=1)

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        return _loop(self, x, state, scope)


def _loop(
    pipe: "Repeat | SharedRepeat", x: PyTree, state: MaybeState, scope: Scope
) -> Output:
    """Run a stage under one scan; if it is stacked, each step runs one slice."""
    stacked = isinstance(pipe, Repeat)
    stage, size = (pipe.stages, pipe.size) if stacked else (pipe.stage, pipe.n)
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

    step = with_remat(body, pipe.remat)
    first, steps = (carry, carried), (parts, scanned, index)
    last, (scanned, values) = jax.lax.scan(step, first, steps, size, unroll=pipe.unroll)
    carry, carried = last
    passes.end(values)
    state = put_back(scanned if stacked else carried)
    return eqx.combine(carry, constant), state


def check_output(function: str, scope: Scope, x: PyTree, y: PyTree) -> None:
    """Raise unless the output of a stage can be the input of the next one."""
    wrong = f"the output of the stage{scope.where} differs from its input; first what "
    wrong += "it got, then what it returned"
    cure = "Return the structure, shapes and dtypes of the input, or use `chain`."
    check_same(function, wrong, x, y, cure)


def with_remat(body: Callable[..., Any], remat: bool | Fixed) -> Callable[..., Any]:
    """Return the body of a scan, with rematerialisation if requested."""
    if remat is False:
        return body
    # Inside a scan, XLA cannot merge the recomputation with the forward pass.
    policy = remat.value if isinstance(remat, Fixed) else None
    return jax.checkpoint(body, policy=policy, prevent_cse=False)


def repeat(
    make: Makers | StageLike,
    n: SupportsIndex | None = None,
    *,
    key: Key | None = None,
    shared: bool = False,
    broadcast: Broadcast = (),
    remat: bool | Policy = False,
    unroll: SupportsIndex = 1,
) -> Any:  # a `SharedRepeat` if `shared`, else a `Repeat`
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
    - `ValueError` if `n` is negative, or `unroll` not positive, or a list is empty, or
      `key` is of the kind `rbg`.
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
    policy = remat if isinstance(remat, bool) else Fixed(remat)
    settings = (broadcast, policy, unroll.__index__())
    if not shared:
        return Repeat(*read_stacked("repeat", make, n, key, 0), *settings)
    if key is not None:
        wrong = "`shared=True` with a `key`, from which nothing is made."
        cure = "Give the stage itself: `repeat(layer, 4, shared=True)`."
        raise type_error("repeat", wrong, cure)
    check_int("repeat", "n", n, 0)
    stage = as_stage("repeat", "make", make)
    return SharedRepeat(stage, operator.index(cast(SupportsIndex, n)), *settings)


def check_draws_apart(function: str, scope: Scope, run: Any, *args: PyTree) -> None:
    """Raise if stages draw together from keys of a kind that allows no such draws."""
    if scope.key is not None and is_rbg(scope.key):
        if draws_together(trace(lambda: jtu.tree_leaves(run(*args)))):
            check_draws(function, "`key` is", scope.key)


Join: TypeAlias = Literal["mean", "sum", "max", "min", "prod", "stack"]
"""The merge of the outputs of the members."""


class Ensemble(Stacked):
    """Stages of equal structure under one `vmap`; see `ensemble`."""

    fewest: ClassVar[int] = 1

    stages: AnyStage
    size: int = eqx.field(static=True)
    merge: str = eqx.field(static=True, default="mean")

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        stacked, rest = eqx.partition(self.stages, eqx.is_array)
        states, put_back = own_state(self.stages, state)
        index = None if scope.key is None else jnp.arange(self.size)
        passes = Passes(scope, self.size)

        def one(part, part_state, i):
            stage, inner = eqx.combine(part, rest), passes.begin()
            # The trace stands for all members; errors name the first.
            y, part_state = inner.enter(0, stage, x, state=part_state, index=i)
            return passes.arrays(y), part_state

        every = jax.vmap(one, axis_size=self.size)
        check_draws_apart("ensemble", scope, every, stacked, states, index)
        values, states = every(stacked, states, index)
        y, state = passes.end(values), put_back(states)
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
    - `ValueError` if `n` is not positive, a list is empty, `merge` is unknown, or
      members draw from a key of the kind `rbg`.
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
    stages, size = read_stacked("ensemble", make, n, key, 1)
    return Ensemble(stages, size, merge)


Returns: TypeAlias = Literal["sequence", "carry", "both"]
"""The output of a scan: all outputs, the last carry, or both."""

_CELLS = eqx.nn.GRUCell | eqx.nn.LSTMCell

_STEPS = (
    "Each array needs a leading axis of steps, all of the same length. Values that "
    "every step reads may be entries of a dict, which `broadcast` names: "
    '`scan(..., broadcast="memory")`.'
)


_DENSE = (
    "A loop splits and stacks dense arrays: use `.todense()`, or carry the matrix, or "
    "name its entry in `broadcast`."
)


class Scan(Composite):
    """A cell under `lax.scan`; see `scan`."""

    cell: AnyStage
    init: PyTree  # arrays, or a stage that computes them from the input
    broadcast: tuple[str, ...] = eqx.field(static=True, default=())
    returns: str = eqx.field(static=True, default="sequence")
    reverse: bool = eqx.field(static=True, default=False)
    unroll: int = eqx.field(static=True, default=1)

    def children(self) -> Mapping[str, AnyStage]:
        init = {"init": cast(AnyStage, self.init)} if callable(self.init) else {}
        return {**init, "cell": self.cell}

    def with_child(self, segment: str, stage: StageLike) -> "Scan":
        if segment == "init":
            return super().with_child(segment, stage)
        return dataclasses.replace(self, cell=_read_cell(stage))

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        x = as_arrays(x)
        sequence, shared = x, None
        if self.broadcast:
            shared = look_up("scan", self.broadcast, x, scope, others=("x",))
            sequence = {name: x[name] for name in x if name not in shared}
        check_dense("scan", f"the input{scope.where}", sequence, _DENSE)
        # `lax.scan` gives each step a reference to its part of a reference.
        xs, constant = eqx.partition(sequence, _is_split)
        size = common_size("scan", f"the input{scope.where}", xs, 0, _STEPS)
        carry = self.init
        if callable(self.init):
            carry, state = scope.enter("init", self.init, x, state=state)
        elif carry is None:
            carry = _zeros(self.cell)
        carry, fixed = eqx.partition(as_arrays(carry), eqx.is_array)
        # The state is carried, since it may be used only once, and the body of a loop
        # is traced more than once.
        cell_state, put_back = own_state(self.cell, state)
        index = None if scope.key is None else jnp.arange(size)
        passes = Passes(scope)

        def body(carried, slices):
            (part, cell_state), (step, i) = carried, slices
            before, now = eqx.combine(part, fixed), eqx.combine(step, constant)
            # Constants of the loop: neither carried nor split.
            now = now if shared is None else {**now, **shared}
            inner = passes.begin()
            after, y, cell_state = self._step(inner, before, now, cell_state, i)
            y = None if self.returns == "carry" else as_arrays(y)
            check_dense("scan", f"the output of the cell{scope.where}", y, _DENSE)
            after = as_arrays(after)
            # JAX's own error would include the state, and types instead of names.
            check_carry("scan", f"the cell{scope.where}", before, after)
            after = eqx.filter(after, eqx.is_array)
            return (after, cell_state), passes.arrays(y)

        first, steps = (carry, cell_state), (xs, index)
        how: Any = {"reverse": self.reverse, "unroll": self.unroll}
        (carry, cell_state), values = jax.lax.scan(body, first, steps, size, **how)
        carry, y = eqx.combine(carry, fixed), passes.end(values)
        returned = {"sequence": y, "carry": carry, "both": (carry, y)}
        return returned[self.returns], put_back(cell_state)

    def _step(
        self, scope: Scope, carry: PyTree, x: PyTree, state: MaybeState, i: Any
    ) -> tuple[PyTree, PyTree, MaybeState]:
        """Return the carry, output and state after one step."""
        cell = self.cell
        if isinstance(cell, _CELLS):  # take the input first, return a carry
            carry, state = scope.enter("cell", cell, x, carry, state=state, index=i)
            return carry, carry[0] if isinstance(carry, tuple) else carry, state
        args = ({"carry": carry, "x": x},) if is_composite(cell) else (carry, x)
        both, state = scope.enter("cell", cell, *args, state=state, index=i)
        if not isinstance(both, tuple) or len(both) != 2:
            wrong = f"`{join_path(scope.path, 'cell')}` returned "
            wrong += f"{describe_value(both)}, not a pair."
            cure = "Return `(carry, y)`: the carry for the next step, and the output "
            cure += "of this step."
            raise type_error("scan", wrong, cure)
        return *both, state


def _zeros(cell: Any) -> PyTree:
    """Return the zero carry of an Equinox cell."""
    zeros = jnp.zeros((cell.hidden_size,), cell.weight_hh.dtype)
    return (zeros, zeros) if isinstance(cell, eqx.nn.LSTMCell) else zeros


def scan(
    cell: StageLike,
    init: PyTree | StageLike = None,
    *,
    broadcast: Broadcast = (),
    returns: Returns = "sequence",
    reverse: bool = False,
    unroll: SupportsIndex = 1,
) -> Scan:
    """Apply a cell to each step of a sequence in order.

    The input's arrays are split along their leading axis, time. One `jax.lax.scan`
    passes the carry from step to step: `cell(carry, x) -> (carry, y)`. Equinox's
    `GRUCell` and `LSTMCell` work directly: their state is the carry, and the hidden
    vector is the output. The cell draws from `fold_in(key, i)` for element `i` of the
    sequence; a stateful cell passes its state from step to step. For both directions,
    use a `parallel` of two scans, as below.

    **Arguments:**

    - `cell`: a function or layer of two inputs, `cell(carry, x, *, key=None)`. A
        stateful one is called as `cell(carry, x, state, *, key=None)` and returns
        `((carry, y), state)`. A pipeline gets them as a mapping, `{"carry": ...,
        "x": ...}`.
    - `init`: the first carry. Either a pytree of arrays, which are parameters of the
        stage, or a stage that computes the carry from the whole input, such as
        `lambda xs: jnp.zeros(3)`; its path is `init`. By default Equinox's cells begin
        with zeros.
    - `broadcast`: the name, or names, of the entries that every step reads whole, if
        the input is a mapping: the memory of a decoder, a mask. The other entries are
        sequences. `x` is then a mapping, too. (Keyword only.)
    - `returns`: `"sequence"`: the outputs of all steps, along a new leading axis;
        `"carry"`: the carry after the last step, without outputs; `"both"`: the two,
        as `(carry, ys)`. (Keyword only.)
    - `reverse`: whether to begin with the last element. Outputs keep the positions of
        their inputs, so the last step is at the first element. (Keyword only.)
    - `unroll`: the number of steps per iteration of the loop; see `jax.lax.scan`.
        (Keyword only.)

    **Returns:** a stage that takes a sequence.

    **Shapes:** the cell gets an input leaf `(steps, *a)` as `(*a,)`; an output leaf
    `(*b,)` of the cell becomes `(steps, *b)`.

    **Raises:**

    - `TypeError` if the cell does not take two inputs, `init` is missing, `reverse` is
      not a bool, or `broadcast` is given with a cell of Equinox; when called, if the
      cell does not return a pair, or a sequence is a sparse matrix.
    - `ValueError` if `returns` is unknown, or `unroll` is not positive.
    - `StructureError` (a `ValueError`), when called, if arrays have leading axes of
      different lengths, a broadcast entry is missing, or the new carry differs from the
      old one in structure, shape or dtype; the error names the leaves.

    **Laws:** it equals the loop `for i, x in enumerate(xs): carry, y = cell(carry, x,
    key=fold_in(key, i))`, forward and in gradients; an entry that is broadcast is the
    sequence of its copies.

    !!! example

        >>> import equinox as eqx, eqx_pipe as ep, jax.numpy as jnp, jax.random as jr
        >>> add = lambda total, x: (total + x, total + x)
        >>> ep.scan(add, jnp.zeros(()))(jnp.arange(4.0)).tolist()
        [0.0, 1.0, 3.0, 6.0]
        >>> add = lambda total, x: (total + x["x"] * x["by"],) * 2
        >>> times = ep.scan(add, 0.0, broadcast="by")
        >>> times({"x": jnp.arange(4.0), "by": 2.0}).tolist()
        [0.0, 2.0, 6.0, 12.0]
        >>> cell = eqx.nn.GRUCell(2, 8, key=jr.key(0))
        >>> both = ep.parallel(ep.scan(cell), ep.scan(cell, reverse=True))
        >>> last, xs = ep.scan(cell, returns="carry"), jnp.ones((5, 2))
        >>> both(xs).shape, last(xs).shape
        ((5, 16), (8,))
    """
    read = _read_cell(cell)
    broadcast = read_broadcast("scan", broadcast)
    if broadcast and isinstance(cell, _CELLS):
        wrong = f"`broadcast` with a `{type(cell).__name__}`, which takes one array."
        cure = "Give a function of the carry and a mapping with the entries of one "
        cure += "step."
        raise type_error("scan", wrong, cure)
    check_choice("scan", "returns", returns, get_args(Returns))
    check_bool("scan", "reverse", reverse)
    check_int("scan", "unroll", unroll, 1)
    if init is None and not isinstance(cell, _CELLS):
        wrong = "`init` is None."
        cure = "Give the carry of the first step: arrays, or a function of the whole "
        cure += "input, `lambda xs: jax.numpy.zeros(3)`."
        raise type_error("scan", wrong, cure)
    first = as_stage("scan", "init", init) if callable(init) else as_arrays(init)
    return Scan(read, first, broadcast, returns, bool(reverse), unroll.__index__())


def _read_cell(cell: StageLike) -> AnyStage:
    """Return the cell as a module; raise unless it takes a carry and an input."""
    named = ("carry", "x") if is_composite(cell) else ()
    num, inputs = 0 if named else 2, "a carry and a step of the input"
    cure = "Give a function of the carry and one step of the input that returns "
    cure += "`(carry, y)`. To apply a stage to each step alone, use "
    cure += "`eqx_pipe.batched(stage)`."
    return as_stage("scan", "cell", cell, cure, num, named, inputs)


_EXAMPLES = (
    "Every array needs the same number of examples along its axis of `in_axes`; use "
    "`None` in `in_axes` for entries that all examples share."
)


class Batched(Composite):
    """A stage under `vmap`; see `batched`."""

    stage: AnyStage
    # `in_axes` is stored flattened: a static field must be hashable, and a dict is not.
    axes: tuple[int | None, ...] = eqx.field(static=True)
    axes_structure: Any = eqx.field(static=True)  # a `PyTreeDef`
    axis_name: Hashable | None = eqx.field(static=True)
    batch_size: Any = eqx.field(static=True)  # an integer, "auto", or None
    mesh: Mesh | None = eqx.field(static=True)

    @property
    def in_axes(self) -> PyTree[int | None]:
        """The axes along which examples lie, as they were given."""
        return jtu.tree_unflatten(self.axes_structure, self.axes)

    def settings(self) -> dict[str, Any]:
        names = "axis_name batch_size mesh".split()
        settings = {name: getattr(self, name) for name in names}
        settings = {k: v for k, v in settings.items() if v is not None}
        return settings if self.in_axes == 0 else {"in_axes": self.in_axes, **settings}

    def run(self, x: PyTree, state: MaybeState, scope: Scope) -> Output:
        x = as_arrays(x)
        # `vmap` maps a sparse matrix as one array.
        leaves, structure = jtu.tree_flatten(x, is_leaf=is_sparse)
        subject = f"the input{scope.where}"
        axes = leaf_axes("batched", "in_axes", self.in_axes, x, subject)
        pairs = zip(leaves, axes, strict=True)
        both = [(x, a if _is_split(x) or is_sparse(x) else None) for x, a in pairs]
        axes = [axis for _, axis in both]
        shapes = [struct_of(v) if is_sparse(v) else v for v in leaves]
        shapes = structure.unflatten(shapes)
        size = common_size("batched", subject, shapes, axes, _EXAMPLES)
        mapped = [leaf for leaf, a in both if a is not None]
        # The index is mapped only if the stage gets a key; otherwise all else stays
        # unbatched.
        index = None if scope.key is None else _positions(size, mapped, axes)
        stateful = is_stateful(self.stage)
        shared = state if stateful else None
        passes = Passes(scope)

        def one(slices, shared, i):
            rest = iter(slices)
            parts = [leaf if a is None else next(rest) for leaf, a in both]
            item = jtu.tree_unflatten(structure, parts)
            inner = passes.begin()
            y, shared = inner.enter("stage", self.stage, item, state=shared, index=i)
            return passes.arrays(y), shared

        along = [a for a in axes if a is not None]
        settings: Any = {"out_axes": (0, None), "axis_name": self.axis_name}
        in_axes, batch = (along, None, 0), self.batch_size
        if batch is None and self.mesh is None:
            every = jax.vmap(one, in_axes, axis_size=size, **settings)
        else:
            batch = max(size, 1) if batch is None else batch
            settings |= {"batch_size": batch, "mesh": self.mesh, "axis_size": size}
            every = vmap(one, in_axes, **settings)
        check_draws_apart("batched", scope, every, mapped, shared, index)
        try:
            values, shared = every(mapped, shared, index)
        except ValueError as error:
            # The stage has run, so `vmap` rejects the state: every other output may
            # vary.
            if stateful and passes.has_run:
                wrong = f"the stage{scope.where} updates its state differently for "
                wrong += "each example, but all examples share one state."
                cure = "Combine the examples inside the stage by a collective over "
                cure += "`axis_name` (`jax.lax.pmean`, as `equinox.nn.BatchNorm` "
                cure += "does). For a state of each example, such as a cache, use "
                cure += "`equinox.filter_vmap(pipe, in_axes=(0, None))(xs, state)` in "
                cure += "place of `batched`; the state that it returns has an axis of "
                cure += "examples, and goes in by `in_axes=(0, 0)` from then on."
                raise value_error("batched", wrong, cure) from error
            raise
        return passes.end(values), shared if stateful else state


def _is_split(leaf: object) -> bool:
    """Return whether a loop gives each of its steps a part of a leaf."""
    return eqx.is_array(leaf) or is_ref(leaf)


def _positions(size: int, mapped: list[Array], axes: list[int | None]) -> Array:
    """Return the positions of the examples, placed as the examples are.

    On a mesh with explicit axes, `vmap` rejects arrays that are split differently.
    """
    index = jnp.arange(size)
    along = (a for a in axes if a is not None)
    for leaf, axis in zip(mapped, along, strict=True):
        if is_sparse(leaf):
            continue
        sharding = jax.typeof(leaf).sharding
        if is_explicit(sharding.mesh) and sharding.spec[axis] is not None:
            split = NamedSharding(sharding.mesh, P(sharding.spec[axis]))
            return jax.sharding.reshard(index, split)
    return index


def batched(
    stage: StageLike,
    in_axes: PyTree[SupportsIndex | None] = 0,
    axis_name: Hashable | None = None,
    *,
    batch_size: SupportsIndex | Literal["auto"] | None = None,
    mesh: Mesh | None = None,
) -> Batched:
    """Apply a stage to every example of a batch.

    The input's arrays are split along `in_axes` and the stage runs on each example
    under `jax.vmap`; outputs are stacked along a new leading axis. Example `i` draws
    from `fold_in(key, i)`. The state is shared: the stage sees the same one for each
    example, and must make the same update for each (`equinox.nn.BatchNorm` does, given
    its `axis_name` here). Other leaves, such as strings, are passed to each example
    unchanged. An empty batch is allowed.

    **Arguments:**

    - `stage`: the stage for one example.
    - `in_axes`: the axis along which examples lie, an integer, or a pytree of integers
        and `None` that is a prefix of the input. `None` marks leaves that all examples
        share.
    - `axis_name`: a name for the axis, for collectives inside the stage.
    - `batch_size`: the maximum number of examples vectorised at once on a device, or
        `"auto"`, as for `eqx_pipe.vmap`, also for gradients. By default, all. Not for a
        stage with a state. (Keyword only.)
    - `mesh`: a mesh, over whose devices the examples are split; not for a stage with a
        state. (Keyword only.)

    **Returns:** a stage that takes and returns batches.

    **Shapes:** the stage gets an input leaf `(batch, *a)` as `(*a,)`; an output leaf
    `(*b,)` of the stage becomes `(batch, *b)`.

    **Raises:**

    - `TypeError` if `stage` is not a stage, or `in_axes` has the wrong type.
    - `StructureError` (a `ValueError`), when called, if sizes disagree, an axis is out
      of range, or `in_axes` does not fit the input; the error names the leaves.
    - `ValueError` if a stage has a state, and `batch_size` or `mesh` is given; when
        called, if the examples update the state differently, if `axis_name` is given
        and there are several batches, or if examples of one batch draw from a key of
        the kind `rbg`: JAX draws for all from the first one's key.

    **Laws:** `batched(f)(x, key=key)[i]` is `f(x[i], key=fold_in(key, i))`.

    !!! example

        >>> import equinox as eqx, eqx_pipe as ep, jax.numpy as jnp, jax.random as jr
        >>> layer = ep.batched(eqx.nn.Linear(3, 2, key=jr.key(0)))
        >>> layer(jnp.ones((5, 3))).shape
        (5, 2)
    """
    child = as_stage("batched", "stage", stage)
    named, structure = jtu.tree_flatten_with_path(in_axes, is_leaf=is_none)
    for path, axis in named:
        if axis is not None and not is_integer(axis):
            where = f" at `.{path_name(path)}`" if path else ""
            wrong = f"`in_axes` is {describe_value(axis)}{where}."
            cure = "Give an integer, `None`, or a pytree of these."
            raise type_error("batched", wrong, cure)
    if all(axis is None for _, axis in named):
        wrong = f"`in_axes` is {in_axes!r}: nothing is mapped."
        cure = "Give the axis along which the examples lie."
        raise value_error("batched", wrong, cure)
    axes = (axis if axis is None else operator.index(axis) for _, axis in named)
    if batch_size is not None and batch_size != "auto":
        check_int("batched", "batch_size", batch_size, 1)
        batch_size = operator.index(batch_size)
    if mesh is not None:
        check_mesh("batched", mesh)
    settings = {"batch_size": batch_size, "mesh": mesh}
    name = next((n for n, value in settings.items() if value is not None), None)
    if name is not None and is_stateful(child):
        wrong = f"`stage` is stateful, and `{name}` is given: each batch would update "
        wrong += "the same state."
        cure = f"Leave out `{name}`, or call `batched(stage)` for one batch after the "
        cure += "other, with the state of the one before, as in a `jax.lax.scan`."
        raise value_error("batched", wrong, cure)
    return Batched(child, tuple(axes), structure, axis_name, batch_size, mesh)
