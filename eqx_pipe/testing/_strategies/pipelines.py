"""A strategy for nested pipelines of every combinator."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import hypothesis.strategies as st

from ..._errors import describe_value
from ..._types import PyTree, StageLike
from .kinds import makers
from .leaves import Own, leaves
from .validate import (
    Draw,
    check_int,
    check_struct,
    composite,
    invalid,
)


@dataclasses.dataclass
class Drawing:
    """A struct and a depth for which pipelines are drawn."""

    draw: Draw
    struct: PyTree
    depth: int
    random: bool
    branches: bool
    own: Sequence[Own] = ()
    is_first: bool = True

    def one_of(self, *values: Any) -> Any:
        """Draw one of some values."""
        return self.draw(st.sampled_from(values))

    def pipeline(self) -> StageLike:
        """Draw a stage or a combinator."""
        kinds: dict[str, Callable[[Drawing], StageLike] | None] = {"leaf": None}
        kinds |= makers(self) if self.depth else {}
        # One maker is built at a time: the `repr` of a `one_of` of all would be huge.
        make = kinds[self.one_of(*kinds)]
        if make is not None:
            return make(self)
        return self.draw(self.one_of(*leaves(self.struct, self.random, self.own)))

    def inner(self, part: PyTree = None) -> StageLike:
        """Draw a pipeline one level deeper, for this struct or for another one."""
        # Only the first child has the full depth: otherwise sizes grow exponentially.
        depth = self.depth - 1 if self.is_first else max(0, min(1, self.depth - 2))
        self.is_first = False
        struct = self.struct if part is None else part
        return dataclasses.replace(
            self, struct=struct, depth=depth, is_first=True
        ).pipeline()

    def few(self) -> list[StageLike]:
        """Draw one or two pipelines one level deeper."""
        return [self.inner() for _ in range(self.draw(st.integers(1, 2)))]


@composite
def pipelines(
    draw: Draw,
    struct: PyTree,
    *,
    stages: Sequence[Own] = (),
    max_depth: int = 3,
    random: bool = True,
    branches: bool = True,
) -> StageLike:
    """Draw a pipeline of any combinators that keeps structure, shapes and dtypes.

    **Arguments:**

    - `struct`: the shapes and dtypes of the input: a pytree of
      `jax.ShapeDtypeStruct`, or of arrays.
    - `stages`: your own stages, which are drawn in addition: strategies of stages that
        keep the shapes and dtypes of any input, or functions from a struct to such a
        strategy for this struct, or to None. (Keyword only.)
    - `max_depth`: the largest depth of nested pipelines; 0 for a single stage. Only the
        first child of each has the full depth. (Keyword only.)
    - `random`: whether to draw stages that need a key. (Keyword only.)
    - `branches`: whether to draw `cond`, `switch` and `gated`. (Keyword only.)

    **Returns:** a strategy. Examples shrink to a single stage.

    **Raises:** `hypothesis.errors.InvalidArgument`, a `TypeError`, if `struct` has a
    leaf without shape and dtype, `max_depth` is below 0, or an entry of `stages` has
    another type.

    !!! example

        >>> import eqx_pipe.testing as ept, hypothesis, hypothesis.strategies as st
        >>> import jax.numpy as jnp
        >>> x = jnp.arange(3.0)
        >>> few = hypothesis.settings(max_examples=3, deadline=None)
        >>> own = st.sampled_from([jnp.square, jnp.negative])
        >>> @few
        ... @hypothesis.given(ept.pipelines(x, stages=[own], max_depth=1), ept.keys())
        ... def test_jit(pipe, key):
        ...     ept.check_function(pipe, x, key=key, only=("jit",))
        >>> test_jit()
    """
    struct = check_struct("pipelines", struct)
    check_int("pipelines", "max_depth", max_depth, 0)
    is_list = isinstance(stages, tuple | list)
    if not is_list or not all(callable(v) or _is_strategy(v) for v in stages):
        raise invalid(
            "pipelines",
            f"`stages` is {describe_value(stages)}.",
            "Give a list of strategies, or of functions from a struct to a strategy.",
        )
    return Drawing(draw, struct, max_depth, random, branches, stages).pipeline()


def _is_strategy(value: object) -> bool:
    return isinstance(value, st.SearchStrategy)
