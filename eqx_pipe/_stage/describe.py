"""Describe a pipeline: the text of its stages, `summary`, and the diagram of `draw`."""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu

from .._captured import Fixed, contents
from .._check import check_callable
from .._tree import (
    as_arrays,
    join_path,
    leaf_text,
    leaf_texts,
    path_name,
    static_text,
    struct_of,
    tree_text,
)
from .._types import MaybeState, PyTree, StageLike
from .paths import parts_of
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
_LEAVES = 4


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


class Wire(NamedTuple):
    """The start of an arrow: the box that it leaves, and its label."""

    source: str
    label: str = ""

    def labelled(self, name: str) -> "Wire":
        """Return the wire with a name above its shape, unless it has this name."""
        if self.label.startswith(f"{name}:") or self.label == name:
            return self
        return Wire(self.source, f"{name}\n{self.label}".strip())

    def entry(self, name: str) -> "Wire":
        """Return the wire of one entry, for a wire that carries a mapping."""
        lines = self.label.splitlines()
        of_it = [line for line in lines if line.startswith((f"{name}:", f"{name}."))]
        return Wire(self.source, "\n".join(of_it) or name)


class Canvas:
    """A flowchart from top to bottom; `values` are the shapes of outputs by path."""

    def __init__(self, values: Mapping[str, PyTree]):
        self.values = values
        self._lines = ["flowchart TD"]
        self._depth = 1
        self._count = 0

    def __str__(self) -> str:
        return "\n".join(self._lines)

    def box(self, text: str, wires: Sequence[Wire] = (), brackets: str = "[]") -> Wire:
        """Draw a box with arrows into it; return the wire that leaves it."""
        name, half = self._fresh(), len(brackets) // 2
        self._write(f"{name}{brackets[:half]}{_quoted(text)}{brackets[half:]}")
        for wire in wires:
            label = f"|{_quoted(wire.label)}|" if wire.label else ""
            self._write(f"{wire.source} -->{label} {name}")
        return Wire(name)

    def join(self, text: str, wires: Sequence[Wire]) -> Wire:
        """Draw the node that joins values."""
        return self.box(text, wires, "{{}}")

    def decision(self, segment: str, stage: PyTree, wire: Wire) -> Wire:
        """Draw a stage that chooses the branch."""
        return self.box(_box_text(segment, stage), [wire], "{}")

    def stage(self, path: str, segment: str, stage: PyTree, *wires: Wire) -> Wire:
        """Draw the stage at a segment below `path`; return the wire that leaves it."""
        here = join_path(path, segment)
        if not children_shown(stage):
            wire = self.box(_box_text(segment, stage), wires)
        else:
            with self._frame(", ".join(_described(segment, head(stage), stage))):
                wire = self.inside(here, stage, *wires)
        return self.leaving(wire, here)

    def inside(self, path: str, stage: PyTree, *wires: Wire) -> Wire:
        """Draw the children of a stage; several wires are first joined to a mapping."""
        wire = wires[0] if len(wires) == 1 else self.join("dict", wires)
        if is_composite(stage):
            return stage.picture(self, path, wire)
        return self.row(path, children_shown(stage), wire)

    def row(self, path: str, children: Mapping[str, PyTree], wire: Wire) -> Wire:
        """Draw stages one after the other."""
        for segment, child in children.items():
            wire = self.stage(path, segment, child, wire)
        return wire

    def leaving(self, wire: Wire, path: str) -> Wire:
        """Return the wire with the shape of the output at `path`, if that is known."""
        if path not in self.values:
            return wire
        return Wire(wire.source, "\n".join(leaf_texts(self.values[path], _LEAVES)))

    @contextlib.contextmanager
    def _frame(self, title: str) -> Iterator[None]:
        self._write(f"subgraph {self._fresh()}[{_quoted(title)}]")
        self._depth += 1
        yield
        self._depth -= 1
        self._write("end")

    def _fresh(self) -> str:
        self._count += 1
        return f"n{self._count}"

    def _write(self, line: str) -> None:
        self._lines.append("    " * self._depth + line)


def _box_text(segment: str, stage: PyTree) -> str:
    return "\n".join(_described(segment, kind(stage), stage))


def _described(segment: str, text: str, stage: PyTree) -> list[str]:
    """Return the name and text of a stage, and its number of parameters, if any."""
    named = f"{segment}: {text}" if segment else text
    return list(filter(None, [named, _counted(num_parameters(stage))]))


def _quoted(text: str) -> str:
    """Return a label in quotes, with the markup of Mermaid and HTML escaped."""
    text = text.replace("#", "#35;")
    for character in '"<>`&':
        text = text.replace(character, f"#{ord(character)};")
    return '"' + text.replace("\n", "<br/>") + '"'


@dataclasses.dataclass(frozen=True, repr=False)
class Diagram:
    """A diagram of a pipeline; `str()` is Mermaid text.

    In a notebook it is Markdown with the text in a `mermaid` code block. JupyterLab 4.1
    or newer draws such a block, and VS Code does if its Markdown preview supports
    Mermaid. Other viewers show the text.
    """

    text: str

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__

    def _repr_markdown_(self) -> str:
        return f"```mermaid\n{self}\n```\n"


def draw(
    pipe: StageLike, x: PyTree | None = None, *, state: eqx.nn.State | None = None
) -> Diagram:
    """Draw a pipeline as boxes and arrows.

    Branches are side by side and meet in the box that joins them; loops and other
    nested pipelines are frames. The diagram is Mermaid text: `str()` returns it, for
    instance for a `mermaid` code block on GitHub, and JupyterLab (4.1 or newer) and VS
    Code draw it.

    **Arguments:**

    - `pipe`: any stage.
    - `x`: an input, of arrays or `jax.ShapeDtypeStruct`s. With it, the arrows show
        dtypes and shapes. Nothing is computed, and no key is needed. Inside a
        `batched`, shapes include the axis of examples; inside a branch, no shapes are
        shown.
    - `state`: the state of a stateful pipeline, as `equinox.nn.make_with_state` returns
        it, needed only with `x`. (Keyword only.)

    **Returns:** a diagram.

    **Raises:**

    - `TypeError` if `pipe` is not a stage.
    - `ValueError` if `state` is missing, and the errors that the pipeline raises for
      `x`.

    !!! example

        >>> import eqx_pipe as ep, jax.numpy as jnp
        >>> print(ep.draw(ep.chain(wave=jnp.sin, total=jnp.sum), jnp.ones(3)))
        flowchart TD
            n1(["input"])
            n2["wave: sin"]
            n1 -->|"float32[3]"| n2
            n3["total: sum"]
            n2 -->|"float32[3]"| n3
            n4(["output"])
            n3 -->|"float32[]"| n4
    """
    check_callable("draw", "pipe", pipe)
    whole = as_module(pipe)
    canvas = Canvas({} if x is None else output_shapes("draw", whole, x, state))
    begin = canvas.box("input", brackets="([])")
    wire = Wire(begin.source, "" if x is None else "\n".join(leaf_texts(x, _LEAVES)))
    if children_shown(whole):
        wire = canvas.leaving(canvas.inside("", whole, wire), "")
    else:
        wire = canvas.stage("", "", whole, wire)
    canvas.box("output", [wire], "([])")
    return Diagram(str(canvas))
