"""A result as one page that opens anywhere: pictures, the best, what failed."""

import base64
import html
import io
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..._errors import optional
from ..._files import write_text
from ..._html import heading, table
from ..._spaces.table import as_numpy, entry_columns
from ..._tree import leaves_with_names
from .best import Best

if TYPE_CHECKING:
    from xarray import Dataset

    from .result import SweepResult

# A page is to be looked through: any numbers near these will do.
_MOST_PICTURES = 24
_MOST_FAILURES = 20
_SMALLEST = 0.65
_MOST_SHAPES = 10_000
"""How many numbers are drawn as shapes, which stay sharp; of more there are pixels."""

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem;
  padding: 0 1rem; }
h1, p { overflow-wrap: anywhere; }
h2 { margin-top: 2.5rem; }
div.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { border-bottom: 1px solid #8884; padding: .2rem 1.2rem .2rem 0;
  vertical-align: top; }
pre { background: #8882; overflow-x: auto; padding: .8rem; }
figure { background: white; color: black; display: inline-block; margin: .5rem 0;
  box-sizing: border-box; max-width: 100%; overflow-x: auto; padding: .5rem; }
figure svg, figure img { height: auto; max-width: 100%; }
"""


def write_report(
    result: "SweepResult",
    made_by: Mapping[str, Any],
    path: str | os.PathLike[str],
    overwrite: bool,
) -> None:
    """Writes the page to its place."""

    def make() -> str:
        return _page(result, made_by)

    makers = {".html": make, ".htm": make}
    write_text("SweepResult.report", path, makers, overwrite)


def _page(result: "SweepResult", made_by: Mapping[str, Any]) -> str:
    name = html.escape(result.function or "sweep")
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>{name}</title><style>{_STYLE}</style></head><body><h1>{name}</h1>",
        _wide(result._repr_html_()),
    ]
    if result.points is None:
        pictures = "".join(_pictures(result))
        parts += ["<h2>Pictures</h2>", pictures or "<p>No output is a number.</p>"]
        parts += ["<h2>Best points</h2>", _wide(_best(result))]
        failed = np.flatnonzero(result.status == 2)
        if failed.size:
            parts += ["<h2>Failed points</h2>", _wide(_failed(result, failed))]
    parts += ["<h2>How it was made</h2>", _wide(_made(made_by)), _call(result)]
    return "\n".join([*parts, "</body></html>"])


def _wide(text: str) -> str:
    """What may be wider than a small screen, and is moved sideways there."""
    return f"<div class='wide'>{text}</div>"


def _pictures(result: "SweepResult") -> Iterator[str]:
    """A picture of each output that has one; of the others it is said why not."""
    plt = optional("SweepResult.report", "matplotlib.pyplot")
    data = result.to_xarray()
    outputs = [str(n) for n, x in data.data_vars.items() if x.dtype.kind in "biuf"]
    for name in outputs[:_MOST_PICTURES]:
        # Figures that the user has open stay open.
        before = set(plt.get_fignums())
        try:
            axes = np.ravel(np.asarray(_plotted(result, data, name)))
            yield f"<figure>{_image(axes[0].figure, data[name].size)}</figure>"
        except ValueError as error:  # more dims than a picture has
            yield f"<p>{html.escape(f'{name}: {error}')}</p>"
        finally:
            for number in set(plt.get_fignums()) - before:
                plt.close(number)
    rest = len(outputs) - _MOST_PICTURES
    if rest > 0:
        yield f"<p>{rest} more outputs have no picture here.</p>"


def _plotted(result: "SweepResult", data: "Dataset", name: str) -> Any:
    """A picture of an output; of one with many dims where the last have one value."""
    swept = [dim for dim in result.space.dims if dim in data[name].dims]
    sel: dict[str, Any] = {}
    first: ValueError | None = None
    while True:
        try:
            return result.plot(name, sel=sel)
        except ValueError as error:
            first = first or error
            if len(swept) < 2:
                raise first from None
        dim = swept.pop()
        known = [str(n) for n, x in data.coords.items() if x.dims == (dim,)]
        axis = dim if dim in known else next(iter(known), dim)
        sel[axis] = data[axis].values[0].item() if known else 0


def _image(figure: Any, size: int) -> str:
    drawn = io.BytesIO()
    # On a small screen it shrinks as long as what is written can be read.
    least = f"style='min-width:{_SMALLEST * 96 * figure.get_figwidth():.0f}px'"
    if size <= _MOST_SHAPES:
        figure.savefig(drawn, format="svg", bbox_inches="tight")
        svg = drawn.getvalue().decode()
        return svg[svg.index("<svg") :].replace("<svg", f"<svg {least}", 1)
    figure.savefig(drawn, format="png", bbox_inches="tight", dpi=150)
    data = base64.b64encode(drawn.getvalue()).decode()
    return f"<img {least} alt='' src='data:image/png;base64,{data}'>"


def _best(result: "SweepResult") -> str:
    """Where each output that is one number is smallest and largest."""
    found: list[tuple[str, Best]] = []
    for name, leaf in leaves_with_names(result.values):
        if leaf.ndim == 1 and leaf.dtype.kind in "biuf":
            for mode in ("min", "max"):
                try:
                    best = result.best(name or None, mode)
                except ValueError:  # no point has a number
                    continue
                found.append((f"{mode} of {name or 'value'}", best))
    if not found:
        return "<p>No output is one number at each point.</p>"
    points = _points(result, [best.index for _, best in found])
    rows = [
        (what, f"{best.value:.6g}", str(best.index), *point)
        for (what, best), point in zip(found, points[1:], strict=True)
    ]
    return table(("", "value", "point", *points[0]), rows)


def _failed(result: "SweepResult", failed: np.ndarray) -> str:
    shown = failed[:_MOST_FAILURES]
    points = _points(result, shown.tolist())
    raised = result.errors
    rows = [
        (str(i), *point, raised.get(int(i), ""))
        for i, point in zip(shown, points[1:], strict=True)
    ]
    rest = len(failed) - len(shown)
    more = f"<p>{rest:,} more points have failed.</p>" if rest else ""
    return table(("point", *points[0], "error"), rows) + more


def _points(result: "SweepResult", indices: list[int]) -> list[tuple[str, ...]]:
    """The names of the columns of the space, and what is in them at some points."""
    space = result.space[indices]
    columns = entry_columns(space.geometry, space.key, as_numpy)
    rows = zip(*columns.values(), strict=True)
    return [tuple(columns), *(tuple(map(_text, row)) for row in rows)]


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)


def _made(made_by: Mapping[str, Any]) -> str:
    rows = [(name, str(value)) for name, value in made_by.items()]
    return table(("", ""), rows)


def _call(result: "SweepResult") -> str:
    """The call that makes it again; the key is not known here."""
    function, space = (
        html.escape(result.function or "fn"),
        html.escape(str(result.space)),
    )
    lines = "\n".join(f"# {line}" for line in space.splitlines())
    return (
        f"{heading('The call')}<pre>import eqx_pipe as ep\n\n{lines}\n"
        f"ep.sweep({function}, space, batch_size={result.batch_size})"
        "  # and key=, if there was one</pre>"
    )
