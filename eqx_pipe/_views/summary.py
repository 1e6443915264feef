"""What flows through a pipeline, as a table: shapes, parameters, operations."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu

from .._check import check_callable
from .._jaxprs.flops import num_flops
from .._stage import Composite, Scope, as_module, call
from .._stage.text import num_parameters
from .._tree import as_arrays, tree_text
from .._types import PyTree, Segment, StageLike
from .describe import as_json, children_of, title_of
from .values import key_and_state


@dataclasses.dataclass(frozen=True)
class Row:
    """One stage of a summary.

    `output` is the text of what it gives; it and `flops` are `None` where they cannot
    be told.
    """

    path: str
    stage: str
    output: str | None
    parameters: int
    flops: int | None


@dataclasses.dataclass(frozen=True)
class Summary:
    """A table of the stages of a pipeline; the first row is that of the whole."""

    rows: tuple[Row, ...]

    def cells(self) -> list[tuple[str, ...]]:
        """The table as text: its head, then a line for each stage."""
        head = ("path", "stage", "output", "parameters", "flops")
        return [head] + [
            (
                row.path or "(all)",
                row.stage,
                "?" if row.output is None else row.output,
                f"{row.parameters:,}",
                "?" if row.flops is None else f"{row.flops:,}",
            )
            for row in self.rows
        ]

    def __str__(self) -> str:
        cells = self.cells()
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]

        def line(row: tuple[str, ...]) -> str:
            both = zip(row, widths, strict=True)
            text = [
                c.ljust(w) if i < 3 else c.rjust(w) for i, (c, w) in enumerate(both)
            ]
            return "  ".join(text).rstrip()

        rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
        head, whole, *rest = map(line, cells)
        return "\n".join([head, rule, *rest, *([rule] if rest else []), whole])

    __repr__ = __str__


class _Watching(Scope):
    """A scope that hands down its watch, into loops and branches too."""

    def child(self, segment: Segment, index: Any = None) -> "_Watching":
        inner = super().child(segment, index)
        return _Watching(inner.key, inner.path, inner.record, self.watch)


def summary(
    pipe: StageLike, x: PyTree, *, state: eqx.nn.State | None = None
) -> Summary:
    """Says of every stage what it gives, and how much it holds and computes.

    Everything is traced for the shapes of `x`, and nothing runs. Of a `repeat` the
    stages are alike, and the first is shown; the numbers inside of a `repeat`, `scan`
    or `batched` are those of one pass or example, and its own row tells of all.

    **Arguments:**

    - `pipe`: any stage.
    - `x`: an input, of arrays or `jax.ShapeDtypeStruct`s. No key is needed.
    - `state`: the state of a stateful pipeline that was made by
        `equinox.nn.make_with_state`. (Keyword only.)

    **Returns:** a table, whose text is `str(summary)`; notebooks show it as one. Its
    `.rows` have `.path`, `.stage`, `.output`, `.parameters` and `.flops`, that of the
    whole first. Floating-point operations are counted in the jaxpr: two for each
    multiplication and addition in products and convolutions, one for each number that
    another function gives; the most expensive of the branches counts, and a
    `while_loop` counts once.
    A `?` stands where a stage cannot be traced by itself, since it looks along an axis
    of `batched`.

    **Raises:**

    - `TypeError` if `pipe` is not a stage.
    - `ValueError` if a state is needed. What the pipeline raises for such an `x`.

    !!! example

        >>> import equinox as eqx, eqx_pipe as ep, jax.numpy as jnp, jax.random as jr
        >>> pipe = ep.chain(head=eqx.nn.Linear(3, 2, key=jr.key(0)), act=jnp.tanh)
        >>> print(ep.summary(pipe, jnp.ones(3)))
        path   stage   output      parameters  flops
        --------------------------------------------
        head   Linear  float32[2]           8     14
        act    tanh    float32[2]           0      2
        --------------------------------------------
        (all)  chain   float32[2]           8     16
    """
    check_callable("summary", "pipe", pipe)
    whole = as_module(pipe)
    whole, state, key = key_and_state("summary", whole, state)
    calls = {"": (whole, (as_arrays(x),), state, key, {})}
    # Shapes alone: arrays of the trace must not be kept until it is over.
    calls = jtu.tree_map(_struct, calls)

    def watch(path: str, *called: PyTree) -> None:
        calls.setdefault(path, jtu.tree_map(_struct, called))

    if isinstance(whole, Composite):

        def run(given: PyTree) -> PyTree:
            stage, (x,), state, key, _ = given
            return stage.run(x, state, _Watching(key, watch=watch))

        eqx.filter_eval_shape(run, calls[""])
    rows = [_row("", whole, calls)]
    _add_rows(rows, "", whole, calls)
    return Summary(tuple(rows))


def _add_rows(
    rows: list[Row], path: str, stage: Any, calls: Mapping[str, PyTree]
) -> None:
    if isinstance(stage, Composite):
        for segment, child in children_of(stage).items():
            below = f"{path}.{segment}" if path else segment
            rows.append(_row(below, child, calls))
            _add_rows(rows, below, child, calls)


def _row(path: str, stage: Any, calls: Mapping[str, PyTree]) -> Row:
    output, flops = _traced(calls[path]) if path in calls else (None, None)
    return Row(path, _title(stage), output, num_parameters(stage), flops)


def _title(stage: Any) -> str:
    size = stage.multiplicity() if isinstance(stage, Composite) else None
    return title_of(stage) + ("" if size is None else f" n={as_json(size)}")


def _traced(called: PyTree) -> tuple[str | None, int | None]:
    """The text of what a stage gives when it is called so, and its operations."""
    arrays, rest = eqx.partition(called, _is_struct)
    outputs = []

    def run(arrays: PyTree) -> PyTree:
        stage, args, state, key, named = eqx.combine(arrays, rest)
        y, state = call(stage, args, state, Scope(key), named)
        outputs.append(jtu.tree_map(_struct, as_arrays(y)))
        return eqx.filter((y, state), eqx.is_array)

    try:
        jaxpr = jax.make_jaxpr(run)(arrays)
    except NameError:  # it looks along an axis that has a name only further out
        return None, None
    return tree_text(outputs[-1]), num_flops(jaxpr)


def _struct(leaf: PyTree) -> PyTree:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if eqx.is_array(leaf) else leaf


def _is_struct(leaf: object) -> bool:
    return isinstance(leaf, jax.ShapeDtypeStruct)
