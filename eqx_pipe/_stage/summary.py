"""A description of a pipeline: its stages, settings, parameters and outputs."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax.random as jr

from .._check import check_callable
from .._tree import as_arrays, tree_text
from .._types import MaybeState, PyTree, StageLike
from .as_stage import as_module
from .composite import call
from .scope import Record, Scope
from .stage import check_state
from .text import Row, row_lines, row_of


@dataclasses.dataclass(frozen=True)
class Summary:
    """A description of the stages of a pipeline; `str()` has a line for each.

    `row` describes the whole pipeline; its `children` describe the stages inside.
    """

    row: Row

    @property
    def rows(self) -> tuple[Row, ...]:
        """All rows in order, beginning with that of the whole pipeline."""
        return tuple(_flat(self.row))

    def __str__(self) -> str:
        shown = any(row.output for row in self.rows)
        return "\n".join(row_lines(self.row, outputs=shown))

    __repr__ = __str__


def _flat(row: Row) -> Iterator[Row]:
    yield row
    for child in row.children:
        yield from _flat(child)


def summary(
    pipe: StageLike, x: PyTree | None = None, *, state: eqx.nn.State | None = None
) -> Summary:
    """Summarize a pipeline stage by stage: its settings, outputs and parameters.

    With an input, outputs are traced for its shapes; nothing is computed, and no key is
    needed. Of the equal stages of a `repeat` or `ensemble` only the first is shown; the
    row of the whole counts the parameters of all. Outputs inside a `scan` or `batched`
    have a leading axis of steps or examples.

    **Arguments:**

    - `pipe`: any stage.
    - `x`: an input, of arrays or `jax.ShapeDtypeStruct`s.
    - `state`: the state of a stateful pipeline, as `equinox.nn.make_with_state` returns
        it, needed only with `x`. (Keyword only.)

    **Returns:** a summary, with a line for each stage. Its `.rows` have `.path`,
    `.stage`, `.settings` (those that differ from their defaults), `.arrays`,
    `.parameters` (the number of scalars that gradients reach), `.stateful`, `.output`
    and `.children`. A `?` is an unknown output, inside a branch of `cond`, `switch` or
    `gated`.

    **Raises:**

    - `TypeError` if `pipe` is not a stage.
    - `ValueError` if `state` is missing, and the errors that the pipeline raises for
      `x`.

    !!! example

        >>> import equinox as eqx, eqx_pipe as ep, jax.numpy as jnp, jax.random as jr
        >>> head = eqx.nn.Linear(3, 2, key=jr.key(0), use_bias=False)
        >>> pipe = ep.chain(head=head, act=jnp.tanh)
        >>> print(ep.summary(pipe, jnp.ones(3)))
        chain -> float32[2]  # 6 parameters
          head: Linear(weight float32[2,3]) -> float32[2]  # 6 parameters
          act: tanh -> float32[2]
        >>> ep.summary(pipe).row.children[0].arrays
        {'weight': 'float32[2,3]'}
    """
    check_callable("summary", "pipe", pipe)
    whole = as_module(pipe)
    values = {} if x is None else output_shapes("summary", whole, x, state)
    return Summary(row_of(whole, {path: tree_text(y) for path, y in values.items()}))


def output_shapes(
    function: str, pipe: Any, x: PyTree, state: MaybeState
) -> dict[str, PyTree]:
    """Return the shapes of all outputs by path; the whole has the path `""`."""
    shown = {row.path for row in _flat(row_of(pipe, {}))}
    check_state(function, pipe, state)

    def run(pipe: Any, x: PyTree, state: MaybeState) -> dict[str, PyTree]:
        # Not all paths: only one stage of a `repeat` is shown.
        record = Record(shown.__contains__)
        y, _ = call(pipe, (x,), state, Scope(jr.key(0), record=record))
        return {**record.values, "": y}

    return eqx.filter_eval_shape(run, pipe, as_arrays(x), state)
