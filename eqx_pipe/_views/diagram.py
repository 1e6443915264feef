"""A diagram: as text, in a notebook, and as a file that opens anywhere."""

import dataclasses
import os

from .._files import write_text
from .layout import picture
from .mermaid import mermaid
from .sketch import Frame
from .svg import svg

# A file by itself has no page of which it could take on the colours.
_ALONE = (
    "<style>:root{color-scheme:light dark;background:#fff;color:#1f2328}"
    "@media(prefers-color-scheme:dark){:root{background:#0d1117;color:#e6edf3}}"
    "</style>"
)
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>pipeline</title>{style}</head>
<body style="margin:1rem"><div style="overflow-x:auto">
{svg}
</div></body></html>
"""


@dataclasses.dataclass(frozen=True, repr=False)
class Diagram:
    """A picture of a pipeline, for notebooks and files; `str()` is Mermaid text."""

    whole: Frame

    def __str__(self) -> str:
        return mermaid(self.whole)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f'<div style="overflow-x:auto">{self._svg()}</div>'

    def _svg(self) -> str:
        return svg(picture(self.whole), "pipeline")

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Writes the picture as a file that needs nothing else to be looked at.

        Light or dark as whoever looks at it wants it.

        **Arguments:**

        - `path`: where to. `.svg` is the picture, `.html` a page with it, and `.mmd`
            its Mermaid text.
        - `overwrite`: whether to replace what is there. (Keyword only.)

        **Raises:** `ValueError` for another suffix; `FileExistsError` if something is
        there and `overwrite` is not set.

        !!! example

            >>> import eqx_pipe as ep, jax.numpy as jnp, pathlib, tempfile
            >>> place = pathlib.Path(tempfile.mkdtemp()) / "pipe.svg"
            >>> ep.draw(ep.chain(jnp.sin, jnp.sum)).save(place)
            >>> place.read_text()[:4]
            '<svg'
        """
        makers = {".svg": self._file, ".html": self._page, ".mmd": self.__str__}
        write_text("draw(...).save", path, makers, overwrite)

    def _file(self) -> str:
        head, tag, rest = self._svg().partition("</title>")
        return f"{head}{tag}{_ALONE}{rest}\n"

    def _page(self) -> str:
        return _PAGE.format(style=_ALONE, svg=self._svg())
