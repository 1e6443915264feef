"""A pipeline as a diagram: boxes, arrows and frames of Mermaid text."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import equinox as eqx

from .._check import check_callable
from .._compose.chain import Chain
from .._compose.compiled import Compiled
from .._compose.dag import INPUT
from .._compose.graph import Graph
from .._compose.residual import Residual
from .._compose.scan import Scan
from .._compose.tied import Tied
from .._stage import Composite, Record, Scope, as_module, enter
from .._tree import as_arrays, join_path, leaf_text, leaves_with_names
from .._types import PyTree, StageLike
from .describe import as_json, children_of, kind_of, title_of
from .values import key_and_state


@dataclasses.dataclass(frozen=True)
class Diagram:
    """A diagram as Mermaid text, which `str()` gives; notebooks show the picture."""

    source: str

    def __str__(self) -> str:
        return self.source

    def _repr_markdown_(self) -> str:
        return f"```mermaid\n{self.source}\n```"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict:
        return {
            "text/vnd.mermaid": self.source,
            "text/markdown": self._repr_markdown_(),
            "text/plain": self.source,
        }


@dataclasses.dataclass(frozen=True)
class Wire:
    """The end of an arrow to be drawn: the box it leaves, and what to write on it."""

    source: str
    label: str = ""


class Sketch:
    """Lines of Mermaid text; `values` are the shapes known by path."""

    def __init__(self, values: dict[str, PyTree]):
        self.values = values
        self.lines = ["flowchart TD"]
        self.depth = 1
        self.count = 0

    def write(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def fresh(self) -> str:
        self.count += 1
        return f"n{self.count}"

    def box(self, text: str, wires: Sequence[Wire], brackets: str = "[]") -> str:
        """A box with arrows into it; `brackets` decide its outline."""
        name = self.fresh()
        half = len(brackets) // 2
        self.write(f"{name}{brackets[:half]}{_quoted(text)}{brackets[half:]}")
        for wire in wires:
            label = f"|{_quoted(wire.label)}|" if wire.label else ""
            self.write(f"{wire.source} -->{label} {name}")
        return name

    @contextlib.contextmanager
    def frame(self, title: str) -> Iterator[None]:
        """A frame round what is drawn meanwhile."""
        self.write(f"subgraph {self.fresh()}[{_quoted(title)}]")
        self.depth += 1
        yield
        self.depth -= 1
        self.write("end")

    def joined(self, wires: Sequence[Wire]) -> Wire:
        """The one wire that goes into a pipeline, of which several make a mapping."""
        one = len(wires) == 1
        return wires[0] if one else Wire(self.box("dict", wires, "{{}}"))

    def out(self, source: str, path: str) -> Wire:
        """The wire that leaves what lies at `path`, with its shape if known."""
        return Wire(
            source, shapes_text(self.values[path]) if path in self.values else ""
        )


def _quoted(text: str) -> str:
    """A label in quotes; what Mermaid or HTML would read as markup is escaped."""
    text = text.replace("#", "#35;")
    for character in '"<>`&':
        text = text.replace(character, f"#{ord(character)};")
    return '"' + text.replace("\n", "<br/>") + '"'


def shapes_text(tree: PyTree, limit: int = 4) -> str:
    lines = [
        f"{n}: {leaf_text(v)}" if n else leaf_text(v)
        for n, v in leaves_with_names(tree)
    ]
    more = [f"... {len(lines) - limit} more"] if len(lines) > limit else []
    return "\n".join(lines[:limit] + more)


# The child that decides, by kind; the others are branches side by side.
_DECIDES = {"cond": "pred", "switch": "selector"}


def _stage(sketch: Sketch, path: str, segment: str, stage: Any, wires: Sequence[Wire]):
    """Draws one stage; returns the wire that leaves it."""
    name = f"{segment}: " if segment else ""
    inner = isinstance(stage, eqx.nn.Sequential) or isinstance(stage, Composite)
    if not inner or not children_of(stage):
        return sketch.out(sketch.box(name + title_of(stage), wires), path)
    frame = sketch.frame(name + _title(stage)) if path else contextlib.nullcontext()
    with frame:
        wire = _inside(sketch, path, stage, sketch.joined(wires))
    # The values inside a branch are not known, but the stage's own is.
    return sketch.out(wire.source, path) if path in sketch.values else wire


def _inside(sketch: Sketch, path: str, stage: Any, wire: Wire) -> Wire:
    """Draws the children of a composite of one input."""

    def child(segment: str, *wires: Wire) -> Wire:
        below = f"{path}.{segment}" if path else segment
        return _stage(sketch, below, segment, children[segment], wires)

    if isinstance(stage, Compiled | Tied):  # whose children are those of the pipeline
        stage = stage.pipe
    children = children_of(stage)
    if isinstance(stage, Graph):
        return _graph(sketch, stage, child, wire)
    if isinstance(stage, Chain) and stage.over is not None:
        ends = [wire]
        for segment in children:  # each is given what the one before put out, too
            ends = [child(segment, *ends), wire]
        return ends[0]
    if isinstance(stage, Residual):
        skip = child("skip", wire) if "skip" in children else wire
        for segment in stage.keys():
            wire = child(str(segment), wire)
        if "drop" in children:  # which scales them by a number of its own
            scale = child("drop")
            wire = Wire(sketch.box("times", [wire, scale], "{{}}"))
        return Wire(sketch.box("sum", [skip, wire], "{{}}"))
    if isinstance(stage, Chain | eqx.nn.Sequential) or len(children) == 1:
        for segment in children:
            wire = child(segment, wire)
        return wire
    if isinstance(stage, Scan):
        init = [child("init", wire)] if "init" in children else []
        return child("cell", wire, *init)
    return _branches(sketch, stage, children, child, wire)


def _graph(sketch: Sketch, stage: Graph, child: Any, wire: Wire) -> Wire:
    wires = {INPUT: wire}
    for name in stage.inputs or ():
        wires[name] = _entry(wire, name)
    for name, predecessors, keywords in stage.joined():
        given = [wires[p] for p in predecessors]
        if keywords:
            both = zip(given, keywords, strict=True)
            given = [_labelled(wire, keyword) for wire, keyword in both]
        wires[name] = child(name, *given)
    if isinstance(stage.sink, str):
        return wires[stage.sink]
    ends = [wires[name] for name in stage.sink]
    if stage.sink_keys is None:
        return Wire(sketch.box("tuple", ends, "{{}}"))
    ends = [
        _labelled(end, str(key)) for key, end in zip(stage.sink_keys, ends, strict=True)
    ]
    return Wire(sketch.box("dict", ends, "{{}}"))


def _labelled(wire: Wire, name: str) -> Wire:
    """The wire with a name written above its shape, unless it says that name."""
    if wire.label.startswith(f"{name}:") or wire.label == name:
        return wire
    return Wire(wire.source, f"{name}\n{wire.label}".strip())


def _entry(wire: Wire, name: str) -> Wire:
    """Of the wire of a mapping that of one entry, with the lines that tell of it."""
    lines = wire.label.splitlines()
    of_it = [line for line in lines if line.startswith((f"{name}:", f"{name}."))]
    return Wire(wire.source, "\n".join(of_it) or name)


def _branches(
    sketch: Sketch, stage: Any, children: dict[str, Any], child: Any, wire: Wire
) -> Wire:
    """Branches side by side: what decides goes before them, what joins after."""
    kind = kind_of(stage)
    rest = dict(children)
    merge = rest.pop("merge", None) if kind == "parallel" else None
    if kind in _DECIDES:
        segment = _DECIDES[kind]
        wire = Wire(_decision(sketch, segment, rest.pop(segment), wire))
    gates = {name: rest.pop(name) for name in children if name.startswith("gates.")}
    ends = []
    for segment in rest:
        start = wire
        if (gate := gates.get(f"gates.{segment}")) is not None:
            start = Wire(_decision(sketch, f"gates.{segment}", gate, wire), "open")
        elif kind in _DECIDES:
            start = Wire(wire.source, segment)
        ends.append(child(segment, start))
    if merge is None:
        text = stage.settings().get("merge") or kind
        return Wire(sketch.box(str(text), ends, "{{}}"))
    if isinstance(merge, Composite):  # which takes the outputs as one tuple
        ends = [Wire(sketch.box("tuple", ends, "{{}}"))]
    return child("merge", *ends)


def _decision(sketch: Sketch, segment: str, stage: Any, wire: Wire) -> str:
    return sketch.box(f"{segment}: {title_of(stage)}", [wire], "{}")


def _title(stage: Any) -> str:
    if not isinstance(stage, Composite) or isinstance(stage, Graph):
        return kind_of(stage)
    settings = as_json(stage.settings())
    shown = [f"{name}={value}" for name, value in settings.items() if value is not None]
    return " ".join([kind_of(stage), *shown])


def _paths(stage: Any, path: str = "") -> Iterator[str]:
    """The paths of the stages that are drawn."""
    yield path
    for segment, child in children_of(stage).items():
        yield from _paths(child, join_path(path, segment))


def _values(pipe: Any, x: PyTree, state: eqx.nn.State | None) -> dict[str, PyTree]:
    """The shapes of the input, of every stage's output by path, and of the output."""
    pipe, state, key = key_and_state("draw", pipe, state)
    drawn = set(_paths(pipe))  # of a long `repeat` one stage only

    def run(pipe, x, state):
        record = Record(drawn.__contains__)
        scope = Scope(key, "", record)
        if isinstance(pipe, Composite):
            y, _ = pipe.run(x, state, scope)
        else:
            y, _ = enter(scope, 0, pipe, x, state=state)
        return {**record.values, "": y}

    return eqx.filter_eval_shape(run, pipe, as_arrays(x), state)


