"""A stage whose arrays are constants instead of parameters."""

import inspect

import equinox as eqx
import jax
import jax.tree_util as jtu
from jax.core import Tracer

from .._captured import Fixed, has_function
from .._check import check_callable
from .._stage import Stage, call_layer, is_stateful
from .._types import AnyStage, Key, PyTree, StageLike


class Frozen(Stage):
    """A stage without parameters; see `frozen`."""

    # The stage with its arrays and functions wrapped in leaves that are not arrays. The
    # rest stays visible to `make_with_state` and `inference_mode`.
    fixed: PyTree

    @property
    def stage(self) -> AnyStage:
        """The stage that was frozen, with its parameters."""
        return jtu.tree_map(_thaw, self.fixed)

    def is_stateful(self) -> bool:
        """Return whether the frozen stage takes and returns an `equinox.nn.State`."""
        return is_stateful(self.stage)  # a tied stage calls its functions to find out

    @property
    def __signature__(self) -> inspect.Signature:  # how many inputs it takes
        signature = inspect.signature(self.stage)
        key = inspect.signature(self.__call__).parameters["key"]
        parameters = dict(signature.parameters) | {"key": key}
        return signature.replace(
            parameters=sorted(parameters.values(), key=lambda p: p.kind)
        )

    def __call__(
        self, *args: PyTree, key: Key | None = None, **named: PyTree
    ) -> PyTree:
        return call_layer(self.stage, args, named, key)


def _is_whole(node: object) -> bool:
    # State indices stay visible to `make_with_state`; a wrapped function is hidden with
    # everything that it holds.
    return isinstance(node, eqx.nn.StateIndex) or has_function(node)


def _fix(leaf: PyTree) -> PyTree:
    if not callable(leaf) and not eqx.is_inexact_array(leaf):
        return leaf
    if any(isinstance(x, Tracer) for x in jtu.tree_leaves(leaf)):
        # A stage frozen inside a gradient with respect to it is a constant there too.
        leaf = jtu.tree_map(_still, leaf)
    return Fixed(leaf)


def _still(leaf: object) -> object:
    return jax.lax.stop_gradient(leaf) if eqx.is_inexact_array(leaf) else leaf


def _thaw(leaf: object) -> object:
    return leaf.value if isinstance(leaf, Fixed) else leaf


def frozen(stage: StageLike) -> Frozen:
    """Make the parameters of a stage constant.

    The parameters are no longer array leaves of the pytree, so gradients with respect
    to the pipeline, optimisers (weight decay too) and saved files do not include them;
    gradients with respect to the input pass through. Use it for a function that closes
    over a model that should not be trained: other combinators reject such a function.

    Like everything that a function closes over, the arrays become constants of a
    compiled program. State and settings, such as those that `equinox.nn.inference_mode`
    changes, are not frozen.

    **Arguments:**

    - `stage`: a layer, a pipeline, or a function that closes over one.

    **Returns:** a stage with the same output for the same key. Its `.stage` is the
    original stage, with its parameters.

    **Raises:** `TypeError` if `stage` is not a stage.

    !!! example

        >>> import equinox as eqx, eqx_pipe as ep, jax, jax.random as jr
        >>> teacher, head = (eqx.nn.Linear(3, 3, key=jr.key(i)) for i in range(2))
        >>> pipe = ep.chain(ep.frozen(teacher), head)
        >>> ep.summary(pipe).row.parameters
        12
        >>> twice = ep.frozen(lambda x: 2 * teacher(x))
        >>> ep.summary(ep.chain(twice)).row.parameters
        0
    """
    check_callable("frozen", "stage", stage)
    return Frozen(jtu.tree_map(_fix, stage, is_leaf=_is_whole))
