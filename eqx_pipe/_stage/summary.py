"""A pipeline as a table: its stages, settings, parameters and outputs."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax.random as jr

from .._check import check_callable
from .._errors import value_error
from .._tree import as_arrays, tree_text
from .._types import MaybeState, PyTree, StageLike
from .as_stage import as_module
from .composite import call
from .scope import Record, Scope
from .stage import is_stateful
from .text import Row, row_of


@dataclasses.dataclass(frozen=True)
class Summary:
    """A table of the stages of a pipeline; `str()` is its text.

    `row` is the row of the whole pipeline; its `children` are the rows of the stages
    inside.
    """

    row: Row

    @property
    def rows(self) -> tuple[Row, ...]:
        """All rows in order, beginning with that of the whole pipeline."""
        return tuple(_flat(self.row))

    def to_dict(self) -> dict[str, Any]:
        """Return the rows as plain data, nested as the stages are.

        The data are the same in every process, do not depend on the values of
        parameters, and can be written by `json.dumps`.
        """
        return dataclasses.asdict(self.row)

    def __str__(self) -> str:
        shown = any(row.output for row in self.rows)
        columns = [0, 1, 2, 3] if shown else [0, 1, 3]
        names = ("path", "stage", "output", "parameters")
        whole, *rest = map(_cells, self.rows)
        cells = [[row[i] for i in columns] for row in (names, *rest, whole)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [_line(row, widths) for row in cells]
        rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
        *above, last = lines
        return "\n".join([above[0], rule, *above[1:], *([rule] if rest else []), last])

    __repr__ = __str__


def _flat(row: Row) -> Iterator[Row]:
    yield row
    for child in row.children:
        yield from _flat(child)


def _cells(row: Row) -> tuple[str, ...]:
    output = "?" if row.output is None else row.output
    return row.path or "(all)", row.head, output, f"{row.parameters:,}"


def _line(cells: list[str], widths: list[int]) -> str:
    *texts, count = [c.ljust(w) for c, w in zip(cells, widths, strict=True)]
    return "  ".join([*texts, count.strip().rjust(widths[-1])]).rstrip()


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

    **Returns:** a table, whose text is `str(summary)`. Its `.rows` have `.path`,
    `.stage`, `.settings` (those that differ from their defaults), `.arrays`,
    `.parameters` (the number of scalars that gradients reach), `.stateful` and
    `.output`; `.to_dict()` returns all of it as plain data. A `?` is an unknown output,
    inside a branch of `cond`, `switch` or `gated`.

    **Raises:**

    - `TypeError` if `pipe` is not a stage.
    - `ValueError` if `state` is missing, and the errors that the pipeline raises for
      `x`.

    !!! example

        >>> import equinox as eqx, eqx_pipe as ep, jax.numpy as jnp, jax.random as jr
        >>> pipe = ep.chain(head=eqx.nn.Linear(3, 2, key=jr.key(0)), act=jnp.tanh)
        >>> print(ep.summary(pipe, jnp.ones(3)))
        path   stage   output      parameters
        -------------------------------------
        head   Linear  float32[2]           8
        act    tanh    float32[2]           0
        -------------------------------------
        (all)  chain   float32[2]           8
        >>> ep.summary(pipe).to_dict()["children"][0]["arrays"]
        {'weight': 'float32[2,3]', 'bias': 'float32[2]'}
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
    if state is None and is_stateful(pipe):
        pipe, state = _with_state(function, pipe)

    def run(pipe: Any, x: PyTree, state: MaybeState) -> dict[str, PyTree]:
        # Not all paths: only one stage of a `repeat` is shown.
        record = Record(shown.__contains__)
        y, _ = call(pipe, (x,), state, Scope(jr.key(0), record=record))
        return {**record.values, "": y}

    return eqx.filter_eval_shape(run, pipe, as_arrays(x), state)


def _with_state(function: str, pipe: Any) -> tuple[Any, eqx.nn.State]:
    try:
        return eqx.nn.make_with_state(lambda: pipe)()
    except ValueError:  # `make_with_state` has already been applied
        raise value_error(
            function,
            "a stage of the pipeline is stateful, but got no state.",
            f"Pass its state: `{function}(pipe, x, state=state)`.",
        ) from None
