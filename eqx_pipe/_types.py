"""Shared types for annotations."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import equinox as eqx
import jax.extend.core
from jaxtyping import PRNGKeyArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from pandas import DataFrame as DataFrame
    from typing_extensions import TypeAliasType, TypeVar
    from xarray import Dataset as Dataset

    class _Untyped:
        """A class with attributes that type checkers do not know."""

        def __getattr__(self, name: str) -> Any: ...

    class ClosedJaxpr(_Untyped):
        """Typed differently in different versions of JAX."""

    # JAX declares this as a variable, which type checkers do not accept as a type.
    class Device(_Untyped): ...

    class PyTreeDef(_Untyped): ...

    # jaxtyping leaves `PyTree` undefined for type checkers, which then report every
    # stage as unknown. This alias takes a parameter, as at run time, and accepts
    # everything.
    PyTree = TypeAliasType("PyTree", Any, type_params=(TypeVar("T", default=Any),))

    class AnyStage(eqx.Module):
        """A stage inside another stage: callable, with the attributes of its class."""

        def __call__(self, *args: PyTree, key: "Key | None" = None) -> PyTree: ...
        def __getattr__(self, name: str) -> Any: ...
        def __getitem__(self, item: Any) -> Any: ...
else:
    from jax import Device as Device
    from jax.tree_util import PyTreeDef as PyTreeDef
    from jaxtyping import PyTree as PyTree

    AnyStage = Callable[..., Any]

    # Optional packages, which are imported where they are used.
    Axes = DataFrame = Dataset = Any

    # JAX 0.12 has one class for both, and still has the second name.
    ClosedJaxpr = getattr(jax.extend.core, "ClosedJaxpr", jax.extend.core.Jaxpr)

Key: TypeAlias = PRNGKeyArray
"""A PRNG key, new-style (`jax.random.key`) or raw (`jax.random.PRNGKey`)."""

AnyJaxpr: TypeAlias = ClosedJaxpr | jax.extend.core.Jaxpr
"""A jaxpr, closed or open."""

Segment: TypeAlias = str | int
"""One segment of a stage's path: a name or a position."""

StageLike: TypeAlias = Callable[..., Any]
"""Anything accepted as a stage: a module or a plain function."""

MaybeState: TypeAlias = eqx.nn.State | None
"""The state of a pipeline; `None` if no stage is stateful."""

Output: TypeAlias = tuple[PyTree, MaybeState]
"""The output of a stage, and the state after it."""
