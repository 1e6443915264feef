"""Stages: callables with the convention of Equinox layers, and how they are called.

A combinator calls each child by `Scope.enter`, with its own key, path and record.
"""

import abc
import dataclasses
import functools as ft
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Integer

from .._check import check_callable, check_is
from .._errors import (
    MissingKeyError,
    asks_for_key,
    describe_value,
    type_error,
    value_error,
)
from .._keys import fold, key_argument, parameters
from .._tree import as_arrays, combine, is_none, join_path
from .._types import AnyStage, Key, MaybeState, Output, PyTree, Segment, StageLike
from .error_path import is_located, locate
from .hidden import check_nothing_hidden

if TYPE_CHECKING:
    # Type checkers treat `__call__`, which `StatefulLayer` declares, as a field.
    _Layer = eqx.Module
else:
    # `equinox.nn.Sequential` passes state only to layers of this class.
    _Layer = eqx.nn.StatefulLayer


class Stage(_Layer):
    """The abstract base for your own stages.

    A stage is any callable with the convention of Equinox's layers:
    `stage(x, *, key=None) -> y`, or, if its `is_stateful()` is true,
    `stage(x, state, *, key=None) -> (y, state)`. `x` and `y` are arbitrary pytrees.
    Subclassing is optional: every `equinox.nn` layer and every plain function is
    accepted wherever a stage is.

    A subclass is an `equinox.Module`: it declares its fields and defines `__call__`.

    !!! example

        >>> import equinox as eqx, eqx_pipe as ep, jax.numpy as jnp
        >>> class Scale(ep.Stage):
        ...     factor: float
        ...     def __call__(self, x, *, key=None):
        ...         return self.factor * x
        >>> ep.chain(Scale(2.0), jnp.sum)(jnp.ones(3)).item()
        6.0
    """

    @abc.abstractmethod
    def __call__(self, x: PyTree, *, key: Key | None = None) -> PyTree:
        """Map the pytree `x` to another pytree."""

    def is_stateful(self) -> bool:
        """Return whether the stage takes and returns an `equinox.nn.State`."""
        return False

    def __hash__(self) -> int:
        try:
            return eqx.Module.__hash__(self)
        except TypeError as error:
            raise TypeError(
                f"a `{type(self).__name__}` holds arrays and cannot be hashed, as "
                "`jax.jit` and `jax.checkpoint` hash their function. Use "
                "`equinox.filter_jit(pipe)` and `equinox.filter_checkpoint(pipe)`, or "
                "wrap it: `lambda x: pipe(x)`."
            ) from error


identity: eqx.nn.Identity = eqx.nn.Identity()


class Lift(Stage):
    """A plain function as a stage, called with a key only if it takes one."""

    fn: StageLike

    def __call__(
        self, *args: PyTree, key: Key | None = None, **named: PyTree
    ) -> PyTree:
        return self.fn(*args, **named, **key_argument(self.fn, key))


def is_stateful(stage: PyTree) -> bool:
    """Return whether a stage takes and returns an `equinox.nn.State`."""
    if not isinstance(stage, eqx.nn.StatefulLayer):
        return False
    # Through the class: a method looked up on a Module is a new Module, which takes
    # longer than most layers outside `jit`.
    return type(stage).is_stateful(stage)


def is_composite(stage: PyTree) -> TypeGuard[AnyStage]:
    """Return whether a stage is a `Composite`, a stage made of other stages.

    By an attribute, since the module of the class imports this one.
    """
    return getattr(type(stage), "made_of_stages", False)


def is_state_index(leaf: object) -> bool:
    """Return whether a leaf is a state index."""
    return isinstance(leaf, eqx.nn.StateIndex)


def check_state(function: str, stage: StageLike, state: object) -> None:
    """Raise unless `state` is a `State`, or is None and not needed."""
    if state is None:
        if not is_stateful(stage):
            return
        path = _path_of_stateful(stage)
        who = f"stage `{path}`" if path else "it"
        wrong = f"{who} is stateful, but got no state."
        cure = "Build the pipeline by `pipe, state = "
        cure += "equinox.nn.make_with_state(...)(...)` and call `y, state = pipe(x, "
        cure += "state)`."
        raise value_error(function, wrong, cure)
    cure = "Give an `equinox.nn.State`. A stage takes one input; several values go in "
    cure += "as one tuple or dict. Keys are passed as `key=`."
    check_is(function, "state", state, eqx.nn.State, cure)


