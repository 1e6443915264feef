"""A pipeline as a diagram: what stands beside what, and what leads where."""

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import equinox as eqx

from .._check import check_callable, check_int
from .._compose.chain import Chain
from .._compose.dag import INPUT
from .._compose.graph import Graph
from .._compose.residual import Residual
from .._compose.scan import Scan
from .._compose.tied import Tied
from .._stage import Composite, Record, Scope, as_module, enter
from .._stage.text import num_parameters
from .._tree import as_arrays, join_path, leaf_text, leaves_with_names
from .._types import PyTree, StageLike
from .describe import as_json, children_of, kind_of, title_of
from .diagram import Diagram
from .sketch import Sketch, Wire
from .values import key_and_state


def shapes_text(tree: PyTree, limit: int = 4) -> str:
    lines = [
        f"{n}: {leaf_text(v)}" if n else leaf_text(v)
        for n, v in leaves_with_names(tree)
    ]
    more = [f"... {len(lines) - limit} more"] if len(lines) > limit else []
    return "\n".join(lines[:limit] + more)


def parameters_text(stage: Any) -> str:
    """How many numbers in it gradients reach, below its name; nothing for none."""
    count = num_parameters(stage)
    return f"{count:,} parameter{'s' * (count != 1)}" if count else ""


class _Drawing(Sketch):
    """A sketch of a pipeline; `values` are the shapes known by path.

    Of more than `fold` stages in a row the ones in the middle are one box.
    """

    def __init__(self, values: dict[str, PyTree], fold: int | None):
        super().__init__()
        self.values = values
        self.fold = fold

    def joined(self, wires: Sequence[Wire]) -> Wire:
        """The one wire that goes into a pipeline, of which several make a mapping."""
        one = len(wires) == 1
        return wires[0] if one else Wire(self.box("dict", wires, "join"))

    def out(self, source: str, path: str) -> Wire:
        """The wire that leaves what lies at `path`, with its shape if known."""
        return Wire(
            source, shapes_text(self.values[path]) if path in self.values else ""
        )

    def shown(self, children: Iterable[str]) -> Iterator[str | list[str]]:
        """The names of children in a row, those that are folded as one list."""
        names = list(children)
        if self.fold is None or len(names) <= self.fold:
            yield from names
            return
        ahead, behind = self.fold // 2, self.fold - self.fold // 2 - 1
        end = len(names) - behind
        yield from [*names[:ahead], names[ahead:end], *names[end:]]


# The child that decides, by kind; the others are branches side by side.
_DECIDES = {"cond": "pred", "switch": "selector"}


def _stage(
    sketch: _Drawing, path: str, segment: str, stage: Any, wires: Sequence[Wire]
) -> Wire:
    """Draws one stage; returns the wire that leaves it."""
    name = f"{segment}: " if segment else ""
    inner = isinstance(stage, eqx.nn.Sequential) or isinstance(stage, Composite)
    if not inner or not children_of(stage):
        text = _lines(name + title_of(stage), parameters_text(stage))
        return sketch.out(sketch.box(text, wires), path)
    title = ", ".join(filter(None, [name + _title(stage), parameters_text(stage)]))
    frame = sketch.frame(title) if path else contextlib.nullcontext()
    with frame:
        wire = _inside(sketch, path, stage, sketch.joined(wires))
    # The values inside a branch are not known, but the stage's own is.
    return sketch.out(wire.source, path) if path in sketch.values else wire


def _lines(*lines: str) -> str:
    return "\n".join(filter(None, lines))


def _folded(
    sketch: _Drawing, path: str, stages: Mapping[str, Any], wires: Sequence[Wire]
) -> Wire:
    """Draws several stages in a row as one box."""
    first, *_, last = stages
    kinds = Counter(map(title_of, stages.values()))
    listed = [f"{n} {kind}" if n > 1 else kind for kind, n in kinds.most_common(3)]
    more = kinds.total() - sum(n for _, n in kinds.most_common(3))
    listed += [f"{more} more"] if more else []
    text = _lines(
        f"{first} ... {last}",
        f"{len(stages)} stages: {', '.join(listed)}",
        parameters_text(tuple(stages.values())),
    )
    place = sketch.box(text, wires)
    return sketch.out(place, join_path(path, last))


