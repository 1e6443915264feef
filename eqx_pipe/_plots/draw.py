"""The picture that fits a dataset: line, heat map, points, parallel axes, in panels."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .._errors import describe_value, nearest, type_error, value_error
from .cloud import MOST_AXES, parallel, scatter
from .colours import COLOURS, bar, colours_of
from .heat import heat
from .line import hue_colours, is_repeated, line
from .marks import kinds, legend, marks_in
from .panels import label_outer, layout_of, subplots
from .pick import pick
from .roles import ROLES, Roles, place_scale, roles_of
from .scale import label_of
from .types import Axes, DataArray, Dataset

_PAINT: Mapping[str, Callable[..., None]] = {
    "line": line,
    "heat": heat,
    "scatter": scatter,
    "parallel": parallel,
}


_INSTEAD = {
    "dims": "Say where each dim goes: `x=`, `y=`, `hue=`, `row=`, `col=`.",
    "dim": "Say where each dim goes: `x=`, `y=`, `hue=`, `row=`, `col=`.",
    "log": 'Colours: `norm="log"`. Axes: `ax.set_xscale("log")` on what is returned.',
    "xscale": "Set it on what is returned: `ax.set_xscale(...)`.",
    "yscale": "Set it on what is returned: `ax.set_yscale(...)`.",
    "xlim": "Set it on what is returned: `ax.set_xlim(...)`.",
    "ylim": "Set it on what is returned: `ax.set_ylim(...)`.",
    "title": "Set it on what is returned: `ax.set_title(...)`.",
    "figsize": "Give an `ax` of that size: `ax=plt.subplots(figsize=(6, 4))[1]`.",
}


def check_no_others(
    function: str, others: Mapping[str, Any], known: Iterable[str]
) -> None:
    """Raises a `TypeError` for the first keyword that is not known."""
    for name in others:
        cure = _INSTEAD.get(name) or nearest(name, known)
        raise type_error(function, f"there is no keyword `{name}`.", cure)


def draw(
    function: str,
    data: Dataset,
    variable: str | None,
    sel: Mapping[str, object] | None,
    options: Mapping[str, Any],
    ax: Axes | None,
    log: frozenset[str],
) -> Any:
    """Draws one variable of a dataset and gives the matplotlib axes.

    `options` are the roles and colours that were asked for, `None` where they were
    not. `log` names coordinates that are shown on a logarithmic scale.
    """
    plt = _pyplot(function)
    asked = {role: options[role] for role in ROLES}
    array, chosen = pick(function, data, variable, sel, asked.values())
    roles = roles_of(function, array, asked)
    _check(function, roles, ax)
    layout = layout_of(function, array, roles, log)
    chosen_colours = {name: options[name] for name in COLOURS}
    if roles.kind == "line":
        colours = hue_colours(function, array, roles, log, chosen_colours)
    else:
        colours = colours_of(function, array.values[kinds(array) == 0], chosen_colours)
    paint, title = _PAINT[roles.kind], ", ".join(chosen)
    marks = [mark for _, mark in marks_in(kinds(array))]
    if layout is None:
        first: Axes = _new_axes(plt, roles) if ax is None else ax
        figure, axes = first.figure, first
        paint(first, array, roles, log, colours)
        first.set_title(title, pad=24 if marks else None)
    else:
        wide = roles.kind == "parallel"
        figure, axes = subplots(plt, layout, wide)
        first = axes.flat[layout.columns - 1]
        for panel, (text, part) in zip(axes.flat, layout.parts, strict=False):
            paint(panel, part, roles, log, colours)
            panel.set_title(text, fontsize="medium")
        label_outer(axes, layout)
        figure.suptitle(title)
    if colours is not None and colours.get_array().size:
        label = label_of(array)
        if roles.kind == "line" and roles.hue is not None:
            label = place_scale(array, roles.hue, log).label
        bar(figure, colours, axes, label)
    elif roles.hue is not None:
        _name_lines(first, array, roles, log)
    if marks and layout is not None:
        legend(figure, marks, roles.kind == "heat", loc="outside lower center")
    elif marks:
        above = (1, 1.06 if roles.kind == "parallel" else 1)  # numbers stand there too
        place = {"loc": "lower right", "bbox_to_anchor": above, "borderaxespad": 0.1}
        legend(first, marks, roles.kind == "heat", **place)
    return axes


def _name_lines(ax: Axes, array: DataArray, roles: Roles, log: frozenset[str]) -> None:
    """A legend beside the lines, which covers none."""
    assert roles.hue is not None, "please report"
    repeated = is_repeated(array, roles.hue)
    title = None if repeated else place_scale(array, roles.hue, log).label
    count = len(ax.get_legend_handles_labels()[0])
    ax.legend(
        title=title,
        loc="upper left",
        bbox_to_anchor=(1, 1),
        frameon=False,
        fontsize="small",
        ncols=-(-count // 20),
    )


def _new_axes(plt: Any, roles: Roles) -> Axes:
    """Those of a new figure; parallel axes take as many inches as they need."""
    width = 1.3 * len(roles.x.columns) if roles.kind == "parallel" else 0
    return plt.subplots(layout="constrained", figsize=(max(6.4, width), 4.8))[1]


def _check(function: str, roles: Roles, ax: Axes | None) -> None:
    """Raises for an `ax` that cannot be drawn into, and more axes than there is room
    for.
    """
    if ax is not None and not hasattr(ax, "pcolormesh"):
        raise type_error(
            function,
            f"`ax` is {describe_value(ax)}.",
            "Give matplotlib `Axes`, such as `plt.subplots()[1]`, or leave it out.",
        )
    if ax is not None and (roles.row or roles.col):
        raise value_error(
            function,
            "`ax` is given, and there are several panels.",
            "Leave it out, or select a value of one dim in `sel=`.",
        )
    columns = roles.x.columns
    if roles.kind == "parallel" and len(columns) > MOST_AXES:
        raise value_error(
            function,
            f"`{roles.x.dim}` has {len(columns)} coordinates.",
            f"At most {MOST_AXES} fit a picture: say which, as in "
            f"`x={columns[0]!r}`, `y={columns[1]!r}`.",
        )


def _pyplot(function: str) -> Any:
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(
            f"`eqx_pipe.{function}` needs matplotlib. Install it by "
            "`pip install 'eqx_pipe[sweep]'`."
        ) from error
    return plt
