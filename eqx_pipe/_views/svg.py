"""A diagram as SVG, which is at home on light and on dark pages.

Text and lines have the colour of the text round the picture, and everything else is
translucent, so that it fits wherever it is put. There are no styles and no names in it,
which would mix with those of the page and of other diagrams on it.
"""

import html

from .layout import SMALL, TAB, Line, Note, Picture, Placed
from .metrics import LINE, MONO, SANS, sans_width
from .sketch import Box, Frame

_SANS = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif"
_MONO = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
_MARGIN = 12.0

# Of middle lightness, to be seen on white and on black.
_BLUE, _AMBER, _GREEN, _GREY = "#388bfd", "#d29922", "#2da44e", "#6e7781"


def svg(picture: Picture, title: str) -> str:
    """The text of an SVG."""
    width, height = picture.width + 2 * _MARGIN, picture.height + 2 * _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width:.0f}" '
        f'height="{height:.0f}" viewBox="{-_MARGIN:g} {-_MARGIN:g} {width:.0f} '
        f'{height:.0f}" fill="currentColor" font-family="{_SANS}" '
        f'font-size="{SANS:g}">',
        f"<title>{html.escape(title)}</title>",
        *map(_frame, picture.frames),
        # Lines that lie on each other are not darker than one of them.
        '<g opacity=".6" fill="none" stroke="currentColor" stroke-width="1.4">',
        *map(_line, picture.lines),
        "</g>",
        *map(_tab, picture.frames),
        *map(_box, picture.boxes),
        f'<g font-family="{_MONO}" font-size="{MONO:g}" fill-opacity=".8">',
        *map(_note, picture.notes),
        "</g></svg>",
    ]
    return "\n".join(parts)


def _frame(placed: Placed) -> str:
    return (
        f'<rect x="{placed.x:.1f}" y="{placed.y:.1f}" width="{placed.width:.1f}" '
        f'height="{placed.height:.1f}" rx="8" fill="{_GREY}" fill-opacity=".07" '
        f'stroke="{_GREY}" stroke-opacity=".55"/>'
    )


def _tab(placed: Placed) -> str:
    """The title of a frame, which hides the line that comes in behind it."""
    x, y, frame = placed.x, placed.y, placed.item
    assert isinstance(frame, Frame)
    tab = sans_width(frame.title, SMALL) + 12
    return (
        f"<g><title>{html.escape(frame.path)}</title>"
        f'<path d="M{x:.1f} {y + TAB:.1f}v-{TAB - 8:g}a8 8 0 0 1 8 -8h{tab - 8:.1f}'
        f'v{TAB - 6:g}a6 6 0 0 1 -6 6z" fill="{_GREY}"/>'
        f'<text x="{x + 7:.1f}" y="{y + 14:.1f}" font-size="{SMALL:g}" fill="#fff">'
        f"{_named(frame.title, frame.path)}</text></g>"
    )


def _named(text: str, path: str) -> str:
    """`name: kind`, the name in bold, if it is that of a stage."""
    name, colon, kind = text.partition(": ")
    if not (path and colon):
        return html.escape(text)
    bold = f'<tspan font-weight="600">{html.escape(name)}</tspan>'
    return f"{bold}: {html.escape(kind)}"


def _box(placed: Placed) -> str:
    box = placed.item
    assert isinstance(box, Box)
    first, *more = box.text.split("\n")
    colour = {"decision": _AMBER, "join": _GREEN, "end": _GREY}.get(
        box.outline, _BLUE if more else _GREY
    )
    paint = f'fill="{colour}" fill-opacity=".16" stroke="{colour}" stroke-width="1.2"'
    middle = placed.x + placed.width / 2
    lines = [
        f'<text x="{middle:.1f}" y="{placed.y + 6 + SANS:.1f}" text-anchor="middle">'
        f"{_named(first, box.path)}</text>"
    ]
    lines += [
        f'<text x="{middle:.1f}" y="{placed.y + 6 + SANS + (i + 1) * (SMALL + 4):.1f}" '
        f'text-anchor="middle" font-size="{SMALL:g}" fill-opacity=".7">'
        f"{html.escape(line)}</text>"
        for i, line in enumerate(more)
    ]
    tip = f"<title>{html.escape(box.path)}</title>" if box.path else ""
    return f"<g>{tip}{_outline(placed, box, paint)}{''.join(lines)}</g>"


def _outline(placed: Placed, box: Box, paint: str) -> str:
    x, y, width, height = placed.x, placed.y, placed.width, placed.height
    if box.outline == "decision":
        slant = 14
        return (
            f'<path d="M{x:.1f} {y + height / 2:.1f}l{slant} -{height / 2:.1f}'
            f"h{width - 2 * slant:.1f}l{slant} {height / 2:.1f}l-{slant} "
            f'{height / 2:.1f}h-{width - 2 * slant:.1f}z" {paint}/>'
        )
    corner = {"end": height / 2, "join": height / 2}.get(box.outline, 6)
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'rx="{corner:.1f}" {paint}/>'
    )


def _line(line: Line) -> str:
    (x, start), (_, bend1), (x2, bend2), (_, end) = line.points
    # A head is 8.5 long; a line up to its tip would make that blunt.
    stop = end - 7 if line.head else end
    half = (bend1 + bend2) / 2
    bent = f"C{x:.1f} {half:.1f} {x2:.1f} {half:.1f} {x2:.1f} {bend2:.1f}"
    path = f"M{x:.1f} {start:.1f}V{bend1:.1f}{bent}V{stop:.1f}"
    # Nobody sees a bend of half a pixel.
    if abs(x - x2) < 0.5:
        path = f"M{x:.1f} {start:.1f}V{stop:.1f}"
    head = ""
    if line.head:
        head = (
            f'<path d="M{x2:.1f} {end - 0.5:.1f}l-4.5 -8.5h9z" fill="currentColor" '
            'stroke="none"/>'
        )
    return f'<path d="{path}"/>{head}'


def _note(note: Note) -> str:
    return "".join(
        f'<text x="{note.x:.1f}" y="{note.y + MONO + i * LINE:.1f}">'
        f"{html.escape(line)}</text>"
        for i, line in enumerate(note.lines)
    )