def _inside(sketch: _Drawing, path: str, stage: Any, wire: Wire) -> Wire:
    """Draws the children of a composite of one input."""

    def child(segment: str | list[str], *wires: Wire) -> Wire:
        if isinstance(segment, list):
            return _folded(sketch, path, {s: children[s] for s in segment}, wires)
        return _stage(
            sketch, join_path(path, segment), segment, children[segment], wires
        )

    if isinstance(stage, Tied):  # whose children are those of the pipeline
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
        for segment in sketch.shown(list(map(str, stage.keys()))):
            wire = child(segment, wire)
        return Wire(sketch.box("sum", [skip, wire], "join"))
    if isinstance(stage, Chain | eqx.nn.Sequential) or len(children) == 1:
        for segment in sketch.shown(children):
            wire = child(segment, wire)
        return wire
    if isinstance(stage, Scan):
        init = [child("init", wire)] if "init" in children else []
        return child("cell", wire, *init)
    return _branches(sketch, stage, children, child, wire)


def _graph(sketch: _Drawing, stage: Graph, child: Any, wire: Wire) -> Wire:
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
        return Wire(sketch.box("tuple", ends, "join"))
    ends = [
        _labelled(end, str(key)) for key, end in zip(stage.sink_keys, ends, strict=True)
    ]
    return Wire(sketch.box("dict", ends, "join"))


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
    sketch: _Drawing, stage: Any, children: dict[str, Any], child: Any, wire: Wire
) -> Wire:
    """Branches side by side: what decides goes before them, what joins after."""
    kind = kind_of(stage)
    rest = dict(children)
    merge = rest.pop("merge", None) if kind == "parallel" else None
    weights = rest.pop("weights", None) if kind == "weighted" else None
    if kind in _DECIDES:
        segment = _DECIDES[kind]
        wire = Wire(_decision(sketch, segment, rest.pop(segment), wire))
    gates = {name: rest.pop(name) for name in children if name.startswith("gates.")}
    ends = []
    for segment in sketch.shown(rest):
        start = wire
        if isinstance(segment, list):
            start = Wire(wire.source, "those open") if gates else wire
        elif (gate := gates.get(f"gates.{segment}")) is not None:
            start = Wire(_decision(sketch, f"gates.{segment}", gate, wire), "open")
        elif kind in _DECIDES:
            start = Wire(wire.source, segment)
        ends.append(child(segment, start))
    if weights is not None:
        ends.append(_labelled(child("weights", wire), "weights"))
    if merge is None:
        text = stage.settings().get("merge") or kind
        return Wire(sketch.box(str(text), ends, "join"))
    if isinstance(merge, Composite):  # which takes the outputs as one tuple
        ends = [Wire(sketch.box("tuple", ends, "join"))]
    return child("merge", *ends)


def _decision(sketch: _Drawing, segment: str, stage: Any, wire: Wire) -> str:
    text = _lines(f"{segment}: {title_of(stage)}", parameters_text(stage))
    return sketch.box(text, [wire], "decision")


def _title(stage: Any) -> str:
    if not isinstance(stage, Composite) or isinstance(stage, Graph):
        return kind_of(stage)
    settings = as_json(stage.settings())
    shown = [
        f"{name}={value}"
        for name, value in settings.items()
        if value not in (None, "none")
    ]
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
    pipe: StageLike,
    x: PyTree | None = None,
    *,
    state: eqx.nn.State | None = None,
    fold: int | None = 16,
) -> Diagram:
    """Draws a pipeline as boxes and arrows.

    Branches stand side by side and meet in the box that joins them; loops and other
    pipelines inside are frames. The diagram is Mermaid text: `str()` returns it,
    JupyterLab (4.1 or newer) and VS Code draw it, and `.save("pipe.md")` writes a file
    that GitHub draws.

    **Arguments:**

    - `pipe`: any stage.
    - `x`: an input, of arrays or `jax.ShapeDtypeStruct`s. With it the arrows carry
        dtypes and shapes. Nothing is computed, and no key is needed. Inside of a
        `batched` they are those of all examples together; inside of a branch none are
        shown.
    - `state`: the state of a stateful pipeline that was made by
        `equinox.nn.make_with_state`, needed only with `x`. (Keyword only.)
    - `fold`: how many stages in a row, or branches side by side, are shown at most: of
        more, those in the middle are one box. `None` shows all. At least 3. (Keyword
        only.)

    **Returns:** a diagram.

    **Raises:**

    - `TypeError` if `pipe` is not a stage.
    - `ValueError` if a state is needed, and for a `fold` below 3. What the pipeline
        raises for such an `x`.

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
    if fold is not None:
        check_int("draw", "fold", fold, 3)
    values = {} if x is None else _values(as_module(pipe), x, state)
    sketch = _Drawing(values, fold)
    start = Wire(
        sketch.box("input", outline="end"), "" if x is None else shapes_text(x)
    )
    wire = _stage(sketch, "", "", pipe, [start])
    sketch.box("output", [wire], "end")
    return Diagram(sketch.finished())
