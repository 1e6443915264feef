"""Stages: callables with the convention of Equinox's layers."""

import abc
from typing import TYPE_CHECKING, TypeGuard

import equinox as eqx
import jax.tree_util as jtu

from .._keys import key_argument
from .._types import AnyStage, Key, PyTree, StageLike

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
