"""Names for the annotations that the package shares."""

from collections.abc import Callable
from typing import Any, TypeAlias

from jaxtyping import PRNGKeyArray

Key: TypeAlias = PRNGKeyArray
"""A PRNG key, new-style (`jax.random.key`) or raw (`jax.random.PRNGKey`)."""

Segment: TypeAlias = str | int
"""One part of a stage path: a name or a position."""

StageLike: TypeAlias = Callable[..., Any]
"""Whatever is accepted where a stage is: a module or a plain function."""
