"""The stage: what may be composed, and the one place that knows how one is called."""

import abc
import dataclasses
import functools as ft
import inspect
import zlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from ._check import check_callable, check_key
from ._errors import MissingKeyError, locate, message
from ._types import Key, Segment, StageLike

if TYPE_CHECKING:
    # Type checkers take `__call__`, which `StatefulLayer` declares, for a field.
    _Layer = eqx.Module
else:
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
    def __call__(self, x: PyTree, *, key: Key | None = None) -> Any:
        """Maps the pytree `x` to another pytree."""

    def is_stateful(self) -> bool:
        """Whether the stage takes and returns an `equinox.nn.State`."""
        return False


class Identity(Stage):
    """Returns its input."""

    def __call__(self, x: PyTree, *, key: Key | None = None) -> PyTree:
        return x


identity = Identity()
"""The stage that returns its input."""


class Lift(Stage):
    """A plain function as a stage; see `lift`."""

    fn: Callable[..., Any]

    def __call__(self, *args: PyTree, key: Key | None = None) -> Any:
        if "key" in _parameters(self.fn):
            return self.fn(*args, key=key)
        return self.fn(*args)


def lift(fn: StageLike) -> Stage:
    """Makes a plain function a stage.

    The key is passed on only to a function that has a parameter named `key`. Plain
    functions are accepted wherever a stage is, so this is needed only to call one by
    itself with the convention of a layer.

    **Arguments:**

    - `fn`: any callable.

    **Returns:** a stage that calls `fn`; `fn` itself if it is one of ours.

    **Raises:** `TypeError` if `fn` cannot be called, or is a class.

    !!! example

        >>> import eqx_pipe as ep, jax.numpy as jnp, jax.random as jr
        >>> ep.lift(jnp.negative)(1.0, key=jr.key(0)).item()
        -1.0
    """
    check_callable("lift", "fn", fn)
    return fn if isinstance(fn, Stage) else Lift(fn)


def as_stage(function: str, argument: str, value: Any) -> Any:
    """`value` as a child of a composite: modules stay, functions are lifted.

    `function` and `argument` say where the value came from, for the error message.
    """
    check_callable(function, argument, value)
    return value if isinstance(value, eqx.Module) else Lift(value)


def is_stateful(stage: Any) -> bool:
    """Whether a stage takes and returns an `equinox.nn.State`."""
    return isinstance(stage, eqx.nn.StatefulLayer) and stage.is_stateful()


@dataclasses.dataclass(frozen=True)
class Scope:
    """What a composite hands down to a child besides its input and state.

    `key` is the composite's own key; a child draws from it folded with the child's
    name or position. `record` collects outputs by path for `outputs`; it is `None`
    wherever nobody asked, or where values cannot leave a traced branch.
    """

    key: Key | None
    path: str = ""
    record: dict[str, PyTree] | None = None

    def child(self, segment: Segment, index: Any = None) -> "Scope":
        """The scope of the child named, or positioned at, `segment`.

        `index` is folded into the key instead of `segment` where one traced call
        stands for many (`repeat`, `batched`).
        """
        path = f"{self.path}.{segment}" if self.path else str(segment)
        key = fold(self.key, segment if index is None else index)
        return Scope(key, path, self.record)

    def silent(self) -> "Scope":
        """The same scope without a record."""
        return dataclasses.replace(self, record=None)


def fold(key: Key | None, segment: Any) -> Key | None:
    """The key of a child: `fold_in` of its position, or of its name's CRC-32."""
    if key is None:
        return None
    if isinstance(segment, str):
        return jr.fold_in(key, np.uint32(zlib.crc32(segment.encode())))
    return jr.fold_in(key, segment)


class Composite(Stage):
    """What our combinators share: they know their children and thread state and keys.

    A combinator declares its fields, and defines `children` and `run`; `run` calls
    children by `enter` only.
    """

    @abc.abstractmethod
    def children(self) -> Mapping[str, Any]:
        """The children by their path below this stage, in order."""

    @abc.abstractmethod
    def run(
        self, x: PyTree, state: eqx.nn.State | None, scope: Scope
    ) -> tuple[PyTree, eqx.nn.State | None]:
        """Maps input and state to output and state."""

    def settings(self) -> dict[str, Any]:
        """What besides the children describes this stage; JSON-serialisable."""
        return {}

    def is_stateful(self) -> bool:
        """Whether any child takes and returns an `equinox.nn.State`."""
        return any(is_stateful(child) for child in self.children().values())

    def __call__(
        self, x: PyTree, state: eqx.nn.State | None = None, *, key: Key | None = None
    ) -> Any:
        """Runs the stage.

        **Arguments:**

        - `x`: the input, a pytree.
        - `state`: an `equinox.nn.State`, needed if some stage inside is stateful.
        - `key`: a PRNG key, needed if some stage inside is random. (Keyword only.)

        **Returns:** the output, or `(output, state)` when `state` was given.
        """
        name = type(self).__name__.lower()
        check_key(name, key)
        check_state(name, self, state)
        try:
            y, new_state = self.run(x, state, Scope(key))
        except KeyError as error:
            check_state_belongs(name, self, state, error)
            raise
        return y if state is None else (y, new_state)


