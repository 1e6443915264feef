"""The picture that fits a dataset: line, heat map, small multiples, parallel axes."""

from typing import Any

from .._errors import describe_value, message
from .heat import heat
from .line import line
from .multiples import multiples
from .parallel import columns_of, parallel
from .pick import pick


def draw(
    function: str,
    data: Any,
    variable: Any,
    sel: Any,
    dims: Any,
    ax: Any,
    log: frozenset[str],
) -> Any:
    """Draws one variable of a dataset and gives the matplotlib axes.

    `log` names coordinates that are shown on a logarithmic scale.
    """
    plt = _pyplot(function)
    array, chosen = pick(function, data, variable, sel, dims)
    if ax is not None and not hasattr(ax, "pcolormesh"):
        raise TypeError(
            message(
                function,
                f"`ax` is {describe_value(ax)}.",
                "Give matplotlib `Axes`, such as `plt.subplots()[1]`, or leave it out.",
            )
        )
    title = ", ".join(chosen)
    if array.ndim == 3:
        if ax is not None:
            raise ValueError(
                message(
                    function,
                    "`ax` is given, and three dims need several panels.",
                    "Leave it out, or select a value of one dim in `sel=`.",
                )
            )
        figure, axes = multiples(function, plt, array, log)
        figure.suptitle(title)
        return axes
    if ax is None:
        ax = plt.subplots(layout="constrained")[1]
    if array.ndim == 2:
        ax.figure.colorbar(heat(ax, array, log), ax=ax, label=str(array.name))
    else:
        columns = columns_of(array)
        if len(columns) > 1:
            parallel(function, ax, plt, array, columns)
        else:
            line(ax, array, log)
    ax.set_title(title)
    return ax


def _pyplot(function: str) -> Any:
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(
            f"`eqx_pipe.{function}` needs matplotlib. Install it by "
            "`pip install 'eqx_pipe[sweep]'`."
        ) from error
    return plt
