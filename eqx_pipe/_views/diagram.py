"""A diagram as Mermaid text: printed, in a notebook, and as a file."""

import dataclasses
import os

from .._files import write_text
from .mermaid import mermaid
from .sketch import Frame


@dataclasses.dataclass(frozen=True, repr=False)
class Diagram:
    """A diagram of a pipeline; `str()` is Mermaid text.

    In a notebook it is Markdown with the text in a `mermaid` code block. JupyterLab 4.1
    or newer draws such a block, and VS Code does if its Markdown preview supports
    Mermaid. Other viewers show the text.
    """

    whole: Frame

    def __str__(self) -> str:
        return mermaid(self.whole)

    __repr__ = __str__

    def _repr_markdown_(self) -> str:
        return f"```mermaid\n{self}\n```\n"

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Writes the diagram to a file.

        **Arguments:**

        - `path`: where to. `.mmd` is the Mermaid text, and `.md` is Markdown with the
            text in a code block, which GitHub and many editors draw.
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