def check_state(function: str, stage: Any, state: Any) -> None:
    """Raises unless `state` is a `State`, or is absent and not needed."""
    if state is None and is_stateful(stage):
        raise ValueError(
            message(
                function,
                "a stage inside is stateful, and no state was given.",
                "Build the pipeline by `pipe, state = equinox.nn.make_with_state(...)"
                "(...)` and call `y, state = pipe(x, state)`.",
            )
        )
    if state is not None and not isinstance(state, eqx.nn.State):
        raise TypeError(
            message(
                function,
                f"the second argument, `state`, is a `{type(state).__name__}`.",
                "Give an `equinox.nn.State`. A stage takes one input; several values "
                "go in as one tuple or dict. Keys are passed as `key=`.",
            )
        )


def check_state_belongs(
    function: str, stage: Any, state: eqx.nn.State | None, error: KeyError
) -> None:
    """Raises if what failed was that the state was made with another pipeline."""
    indices = jtu.tree_leaves(stage, is_leaf=_is_state_index)
    for index in filter(_is_state_index, indices):
        if state is not None and error.args == (index.marker,):
            raise ValueError(
                message(
                    function,
                    "the state holds nothing for a stateful stage inside (state "
                    f"`{index.marker}`): it was made with another pipeline.",
                    "Give the state that `equinox.nn.make_with_state` made together "
                    "with this pipeline.",
                )
            ) from error


def _is_state_index(leaf: Any) -> bool:
    return isinstance(leaf, eqx.nn.StateIndex)


def enter(
    scope: Scope,
    segment: Segment,
    stage: Any,
    *args: PyTree,
    state: eqx.nn.State | None,
    index: Any = None,
) -> tuple[PyTree, eqx.nn.State | None]:
    """Calls one child with its own key, records its output, locates its errors.

    `index` is that of `Scope.child`.
    """
    inner = scope.child(segment, index)
    # `State.set` invalidates the old state, so a retry needs a copy made beforehand.
    spare = copy_state(state) if inner.key is None and is_stateful(stage) else state
    try:
        y, new_state = call(stage, args, state, inner)
    except Exception as error:
        if inner.key is None and _wants_key(error, stage, args, spare, inner):
            raise MissingKeyError(str(segment)) from error
        locate(error, str(segment))
        raise
    if inner.record is not None:
        inner.record[inner.path] = y
    return y, new_state


def copy_state(state: eqx.nn.State | None) -> eqx.nn.State | None:
    """A state of the same values that stays valid when the first is updated."""
    leaves, structure = jtu.tree_flatten(state)
    return jtu.tree_unflatten(structure, leaves)


def call(
    stage: Any, args: tuple[PyTree, ...], state: eqx.nn.State | None, inner: Scope
) -> tuple[PyTree, eqx.nn.State | None]:
    """Calls a stage by its own convention, with the key of `inner` as it is."""
    if isinstance(stage, Composite):
        (x,) = args
        return stage.run(x, state, inner)
    keyword = {"key": inner.key} if _takes_key(stage) else {}
    if is_stateful(stage):
        return stage(*args, state, **keyword)
    return stage(*args, **keyword), state


def _wants_key(
    error: Exception,
    stage: Any,
    args: tuple[PyTree, ...],
    state: eqx.nn.State | None,
    inner: Scope,
) -> bool:
    """Whether a call that failed without a key would have worked with one.

    Messages differ from layer to layer, so the call is tried again, abstractly.
    """
    known = isinstance(error, MissingKeyError) or isinstance(stage, Composite)
    if known or not _takes_key(stage):
        return False
    retry = Scope(jr.key(0), inner.path)
    try:
        jax.eval_shape(lambda: call(stage, args, state, retry)[0])
    except Exception:
        return False
    return True


def _takes_key(stage: Any) -> bool:
    """Whether a module accepts `key=`. Modules without it are called without."""
    accepts = _type_takes_key(type(stage))
    if accepts is None:  # a wrapper such as `filter_jit(f)`, which knows its `f`
        return "key" in _parameters(stage)
    return accepts


@ft.cache
def _type_takes_key(cls: type) -> bool | None:
    parameters = _parameters(cls.__call__)
    if "key" in parameters:
        return True
    wraps = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return None if wraps else False


def _parameters(fn: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(fn).parameters
    except (TypeError, ValueError):  # some builtins have no signature
        return {}