def _path_of_stateful(stage: StageLike, path: str = "") -> str:
    """Return the path of the first stateful stage that is not a combinator."""
    if is_composite(stage):
        for segment, child in stage.children().items():
            if is_stateful(child):
                return _path_of_stateful(child, join_path(path, segment))
    return path


def check_state_is_ours(
    function: str, stage: StageLike, state: MaybeState, error: KeyError
) -> None:
    """Raise if the call failed because the state was made with another pipeline.

    `State` is a dict by state indices, and raises a bare `KeyError` with the index.
    """
    marker = error.args[0] if len(error.args) == 1 else None
    indices = filter(is_state_index, jtu.tree_leaves(stage, is_leaf=is_state_index))
    if state is not None and any(index.marker is marker for index in indices):
        wrong = "the state has no entry for a stage of this pipeline: it was made for "
        wrong += "another pipeline, or before this one changed."
        cure = "Pass the state that `equinox.nn.make_with_state` returned together "
        cure += "with this pipeline."
        raise value_error(function, wrong, cure) from error


def own_state(
    stage: StageLike, state: MaybeState
) -> tuple[MaybeState, Callable[[MaybeState], MaybeState]]:
    """Return a stage's part of a state, and a function that puts it back."""
    if state is None or not is_stateful(stage):
        return None, lambda part: state
    return state.substate(stage), lambda part: state.update(cast(eqx.nn.State, part))


def copy_state(state: MaybeState) -> MaybeState:
    """Return a copy of a state that stays valid when the original is updated."""
    # By flattening, as JAX does: Equinox marks a `State` as used when it is updated.
    leaves, structure = jtu.tree_flatten(state)
    return jtu.tree_unflatten(structure, leaves)


_ONE_INPUT = (
    "A stage takes one input, and perhaps `key=`. Make a function of several inputs a "
    "node of `eqx_pipe.graph`, pass it entries of a dict by `eqx_pipe.feed`, or call "
    "it in a Module or function of one input, which may be a tuple."
)


_STATEFUL = (
    "Only an `equinox.nn.StatefulLayer` whose `is_stateful()` is true gets a state, by "
    "position: `(x, state, *, key=None)`. Make it a subclass, or define `is_stateful` "
    "in an `eqx_pipe.Stage`."
)


def as_stage(
    function: str,
    argument: str,
    value: object,
    cure: str = _ONE_INPUT,
    num_inputs: int = 1,
    named: tuple[str, ...] = (),
    inputs: str = "one input",
) -> AnyStage:
    """Return `value` as a child stage; functions become modules.

    `function` and `argument` name the caller and its argument in errors. Raise if a
    callable does not take `num_inputs` inputs by position, and the `named` ones by
    keyword; in the error, `inputs` lists them and `cure` is the fix.
    """
    check_callable(function, argument, value)
    check_nothing_hidden(function, argument, value)
    value = cast(StageLike, value)
    wrong = _misfit(value, num_inputs, named)
    if wrong:
        # Equinox's own layers with a state are `StatefulLayer`s, too.
        if cure is _ONE_INPUT and "state" in parameters(value):
            cure = _STATEFUL
        raise type_error(function, f"`{argument}` gets {inputs}, but {wrong}.", cure)
    return as_module(value)


def as_module(value: StageLike) -> AnyStage:
    """Return a module unchanged, and a function as a module."""
    return cast(AnyStage, value if isinstance(value, eqx.Module) else Lift(value))


