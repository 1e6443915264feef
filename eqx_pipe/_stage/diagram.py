"""Diagrams: the canvas on which combinators draw themselves, and `draw`."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import equinox as eqx

from .._check import check_callable
from .._files import write_text
from .._tree import join_path
from .._types import PyTree, StageLike
from .as_stage import as_module
from .stage import is_composite
from .summary import output_shapes
from .text import children_shown, head, kind, parameters_text, shapes_text


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
        known = path in self.values
        return Wire(wire.source, shapes_text(self.values[path])) if known else wire

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
    return list(filter(None, [named, parameters_text(stage)]))


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

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the diagram to a file.

        **Arguments:**

        - `path`: the path of the file. The suffix `.mmd` writes the Mermaid text, and
            `.md` writes Markdown with the text in a code block, which GitHub and many
            editors draw.
        - `overwrite`: whether to replace an existing file. (Keyword only.)

        **Raises:** `ValueError` for another suffix; `FileExistsError` if the file
        exists and `overwrite` is not set.

        !!! example

            >>> import eqx_pipe as ep, jax.numpy as jnp, pathlib, tempfile
            >>> place = pathlib.Path(tempfile.mkdtemp()) / "pipe.md"
            >>> ep.draw(ep.chain(jnp.sin, jnp.sum)).save(place)
            >>> place.read_text().splitlines()[:2]
            ['```mermaid', 'flowchart TD']
        """
        makers = {".md": self._repr_markdown_, ".mmd": self.__str__}
        write_text("draw(...).save", path, makers, overwrite)


def draw(
    pipe: StageLike, x: PyTree | None = None, *, state: eqx.nn.State | None = None
) -> Diagram:
    """Draw a pipeline as boxes and arrows.

    Branches are side by side and meet in the box that joins them; loops and other
    nested pipelines are frames. The diagram is Mermaid text: `str()` returns it,
    JupyterLab (4.1 or newer) and VS Code draw it, and `.save("pipe.md")` writes a file
    that GitHub draws.

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
    wire = Wire(begin.source, "" if x is None else shapes_text(x))
    if children_shown(whole):
        wire = canvas.leaving(canvas.inside("", whole, wire), "")
    else:
        wire = canvas.stage("", "", whole, wire)
    canvas.box("output", [wire], "([])")
    return Diagram(str(canvas))
