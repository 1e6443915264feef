"""Describe a pipeline: the text of its stages, and `summary`."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu

from .._captured import contents
from .._check import check_callable
from .._same import Fixed
from .._tree import (
    as_arrays,
    join_path,
    leaf_text,
    path_name,
    static_text,
    struct_of,
    tree_text,
)
from .._types import MaybeState, PyTree, StageLike
from .select import parts_of
from .stage import (
    Lift,
    Record,
    Scope,
    as_module,
    call,
    check_state,
    is_composite,
    is_state_index,
    is_stateful,
)

_ARRAYS = 3


@dataclasses.dataclass(frozen=True, repr=False)
class Summary:
    """The description of a stage, and of those inside it; `str()` has a line for each.

    `stage` is `chain`, `parallel`, ... for a combinator, the name of a function, and
    the name of the class of any other module. `output` is the text of its output, or
    `None` if unknown. `arrays` are the stage's own arrays; for a function they are
    those in its closure or partial arguments, and for a frozen stage its constants,
    which `parameters` does not count.
    """

    path: str
    stage: str
    settings: dict[str, Any]
    arrays: dict[str, str]
    parameters: int
    stateful: bool
    output: str | None
    children: "list[Summary]"

    @property
    def rows(self) -> "tuple[Summary, ...]":
        """This description, and those of all stages inside, in order."""
        return (self, *(row for child in self.children for row in child.rows))

    def __repr__(self) -> str:
        shown = any(row.output for row in self.rows)
        return "\n".join(row_lines(self, outputs=shown))


def row_of(stage: PyTree, outputs: Mapping[str, str], path: str = "") -> Summary:
    """Return the row of a stage; `outputs` has the texts of outputs by path."""
    shown = children_shown(stage).items()
    children = [row_of(x, outputs, join_path(path, segment)) for segment, x in shown]
    arrays = {name: leaf_text(x) for name, x in _own_leaves(stage) if _is_array(x)}
    facts = num_parameters(stage), is_stateful(stage), outputs.get(path)
    return Summary(path, kind(stage), _settings(stage), arrays, *facts, children)


def kind(stage: PyTree) -> str:
    """Return the kind of a stage, such as `chain`, `Linear` or `sin`."""
    if isinstance(stage, Lift):
        stage = stage.fn
    if not isinstance(stage, eqx.Module):
        return static_text(stage)  # also of a mask in a filter spec
    name = type(stage).__name__
    return name.lower() if is_composite(stage) else name


def children_shown(stage: PyTree) -> dict[str, PyTree]:
    """Return the direct children by path; for stacked stages the first, as shapes."""
    if isinstance(stage, eqx.nn.Sequential):
        return {f"layers.{i}": layer for i, layer in enumerate(stage.layers)}
    if not is_composite(stage):
        return {}
    if stage.size is None:
        return dict(stage.held())
    # Only shapes: slicing the arrays would compile a program for each of them.
    return {name: jtu.tree_map(_of_first, x) for name, x in stage.children().items()}


def num_parameters(stage: PyTree) -> int:
    """Count the scalars in a stage that gradients reach; state does not count."""
    leaves = jtu.tree_leaves(stage, is_leaf=is_state_index)
    arrays = filter(_is_array, leaves)
    inexact = (x for x in arrays if jnp.issubdtype(x.dtype, jnp.inexact))
    return sum(math.prod(x.shape) for x in inexact)


def row_lines(
    row: Summary, *, outputs: bool = False, above: str = "", depth: int = 0
) -> Iterator[str]:
    """Yield the lines of a row and its children, with `outputs` if wanted."""
    name = row.path.removeprefix(f"{above}.") if above else row.path
    start = f"{'  ' * depth}{f'{name}: ' if name else ''}"
    output = f" -> {'?' if row.output is None else row.output}" if outputs else ""
    n = row.parameters
    count = f"  # {n:,} parameter{'s' * (n != 1)}" if n else ""
    yield start + _row_text(row) + output + count
    for child in row.children:
        yield from row_lines(child, outputs=outputs, above=row.path, depth=depth + 1)


def _row_text(row: Summary) -> str:
    arrays = [f"{name} {text}" for name, text in row.arrays.items()]
    more = [f"{len(arrays) - _ARRAYS} more"] if len(arrays) > _ARRAYS else []
    shown = [*arrays[:_ARRAYS], *more]
    if row.children or not arrays:
        named = row.settings.items()  # dicts, as the edges of a graph, are long
        shown += [f"{n}={static_text(v)}" for n, v in named if not isinstance(v, dict)]
    return row.stage + (f"({', '.join(shown)})" if shown else "")


def _settings(stage: PyTree) -> dict[str, Any]:
    """Return the settings of a combinator, or the numbers and texts of a layer."""
    if is_composite(stage):
        return stage.settings()
    if isinstance(stage, Lift) or not isinstance(stage, eqx.Module):
        return {}
    named = {f.name: getattr(stage, f.name, None) for f in dataclasses.fields(stage)}
    return {n: v for n, v in named.items() if isinstance(v, bool | int | float | str)}


def _own_leaves(stage: PyTree) -> list[tuple[str, Any]]:
    """Return the leaves of a stage outside its children, without state."""
    if is_composite(stage):
        leaves = [part for part in parts_of(stage)[0] if part.segment is None]
        return [(part.name, part.value) for part in leaves]
    if isinstance(stage, Lift):
        return [(name, value) for _, name, value in contents(stage.fn)]
    flat = jtu.tree_flatten_with_path(stage, is_leaf=is_state_index)[0]
    named = [(path_name(path), leaf) for path, leaf in flat]
    return [(name, v.value if isinstance(v, Fixed) else v) for name, v in named]


def _is_array(x: object) -> bool:
    # Not the module `numpy`, which a function may hold, and which has both names.
    return isinstance(getattr(x, "shape", None), tuple) and hasattr(x, "dtype")


def _of_first(leaf: PyTree) -> PyTree:
    return struct_of(leaf, drop=1) if _is_array(leaf) else leaf


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

    **Returns:** a summary, with a line for each stage. It has `.path`, `.stage`,
    `.settings` (those that differ from their defaults), `.arrays`, `.parameters` (the
    number of scalars that gradients reach), `.stateful`, `.output`, and the summaries
    of the stages inside: `.children`, and `.rows` of all, with itself first. A `?` is
    an unknown output, inside a branch of `cond`, `switch` or `gated`.

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
        >>> ep.summary(pipe).children[0].arrays
        {'weight': 'float32[2,3]'}
    """
    check_callable("summary", "pipe", pipe)
    whole = as_module(pipe)
    values = {} if x is None else _output_shapes(whole, x, state)
    return row_of(whole, {path: tree_text(y) for path, y in values.items()})


def _output_shapes(pipe: Any, x: PyTree, state: MaybeState) -> dict[str, PyTree]:
    """Return the shapes of all outputs by path; the whole has the path `""`."""
    shown = {row.path for row in row_of(pipe, {}).rows}
    check_state("summary", pipe, state)

    def run(pipe: Any, x: PyTree, state: MaybeState) -> dict[str, PyTree]:
        # Not all paths: only one stage of a `repeat` is shown.
        record = Record(shown.__contains__)
        y, _ = call(pipe, (x,), state, Scope(jr.key(0), record=record))
        return {**record.values, "": y}

    return eqx.filter_eval_shape(run, pipe, as_arrays(x), state)