def _misfit(
    stage: StageLike, num_inputs: int, named: tuple[str, ...] = ()
) -> str | None:
    """Return why a stage cannot take this number of inputs, or `None` if it can.

    `named` are the names of additional inputs by keyword; see `call`.
    """
    if is_composite(stage):
        fits = num_inputs == (0 if named else 1)
        return None if fits else "a pipeline takes one"
    if "key" in named:
        return "`key` is the name of the PRNG key, which is passed on by itself"
    if not isinstance(stage, eqx.Module):
        return why_not(stage, num_inputs, named)
    if isinstance(stage, Lift):
        return why_not(stage.fn, num_inputs, named)
    if is_stateful(stage) and named:
        return why_not(stage, num_inputs, (*named, "state"))
    return why_not(stage, num_inputs + is_stateful(stage), named)


def why_not(fn: object, num_inputs: int, named: tuple[str, ...] = ()) -> str | None:
    """Return why a callable cannot take these inputs and a key, or `None` if it can.

    `named` are additional inputs by keyword. A callable without a signature is
    accepted.
    """
    if isinstance(fn, np.ufunc | jnp.ufunc):  # the signature does not show `nin`
        fits = fn.nin == num_inputs and not named
        return None if fits else f"it requires {fn.nin} positional arguments"
    cls = type(fn)
    wraps = hasattr(cls, "__wrapped__") or "__signature__" in vars(cls)
    if isinstance(fn, eqx.Module) and not wraps:
        # Its `__call__` may be wrapped (`filter_jit`), which hides the signature.
        fn = ft.partial(cls.__call__, None)
    signature = _signature(fn)
    if signature is None:
        return None
    keyword = dict.fromkeys(named)
    if "key" in list(signature.parameters)[1:]:
        keyword["key"] = None
    try:
        signature.bind(*[None] * num_inputs, **keyword)
    except TypeError as error:
        bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
        return f"its signature is `{inspect.Signature(bare)}` ({error})"
    return None


def _signature(fn: Any) -> inspect.Signature | None:
    """Return the signature; a wrapper's own, unless it takes any arguments."""
    for follow in (False, True):
        try:
            signature = inspect.signature(fn, follow_wrapped=follow)
        except (TypeError, ValueError):  # some builtins have no signature
            continue
        kinds = [parameter.kind for parameter in signature.parameters.values()]
        if follow or inspect.Parameter.VAR_POSITIONAL not in kinds:
            return signature
    return None


@dataclasses.dataclass(frozen=True)
class Record:
    """The outputs of stages, by path, for requested paths."""

    wants: Callable[[str], bool]
    values: dict[str, PyTree] = dataclasses.field(default_factory=dict)

    def add(self, path: str, value: PyTree) -> None:
        """Store the value at a path, if it is requested."""
        if self.wants(path):
            self.values[path] = value


@dataclasses.dataclass(frozen=True)
class Scope:
    """The values that a composite passes to a child besides its input and state.

    `key` is the composite's own key; a child draws from it folded with the child's name
    or position. `record` collects outputs by path; it is `None` if no outputs are
    requested, or where values cannot leave a traced branch. `watch` is called before
    each direct child, with its path, the child, its inputs, state, key and named
    inputs.
    """

    key: Key | None
    path: str = ""
    record: Record | None = None
    watch: Callable[..., None] | None = None

    def child(
        self, segment: Segment, index: Integer[Array, ""] | None = None
    ) -> "Scope":
        """Return the scope of the child named, or positioned at, `segment`.

        `index` is folded into the key instead of `segment` if one traced call stands
        for many (`repeat`, `batched`).
        """
        key = fold(self.key, segment if index is None else index)
        return Scope(key, join_path(self.path, segment), self.record)

    def enter(
        self,
        segment: Segment,
        stage: StageLike,
        *args: PyTree,
        state: MaybeState,
        index: Integer[Array, ""] | None = None,
        named: Mapping[str, PyTree] | None = None,
        none_from: Segment | None = None,
    ) -> Output:
        """Call a child with its own key, record its output, and add its path to errors.

        For `index` see `Scope.child`, for `named` see `call`. `none_from` is the stage
        that returned None, if that is an input.
        """
        inner = self.child(segment, index)
        if self.watch is not None:
            self.watch(inner.path, stage, args, state, inner.key, named or {})
        try:
            y, new_state = call(stage, args, state, inner, named)
        except Exception as error:
            if inner.key is None and wants_key(error, stage):
                raise MissingKeyError(str(segment)) from error
            if none_from is not None and not isinstance(error, MissingKeyError):
                # Otherwise the error would be located at the stage that got None.
                origin = join_path(self.path, none_from)
                reason = (str(error).splitlines() or [""])[0]
                raise TypeError(
                    f"stage `{origin}` returned None, which `{inner.path}` rejects "
                    f"({reason}). Return the output of `{origin}`; a function without "
                    "`return` returns None."
                ) from error
            locate(error, str(segment))
            raise
        if inner.record is not None:
            inner.record.add(inner.path, y)
        return y, new_state

    @property
    def where(self) -> str:
        """ " at `path`" for a message, or nothing at the root."""
        return f" at `{self.path}`" if self.path else ""

    def silent(self) -> "Scope":
        """Return the same scope without a record."""
        return dataclasses.replace(self, record=None)


