"""Call the children of a combinator, each with its own key, path and record."""

import dataclasses
import functools as ft
import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

import equinox as eqx
import jax.tree_util as jtu
from jaxtyping import Array, Integer

from .._errors import (
    MissingKeyError,
    asks_for_key,
    describe_value,
    is_located,
    locate,
)
from .._keys import fold, key_argument, parameters
from .._tree import as_arrays, combine, is_none, join_path
from .._types import Key, MaybeState, Output, PyTree, Segment, StageLike
from .stage import Lift, as_module, is_composite, is_stateful


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

    @property
    def where(self) -> str:
        """ " at `path`" for a message, or nothing at the root."""
        return f" at `{self.path}`" if self.path else ""

    def silent(self) -> "Scope":
        """Return the same scope without a record."""
        return dataclasses.replace(self, record=None)


class Passes:
    """Outputs recorded in the traced body of a loop, or under `vmap`.

    A value can leave the body only as one of its outputs. So the body calls its stages
    with the scope that `begin` returns, and returns the result of `arrays` too, which
    `end` gets stacked over the passes. Without a record there is nothing to return.

    With `size` the stages have positions: the values of pass `i` are recorded below
    `i`, although the path in the body has 0. Without `size` they stay stacked.
    """

    def __init__(self, scope: Scope, size: int | None = None):
        self.scope = scope
        self.size = size
        self.record: Record | None = None
        self.constants: PyTree = None
        self.paths: list[str] = []

    def begin(self) -> Scope:
        """Return a new scope for the body, which JAX may trace more than once."""
        if self.scope.record is None:
            return self.scope
        self.record = Record(self._wants)
        return dataclasses.replace(self.scope, record=self.record)

    def arrays(self) -> PyTree:
        """Return the recorded arrays, which the body must return too."""
        if self.record is None:
            return None
        self.paths = list(self.record.values)  # in order; JAX sorts those of a dict
        values = as_arrays(self.record.values)
        arrays, self.constants = eqx.partition(values, eqx.is_array)
        self.record.values.clear()  # no tracer outlives its trace
        return arrays

    def end(self, stacked: PyTree) -> None:
        """Record the values, stacked over the passes along their leading axes."""
        outer = self.scope.record
        if outer is None:
            return
        values = combine(stacked, self.constants)
        for i in range(self.size or 1):
            for path in self.paths:
                value = values[path]
                if self.size is not None:
                    value = _slice(value, self.constants[path], i)
                outer.add(self._path(path, i), value)

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


def enter(
    scope: Scope,
    segment: Segment,
    stage: StageLike,
    *args: PyTree,
    state: MaybeState,
    index: Integer[Array, ""] | None = None,
    named: Mapping[str, PyTree] | None = None,
    none_from: Segment | None = None,
) -> Output:
    """Call one child with its own key, record its output, and add its path to errors.

    For `index` see `Scope.child`, for `named` see `call`. `none_from` is the stage that
    returned None, if that is an input.
    """
    inner = scope.child(segment, index)
    if scope.watch is not None:
        scope.watch(inner.path, stage, args, state, inner.key, named or {})
    try:
        y, new_state = call(stage, args, state, inner, named)
    except Exception as error:
        if inner.key is None and wants_key(error, stage):
            raise MissingKeyError(str(segment)) from error
        if none_from is not None and not isinstance(error, MissingKeyError):
            # Otherwise the error would be located at the stage that got None.
            origin = join_path(scope.path, none_from)
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


def key_of(stage: Any, key: Key | None) -> dict[str, Key | None]:
    """Return the key as a keyword argument, if the module takes one.

    A module may pass its `**kwargs` to a layer that takes no key, so `key` is left out
    if there is no key.
    """
    parameter = _key_parameter(stage)
    if parameter is None or key is None and parameter.kind is parameter.VAR_KEYWORD:
        return {}
    return {"key": key}


def _key_parameter(stage: Any) -> inspect.Parameter | None:
    """Return the parameter of a module for `key=`: `key` itself, or its `**kwargs`."""
    parameter = of_type(type(stage))
    if parameter is None or parameter.kind is not parameter.VAR_KEYWORD:
        return parameter
    if isinstance(stage, eqx.Partial):
        if "key" in stage.keywords:
            return None
        bound = ft.partial(stage.func, *stage.args, **stage.keywords)
        return _of_callee(bound, stage.func)
    known = parameters(stage)
    if "key" in known or not known:  # no parameters under `vmap`
        return known.get("key")
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
    known = parameters(cls.__call__)
    wraps = [p for p in known.values() if p.kind is p.VAR_KEYWORD]
    return known.get("key", wraps[0] if wraps else None)


def _of_callee(bound: Any, callee: Any) -> inspect.Parameter | None:
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
