"""What a stage is: any callable with the convention of Equinox's layers."""

import abc
from typing import TYPE_CHECKING

import equinox as eqx
import jax.tree_util as jtu

from .._keys import key_argument
from .._types import Key, PyTree, StageLike

if TYPE_CHECKING:
    # Type checkers take `__call__`, which `StatefulLayer` declares, for a field.
    _Layer = eqx.Module
else:
    # `equinox.nn.Sequential` hands state to layers of this class only.
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


identity: Identity = Identity()
"""The stage that returns its input."""


class Lift(Stage):
    """A plain function as a stage; see `lift`."""

    fn: StageLike

    def __call__(
        self, *args: PyTree, key: Key | None = None, **named: PyTree
    ) -> PyTree:
        return self.fn(*args, **named, **key_argument(self.fn, key))


def is_stateful(stage: PyTree) -> bool:
    """Whether a stage takes and returns an `equinox.nn.State`."""
    return isinstance(stage, eqx.nn.StatefulLayer) and stage.is_stateful()


def state_indices(stage: PyTree) -> list[eqx.nn.StateIndex]:
    """The markers by which the state of a stage is found."""
    leaves = jtu.tree_leaves(stage, is_leaf=is_state_index)
    return list(filter(is_state_index, leaves))


def is_state_index(leaf: object) -> bool:
    """Whether a leaf is the marker of a state."""
    return isinstance(leaf, eqx.nn.StateIndex)
