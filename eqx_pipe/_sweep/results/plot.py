"""The picture of a result, which is drawn from its dataset."""

from typing import TYPE_CHECKING, Any

from ..._plots.draw import draw
from ..._spaces import Geomspace, Space

if TYPE_CHECKING:
    from xarray import Dataset
else:
    Dataset = Any


def plot(
    space: Space,
    data: Dataset,
    variable: str | None,
    sel: Any,
    given: dict[str, Any],
    others: dict[str, object],
    ax: Any,
) -> Any:
    """Draws a variable of the dataset of a space; see `SweepResult.plot`."""
    axes = space.axes().items()
    log = frozenset(name for name, axis in axes if isinstance(axis, Geomspace))
    for name, axis in axes:
        # The numbers of replicates say nothing, as if there were no coordinate.
        dim = (axis.dim or name,)
        beside = [n for n, x in data.coords.items() if x.dims[:1] == dim]
        if axis.replicates is not None and beside == [name]:
            data = data.drop_vars(name)
    return draw(data, variable, sel, given, others, ax, log)
