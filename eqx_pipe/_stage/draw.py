"""A pipeline as a diagram of boxes and arrows."""

import dataclasses
import os

import equinox as eqx

from .._check import check_callable
from .._files import write_text
from .._types import PyTree, StageLike
from .as_stage import as_module
from .picture import Canvas, Wire
from .summary import output_shapes
from .text import children_shown, shapes_text


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
