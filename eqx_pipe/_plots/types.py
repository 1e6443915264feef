"""Types of matplotlib and xarray, which are imported where they are used."""

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from xarray import DataArray as DataArray
    from xarray import Dataset as Dataset
else:
    Axes = DataArray = Dataset = Any

Colours: TypeAlias = Any
"""A `matplotlib.cm.ScalarMappable`, whose annotations say too little of its norm."""

Figure: TypeAlias = Any
"""A `matplotlib.figure.Figure`, or a part of one, which has fewer methods."""