def draw(
    pipe: StageLike, x: PyTree | None = None, *, state: eqx.nn.State | None = None
) -> Diagram:
    """Draws a pipeline as boxes and arrows.

    Branches stand side by side and meet in the box that joins them; loops and other
    pipelines inside are frames. The diagram is Mermaid text: `str()` gives it, and
    notebooks show it as a picture.

    **Arguments:**

    - `pipe`: any stage.
    - `x`: an input, of arrays or `jax.ShapeDtypeStruct`s. With it the arrows carry
        dtypes and shapes. Nothing is computed, and no key is needed. Inside of a
        `batched` they are those of all examples together; inside of a branch none are
        shown.
    - `state`: the state of a stateful pipeline that was made by
        `equinox.nn.make_with_state`, needed only with `x`. (Keyword only.)

    **Returns:** a diagram, whose text is `str(diagram)`.

    **Raises:**

    - `TypeError` if `pipe` is not a stage.
    - `ValueError` if a state is needed. What the pipeline raises for such an `x`.

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
    values = {} if x is None else _values(as_module(pipe), x, state)
    sketch = Sketch(values)
    start = Wire(sketch.box("input", [], "([])"), "" if x is None else shapes_text(x))
    wire = _stage(sketch, "", "", pipe, [start])
    sketch.box("output", [wire], "([])")
    return Diagram("\n".join(sketch.lines))
