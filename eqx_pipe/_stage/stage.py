"""Stages: callables with the convention of Equinox's layers, their checks and state."""

import abc
import functools as ft
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._check import check_callable, check_is
from .._errors import type_error, value_error
from .._keys import key_argument
from .._tree import join_path
from .._types import AnyStage, Key, MaybeState, PyTree, StageLike
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


def state_indices(stage: PyTree) -> list[eqx.nn.StateIndex]:
    """Return the state indices of a stage, by which a `State` finds its state."""
    leaves = jtu.tree_leaves(stage, is_leaf=is_state_index)
    return list(filter(is_state_index, leaves))


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
        raise value_error(
            function,
            f"{who} is stateful, but got no state.",
            "Build the pipeline by `pipe, state = equinox.nn.make_with_state(...)"
            "(...)` and call `y, state = pipe(x, state)`.",
        )
    cure = (
        "Give an `equinox.nn.State`. A stage takes one input; several values go in as "
        "one tuple or dict. Keys are passed as `key=`."
    )
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
    if state is not None and any(i.marker is marker for i in state_indices(stage)):
        raise value_error(
            function,
            "the state has no entry for a stage of this pipeline: it was made for "
            "another pipeline, or before this one changed.",
            "Pass the state that `equinox.nn.make_with_state` returned together with "
            "this pipeline.",
        ) from error


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


def as_stage(
    function: str,
    argument: str,
    value: object,
    cure: str = _ONE_INPUT,
    *,
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


def why_not(fn: Any, num_inputs: int, named: tuple[str, ...] = ()) -> str | None:
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