class Passes:
    """Outputs that leave the traced body of a loop, or a function under `vmap`.

    A body returns arrays alone, and a recorded value can leave it only as one of its
    outputs. So the body calls its stages with the scope that `begin` returns, and
    returns the result of `arrays`, which `end` gets stacked over the passes.

    With `size` the stages have positions: the values of pass `i` are recorded below
    `i`, although the path in the body has 0. Without `size` they stay stacked.
    """

    def __init__(self, scope: Scope, size: int | None = None):
        self.scope = scope
        self.size = size
        self.record: Record | None = None
        self.has_run = False

    def begin(self) -> Scope:
        """Return a new scope for the body, which JAX may trace more than once."""
        if self.scope.record is None:
            return self.scope
        self.record = Record(self._wants)
        return dataclasses.replace(self.scope, record=self.record)

    def arrays(self, y: PyTree = None) -> PyTree:
        """Return the arrays of an output, and those that were recorded."""
        values = {} if self.record is None else self.record.values
        self.paths = list(values)  # in order; JAX sorts those of a dict
        both = as_arrays((y, values))
        # Other leaves, such as text, are the same in each pass.
        arrays, self.constants = eqx.partition(both, eqx.is_array)
        values.clear()  # no tracer outlives its trace
        self.has_run = True
        return arrays

    def end(self, stacked: PyTree) -> PyTree:
        """Record values, and return the output; both stacked along leading axes."""
        y, values = combine(stacked, self.constants)
        outer = self.scope.record
        if outer is not None:
            for i in range(self.size or 1):
                for path in self.paths:
                    value = values[path]
                    if self.size is not None:
                        value = _slice(value, self.constants[1][path], i)
                    outer.add(self._path(path, i), value)
        return y

    def _wants(self, path: str) -> bool:
        assert self.scope.record is not None
        wants = self.scope.record.wants
        return any(wants(self._path(path, i)) for i in range(self.size or 1))

    def _path(self, path: str, i: Segment) -> str:
        """Return the path in pass `i` for `path` in the body."""
        if self.size is None:
            return path
        first = join_path(self.scope.path, 0)
        return join_path(self.scope.path, i) + path[len(first) :]


def _slice(stacked: PyTree, inside: PyTree, i: int) -> PyTree:
    """Return the value of one pass, with the structure that it has in the body."""
    # `vmap` changes the static data of a sparse matrix.
    structure = jtu.tree_structure(inside, is_leaf=is_none)
    leaves = jtu.tree_leaves(stacked, is_leaf=is_none)
    return structure.unflatten([v[i] if eqx.is_array(v) else v for v in leaves])


