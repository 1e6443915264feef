"""The stage: what may be composed, and the one place that knows how one is called."""

import abc
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax.tree_util as jtu

from ._check import check_callable, check_key
from ._errors import (
    MissingKeyError,
    asks_for_key,
    describe_value,
    is_located,
    locate,
    message,
)
from ._hidden import check_nothing_hidden
from ._hints import add_hint, no_attribute
from ._keys import key_argument, key_of, say_if_no_key, takes_key
from ._scope import Scope as Scope
from ._signature import why_not
from ._tree import join_path
from ._types import Key, PyTree, Segment, StageLike

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
        return self.fn(*args, **key_argument(self.fn, key))


def lift(fn: StageLike) -> Any:
    """Makes a plain function a stage.

    The key is passed on only to a function that has a parameter named `key`, after its
    inputs; not if a `functools.partial` has given one already, and `None` not in place
    of a default. Plain functions are accepted wherever a stage is, so this is needed
    only to call one by itself with the convention of a layer.

    **Arguments:**

    - `fn`: any callable.

    **Returns:** a stage that calls `fn`; `fn` itself if it is a layer already.

    **Raises:** `TypeError` if `fn` cannot be called, or is a class.

    !!! example

        >>> import eqx_pipe as ep, jax.numpy as jnp, jax.random as jr
        >>> ep.lift(jnp.negative)(1.0, key=jr.key(0)).item()
        -1.0
    """
    check_callable("lift", "fn", fn)
    check_nothing_hidden("lift", "fn", fn)
    is_layer = is_stateful(fn) or isinstance(fn, eqx.Module) and takes_key(fn)
    return fn if is_layer else Lift(fn)  # pyright: ignore


def as_stage(function: str, argument: str, value: Any) -> Any:
    """`value` as a child that gets one input: modules stay, functions are lifted.

    `function` and `argument` say where the value came from, for the error message.
    """
    check_callable(function, argument, value)
    check_nothing_hidden(function, argument, value)
    wrong = misfit(value, 1)
    if wrong:
        single = "a Module" if isinstance(value, eqx.Module) else "a function"
        error = TypeError(
            message(
                function,
                f"`{argument}` is given one input, and {wrong}.",
                "A stage takes one input, and perhaps `key=`. Make one of several "
                f"inputs a node of `eqx_pipe.graph`, or call it in {single} of one "
                "input, which may be a tuple.",
            )
        )
        _say_if_not_layer(value, error)
        raise error
    return lifted(value)


def lifted(value: StageLike) -> Any:
    """Modules as they are, and functions as modules."""
    return value if isinstance(value, eqx.Module) else Lift(value)


def misfit(stage: Any, num_inputs: int) -> str | None:
    """Why a stage cannot be called with so many inputs; `None` if it can be."""
    if not isinstance(stage, eqx.Module):
        return why_not(stage, num_inputs)
    if isinstance(stage, Composite):
        return None if num_inputs == 1 else "a pipeline takes one"
    if isinstance(stage, Lift):
        return why_not(stage.fn, num_inputs)
    return why_not(stage, num_inputs + is_stateful(stage))


def is_stateful(stage: Any) -> bool:
    """Whether a stage takes and returns an `equinox.nn.State`."""
    return isinstance(stage, eqx.nn.StatefulLayer) and stage.is_stateful()


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

    def __bool__(self) -> bool:
        return True  # a pipeline without stages is a program too

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(no_attribute(self, name))

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
        path = _stateful_path(stage)
        raise ValueError(
            message(
                function,
                f"stage `{path}` is stateful, and no state was given."
                if path
                else "it is stateful, and no state was given.",
                "Build the pipeline by `pipe, state = equinox.nn.make_with_state(...)"
                "(...)` and call `y, state = pipe(x, state)`.",
            )
        )
    if state is not None and not isinstance(state, eqx.nn.State):
        raise TypeError(
            message(
                function,
                f"the second argument, `state`, is {describe_value(state)}.",
                "Give an `equinox.nn.State`. A stage takes one input; several values "
                "go in as one tuple or dict. Keys are passed as `key=`.",
            )
        )


def _stateful_path(stage: Any) -> str:
    """The path of the first stateful stage that has no stateful child."""
    if isinstance(stage, Composite):
        for path, child in stage.children().items():
            if is_stateful(child):
                inner = _stateful_path(child)
                return f"{path}.{inner}" if inner else path
    return ""


def check_state_belongs(
    function: str, stage: Any, state: eqx.nn.State | None, error: KeyError
) -> None:
    """Raises if what failed was that the state was made with another pipeline."""
    marker = error.args[0] if len(error.args) == 1 else None
    if state is None or not any(index.marker is marker for index in _indices(stage)):
        return
    path, holder = _holder("", stage, marker)
    place = f"`{path}` (`{type(holder).__name__}`)" if path else "a stage inside"
    raise ValueError(
        message(
            function,
            f"the state holds nothing for {place}: it was made with another pipeline, "
            "or before this one was changed.",
            "Give the state that `equinox.nn.make_with_state` made together with this "
            "pipeline.",
        )
    ) from error


def _holder(path: str, stage: Any, marker: Any) -> tuple[str, Any]:
    """The innermost stage that holds the state of that marker, and its path."""
    if isinstance(stage, Composite):
        for segment, child in stage.children().items():
            if any(index.marker is marker for index in _indices(child)):
                return _holder(join_path(path, segment), child, marker)
    return path, stage


def _indices(stage: Any) -> list[eqx.nn.StateIndex]:
    """Where the state of a stage is kept."""
    leaves = jtu.tree_leaves(stage, is_leaf=_is_state_index)
    return list(filter(_is_state_index, leaves))


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
    try:
        y, new_state = call(stage, args, state, inner)
    except Exception as error:
        if inner.key is None and wants_key(error, stage):
            raise MissingKeyError(str(segment)) from error
        if not is_located(error):
            add_hint(error, args)
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
    keyword = key_of(stage, inner.key)
    if not is_stateful(stage):
        try:
            return stage(*args, **keyword), state
        except TypeError as error:
            _say_if_not_layer(stage, error)
            say_if_no_key(stage, keyword, error)
            raise
    result = stage(*args, state, **keyword)
    pair = isinstance(result, tuple) and len(result) == 2
    if not pair or not isinstance(result[1], eqx.nn.State):
        raise TypeError(
            f"`{type(stage).__name__}` is stateful, and returned "
            f"{describe_value(result)}, not a pair of output and state. Return `(y, "
            "state)` from its `__call__(x, state, *, key=None)`."
        )
    return result


def _say_if_not_layer(stage: Any, error: Exception) -> None:
    """A note on `error` if `stage` holds state and its type does not say so."""
    if isinstance(stage, eqx.nn.StatefulLayer) or not isinstance(stage, eqx.Module):
        return
    if _indices(stage):
        name = type(stage).__name__
        error.add_note(
            f"`{name}` holds an `equinox.nn.StateIndex`, and is given no state: derive "
            "it from `equinox.nn.StatefulLayer`, so that it is called as a stage with "
            "state."
        )


def wants_key(error: Exception, stage: Any) -> bool:
    """Whether a call of `stage` with `key=None` failed for want of a key.

    An error that comes out of another pipeline was judged there.
    """
    if isinstance(error, MissingKeyError) or is_located(error):
        return False
    takes = takes_key(stage)
    if isinstance(stage, Lift):
        takes = bool(key_argument(stage.fn, None))
    return takes and asks_for_key(error)
