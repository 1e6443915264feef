"""A strategy for pipelines: every combinator, nested."""

import hypothesis.strategies as st

from ..._types import PyTree, StageLike
from .drawing import Drawing
from .kinds import draw_pipeline
from .validate import (
    Draw,
    check_bool,
    check_int,
    check_strategy,
    check_struct,
    composite,
)


@composite
def pipelines(
    draw: Draw,
    struct: PyTree,
    *,
    max_depth: int = 3,
    random: bool = True,
    branches: bool = True,
    leaves: st.SearchStrategy[StageLike] | None = None,
) -> StageLike:
    """A pipeline whose output is like its input, with every combinator in it.

    **Arguments:**

    - `struct`: the shapes and dtypes of the input: a pytree of
      `jax.ShapeDtypeStruct`, or of arrays.
    - `max_depth`: how deep pipelines stand in pipelines; 0 for a single stage. One
      child of each goes all the way down, its siblings less far. (Keyword only.)
    - `random`: whether stages that need a key are among them. (Keyword only.)
    - `branches`: whether `cond`, `switch` and `gated` are. (Keyword only.)
    - `leaves`: a strategy for the single stages; they must keep `struct` and any part
      of it. By default `stages`, with your own (`register_stage`). (Keyword only.)

    **Returns:** a strategy. It shrinks to one single stage.

    **Raises:** `hypothesis.errors.InvalidArgument`, a `TypeError`, if `struct` has a
    leaf without shape and dtype, `max_depth` is below 0, or `leaves` no strategy.

    !!! example

        >>> import eqx_pipe.testing as ept, hypothesis, hypothesis.strategies as st
        >>> import jax.numpy as jnp, jax.random as jr
        >>> x = jnp.arange(3.0)
        >>> few = hypothesis.settings(max_examples=3, deadline=None)
        >>> @few
        ... @hypothesis.given(ept.pipelines(x, max_depth=1), ept.keys())
        ... def test_jit(pipe, key):
        ...     ept.check_function(pipe, x, key=key, only=("jit",))
        >>> test_jit()
    """
    struct = check_struct("pipelines", struct)
    check_int("pipelines", "max_depth", max_depth, 0)
    check_bool("pipelines", "random", random)
    check_bool("pipelines", "branches", branches)
    check_strategy("pipelines", "leaves", leaves)
    drawing = Drawing(draw, draw_pipeline, struct, max_depth, random, branches, leaves)
    return draw_pipeline(drawing)