def call(
    stage: StageLike,
    args: tuple[PyTree, ...],
    state: MaybeState,
    inner: Scope,
    named: Mapping[str, PyTree] | None = None,
) -> Output:
    """Call a stage by its own convention, with the key of `inner` unchanged.

    `named` inputs are keyword arguments for a layer or function, and one mapping for a
    pipeline.
    """
    if is_composite(stage):
        (x,) = args if not named else (dict(named),)
        # Not `stage(x)`, which would begin a new scope and lose the path, key and
        # record.
        return cast(Any, type(stage)).run(stage, x, state, inner)
    keyword = {**(named or {}), **key_of(stage, inner.key)}
    if not is_stateful(stage):
        return stage(*args, **keyword), state
    # With keyword inputs, the state has no position.
    by_name = {"state": state} if named else {}
    result = stage(*args, *(() if named else (state,)), **keyword, **by_name)
    pair = isinstance(result, tuple) and len(result) == 2
    if not pair or not isinstance(result[1], eqx.nn.State):
        raise TypeError(
            f"`{type(stage).__name__}` is stateful, but returned "
            f"{describe_value(result)}, not a pair of output and state. Return `(y, "
            "state)` from its `__call__(x, state, *, key=None)`."
        )
    return result


def call_layer(
    stage: StageLike,
    args: tuple[PyTree, ...],
    named: dict[str, PyTree],
    key: Key | None,
    begin: Callable[[PyTree], PyTree] = lambda inputs: inputs,
    end: Callable[[PyTree], PyTree] = lambda y: y,
) -> PyTree:
    """Call a stage like an Equinox layer: with its state after its inputs.

    `begin` changes the inputs, and `end` the output.
    """
    inputs, state = list(args), None
    if is_stateful(stage):  # with keyword inputs it has no position
        state = named.pop("state") if "state" in named else inputs.pop()
    inputs, named = begin((inputs, named))
    y, state = call(as_module(stage), tuple(inputs), state, Scope(key), named)
    return end(y) if state is None else (end(y), state)


def key_of(stage: object, key: Key | None) -> dict[str, Key | None]:
    """Return the key as a keyword argument, if the module takes one.

    A module may pass its `**kwargs` to a layer that takes no key, so `key` is left out
    if there is no key.
    """
    parameter = _key_parameter(stage)
    if parameter is None or key is None and parameter.kind is parameter.VAR_KEYWORD:
        return {}
    return {"key": key}


def _key_parameter(stage: object) -> inspect.Parameter | None:
    """Return the parameter of a module for `key=`: `key` itself, or its `**kwargs`."""
    parameter = of_type(type(stage))
    if parameter is None or parameter.kind is not parameter.VAR_KEYWORD:
        return parameter
    if isinstance(stage, eqx.Partial):
        if "key" in stage.keywords:  # the user's key, which must not be replaced
            return None
        bound = ft.partial(stage.func, *stage.args, **stage.keywords)
        return _of_callee(bound, stage.func)
    named = parameters(stage)
    if "key" in named or not named:  # no parameters under `vmap`
        return named.get("key")
    if not isinstance(stage, eqx.Module):  # a function that `tree_at` inserted
        return None
    wrapped = getattr(stage, "__wrapped__", None)  # `filter_jit(f)` and similar
    if wrapped is not None:
        return _of_callee(stage, wrapped)
    # Other wrappers of Equinox hide the wrapped function.
    return None if type(stage).__module__.startswith("equinox.") else parameter


# Called for every call of a stage; `inspect.signature` takes longer than most layers.
@ft.lru_cache(4096)
def of_type(cls: type) -> inspect.Parameter | None:
    """Return the `key` parameter of a class's instances, or their `**kwargs`."""
    named = parameters(cls.__call__)
    wraps = [p for p in named.values() if p.kind is p.VAR_KEYWORD]
    return named.get("key", wraps[0] if wraps else None)


def _of_callee(bound: object, callee: object) -> inspect.Parameter | None:
    """Return the `key` parameter of a wrapped callable; a function must name it."""
    if isinstance(callee, eqx.Module):
        return _key_parameter(callee)
    named = dict(list(parameters(bound).items())[1:])  # the first is the input
    return named.get("key")


def wants_key(error: Exception, stage: PyTree) -> bool:
    """Return whether a call of `stage` with `key=None` failed for lack of a key.

    An error from a nested pipeline was checked there.
    """
    if isinstance(error, MissingKeyError) or is_located(error):
        return False
    lifted = isinstance(stage, Lift)
    takes = key_argument(stage.fn, None) if lifted else _key_parameter(stage)
    return bool(takes) and asks_for_key(error)
