"""The error for more dims than a picture has."""

from typing import Any, NoReturn

import numpy as np

from .._errors import message
from .scale import columns_of, value_text


def refuse(function: str, array: Any, what: str, dim: Any) -> NoReturn:
    """Raises: there is too much, and selecting a value on `dim` would be less."""
    sizes = ", ".join(f"`{d}`: {n}" for d, n in array.sizes.items())
    columns = columns_of(array, str(dim))
    name, values = next(iter(columns.items()), (str(dim), np.arange(1)))
    value = value_text(values[0])
    quoted = value if values.dtype.kind in "iuf" else repr(value)
    raise ValueError(
        message(
            function,
            f"{what} ({sizes}); a picture shows three unless it is told where others "
            "go.",
            f"Select a value first, `sel={{{name!r}: {quoted}}}`, or say where: `x=`, "
            "`y=` (or `hue=` for lines), `row=` and `col=`.",
        )
    )
