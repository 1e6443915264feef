"""The text of a pipeline: stages, settings, arrays and numbers of parameters."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from .._captured import Fixed, contents
from .._tree import join_path, leaf_text, leaves_with_names, path_name, static_text
from .._types import PyTree
from .paths import parts_of
from .stage import Lift, is_composite, is_state_index, is_stateful

_ARRAYS = 3


@dataclasses.dataclass(frozen=True)
class Row:
    """The description of one stage, and of those inside it.

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
    children: "list[Row]"


def row_of(stage: PyTree, outputs: Mapping[str, str], path: str = "") -> Row:
    """Return the row of a stage; `outputs` has the texts of outputs by path."""
    children = [
        row_of(child, outputs, join_path(path, segment))
        for segment, child in children_shown(stage).items()
    ]
    return Row(
        path,
        kind(stage),
        _settings(stage),
        {name: leaf_text(x) for name, x in _own_leaves(stage) if _is_array(x)},
        num_parameters(stage),
        is_stateful(stage),
        outputs.get(path),
        children,
    )


def kind(stage: PyTree) -> str:
    """Return the kind of a stage, such as `chain`, `Linear` or `sin`."""
    if isinstance(stage, Lift):
        stage = stage.fn
    if not isinstance(stage, eqx.Module):
        return static_text(stage)  # also of a mask in a filter spec
    name = type(stage).__name__
    return name.lower() if is_composite(stage) else name


def head(stage: PyTree) -> str:
    """Return the kind of a stage, with the settings of a combinator."""
    settings = stage.settings() if is_composite(stage) else {}
    return kind(stage) + _bracketed(_pairs(settings))


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


def parameters_text(stage: PyTree) -> str:
    """Return the number of parameters as text, `""` for zero."""
    return _counted(num_parameters(stage))


def row_lines(
    row: Row, *, outputs: bool = False, above: str = "", depth: int = 0
) -> Iterator[str]:
    """Yield the lines of a row and its children, with `outputs` if wanted."""
    name = row.path.removeprefix(f"{above}.") if above else row.path
    start = f"{'  ' * depth}{f'{name}: ' if name else ''}"
    output = f" -> {'?' if row.output is None else row.output}" if outputs else ""
    count = _counted(row.parameters)
    yield start + _row_text(row) + output + (f"  # {count}" if count else "")
    for child in row.children:
        yield from row_lines(child, outputs=outputs, above=row.path, depth=depth + 1)


def _row_text(row: Row) -> str:
    arrays = [f"{name} {text}" for name, text in row.arrays.items()]
    more = [f"{len(arrays) - _ARRAYS} more"] if len(arrays) > _ARRAYS else []
    shown = [*arrays[:_ARRAYS], *more]
    if row.children or not arrays:
        shown += _pairs(row.settings)
    return row.stage + _bracketed(shown)


def _counted(count: int) -> str:
    return f"{count:,} parameter{'s' * (count != 1)}" if count else ""


def _pairs(settings: Mapping[str, Any]) -> list[str]:
    # Without dicts, such as the edges of a graph.
    shown = {n: v for n, v in settings.items() if not isinstance(v, dict)}
    return [f"{name}={static_text(value)}" for name, value in shown.items()]


def _bracketed(shown: list[str]) -> str:
    return f"({', '.join(shown)})" if shown else ""


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
        own = [part for part in parts_of(stage)[0] if part.segment is None]
        return [(part.name, part.value) for part in own]
    if isinstance(stage, Lift):
        return [(name, value) for _, name, value in contents(stage.fn)]
    found = jtu.tree_flatten_with_path(stage, is_leaf=is_state_index)[0]
    named = [(path_name(path), leaf) for path, leaf in found]
    return [(name, v.value if isinstance(v, Fixed) else v) for name, v in named]


def _is_array(x: object) -> bool:
    # Not the module `numpy`, which a function may hold, and which has both names.
    return isinstance(getattr(x, "shape", None), tuple) and hasattr(x, "dtype")


def _of_first(leaf: PyTree) -> PyTree:
    return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) if _is_array(leaf) else leaf


def shapes_text(tree: PyTree, limit: int = 4) -> str:
    """Return the shapes of a pytree, one per line, at most `limit`."""
    lines = [
        f"{name}: {leaf_text(leaf)}" if name else leaf_text(leaf)
        for name, leaf in leaves_with_names(tree)
    ]
    more = [f"... {len(lines) - limit} more"] if len(lines) > limit else []
    return "\n".join(lines[:limit] + more)
