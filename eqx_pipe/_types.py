"""Names for the annotations that the package shares."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import equinox as eqx
import jax.extend.core
from jaxtyping import PRNGKeyArray

if TYPE_CHECKING:
    from typing_extensions import TypeAliasType, TypeVar

    class _Untyped:
        """A class with more attributes than type checkers know."""

        def __getattr__(self, name: str) -> Any: ...

    class ClosedJaxpr(_Untyped):
        """Typed differently from one version of JAX to the next."""

    # JAX declares these as variables, which type checkers do not accept as types.
    class Device(_Untyped): ...

    class PyTreeDef(_Untyped): ...

    # jaxtyping leaves `PyTree` undefined for type checkers, which then report every
    # stage as unknown. This takes a parameter, as at run time, and admits everything.
    PyTree = TypeAliasType("PyTree", Any, type_params=(TypeVar("T", default=Any),))

    class AnyStage(eqx.Module):
        """A stage inside of another: callable, with the attributes of its class."""

        def __call__(self, *args: PyTree, key: "Key | None" = None) -> PyTree: ...
        def __getattr__(self, name: str) -> Any: ...
        def __getitem__(self, item: Any) -> Any: ...
else:
    from jax import Device as Device
    from jax.tree_util import PyTreeDef as PyTreeDef
    from jaxtyping import PyTree as PyTree

    AnyStage = Callable[..., Any]

    # JAX 0.12 has one class for both, and keeps the second name for now.
    ClosedJaxpr = getattr(jax.extend.core, "ClosedJaxpr", jax.extend.core.Jaxpr)

Key: TypeAlias = PRNGKeyArray
"""A PRNG key, new-style (`jax.random.key`) or raw (`jax.random.PRNGKey`)."""

Segment: TypeAlias = str | int
"""One part of a stage path: a name or a position."""

StageLike: TypeAlias = Callable[..., Any]
"""Anything accepted as a stage: a module or a plain function."""

ProgressLike: TypeAlias = bool | str | tuple[str, Literal["min", "max"]] | None
"""The progress that is shown, and the output whose best value it shows."""

MaybeState: TypeAlias = eqx.nn.State | None
"""The state that goes through a pipeline; `None` if nothing in it is stateful."""

Output: TypeAlias = tuple[PyTree, MaybeState]
"""The output of a stage, and the state after it."""
