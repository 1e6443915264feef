"""The text of a pipeline: stages, settings, arrays and numbers of parameters."""

import dataclasses
import functools as ft
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

_LINES, _ARRAYS = 40, 3


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
    stateful: bool = False
    output: str | None = None
    children: "list[Row]" = dataclasses.field(default_factory=list)

    @property
    def head(self) -> str:
        """The stage's kind with its settings, if it is a combinator."""
        return self.stage + _bracketed(_pairs(self.settings if self.children else {}))


def row_of(stage: PyTree, outputs: Mapping[str, str], path: str = "") -> Row:
    """Return the row of a stage; `outputs` has the texts of outputs by path."""
    children = [
        row_of(child, outputs, join_path(path, segment))
        for segment, child in children_shown(stage).items()
    ]
    return Row(
        path,
        kind(stage),
        _plain(_settings(stage)),
        {name: leaf_text(x) for name, x in _own_leaves(stage) if _is_array(x)},
        num_parameters(stage),
        is_stateful(stage),
        outputs.get(path),
        children,
    )


def kind(stage: PyTree) -> str:
    """Return the kind of a stage, such as `chain`, `Linear` or `sin`."""
    if isinstance(stage, Lift) or not isinstance(stage, eqx.Module):
        return _function_name(stage)
    name = type(stage).__name__
    return name.lower() if is_composite(stage) else name


def head(stage: PyTree) -> str:
    """Return the kind of a stage, with the settings of a combinator."""
    settings = _plain(stage.settings()) if is_composite(stage) else {}
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


def pipeline_text(stage: PyTree) -> str:
    """Return one line for each stage, at most as many as fit on a screen."""
    lines = list(_lines(row_of(stage, {}), "", 0))
    more = len(lines) - _LINES
    if more > 1:
        lines = [*lines[:_LINES], f"... {more} more lines: `eqx_pipe.summary(pipe)`"]
    return "\n".join(lines)


def _lines(row: Row, above: str, depth: int) -> Iterator[str]:
    name = row.path.removeprefix(f"{above}.") if above else row.path
    yield f"{'  ' * depth}{f'{name}: ' if name else ''}{_row_text(row)}"
    for child in row.children:
        yield from _lines(child, row.path, depth + 1)


def _row_text(row: Row) -> str:
    arrays = [f"{name} {text}" for name, text in row.arrays.items()]
    more = [f"{len(arrays) - _ARRAYS} more"] if len(arrays) > _ARRAYS else []
    shown = [*arrays[:_ARRAYS], *more]
    if row.children or not arrays:
        shown += _pairs(row.settings)
    total = _counted(row.parameters)
    return row.stage + _bracketed(shown) + (f"  # {total}" if total else "")


def _counted(count: int) -> str:
    return f"{count:,} parameter{'s' * (count != 1)}" if count else ""


def _pairs(settings: Mapping[str, Any]) -> list[str]:
    # Without dicts, such as the edges of a graph.
    return [f"{n}={v}" for n, v in settings.items() if not isinstance(v, dict)]


def _bracketed(shown: list[str]) -> str:
    return f"({', '.join(shown)})" if shown else ""


def _function_name(fn: Any) -> str:
    """Return the name of a function without its module, which may be renamed."""
    if isinstance(fn, Lift):
        return _function_name(fn.fn)
    if not callable(fn):  # in a filtered pipeline or a filter spec
        return str(fn)
    if isinstance(fn, ft.partial):
        return f"partial({_function_name(fn.func)})"
    return getattr(fn, "__name__", None) or type(fn).__name__


def _settings(stage: PyTree) -> dict[str, Any]:
    """Return the settings of a combinator, and the plain fields of a layer."""
    if is_composite(stage):
        return stage.settings()
    if isinstance(stage, Lift) or not isinstance(stage, eqx.Module):
        return {}
    named = {f.name: getattr(stage, f.name, None) for f in dataclasses.fields(stage)}
    frozen = {name: kind(_thawed(v)) for name, v in named.items() if _is_frozen(v)}
    return {n: v for n, v in {**named, **frozen}.items() if not _holds_parts(v)}


def _is_frozen(value: PyTree) -> bool:
    return any(isinstance(x, Fixed) for x in jtu.tree_leaves(value))


def _thawed(leaf: PyTree) -> PyTree:
    return leaf.value if isinstance(leaf, Fixed) else leaf


def _holds_parts(value: PyTree) -> bool:
    leaves = jtu.tree_leaves(value, is_leaf=_is_part)
    return any(map(_is_part, leaves))


def _is_part(x: PyTree) -> bool:
    return isinstance(x, eqx.Module) or _is_array(x)


def _own_leaves(stage: PyTree) -> list[tuple[str, Any]]:
    """Return the leaves of a stage outside its children, without state."""
    if is_composite(stage):
        own = [part for part in parts_of(stage)[0] if part.segment is None]
        return [(part.name, part.value) for part in own]
    if isinstance(stage, Lift):
        return [(name, value) for _, name, value in contents(stage.fn)]
    found = jtu.tree_flatten_with_path(stage, is_leaf=is_state_index)[0]
    return [(path_name(path), _thawed(leaf)) for path, leaf in found]


def _plain(value: Any) -> Any:
    """Return a value that `json.dumps` accepts, the same in every process."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return static_text(value)


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
