"""The error for more dims than a picture has."""

from typing import Any, NoReturn

from .._errors import message
from .scale import columns_of, value_text


def refuse(function: str, array: Any, what: str, dim: Any) -> NoReturn:
    """Raises: there is too much, and selecting a value on `dim` would be less."""
    sizes = ", ".join(f"`{d}`: {n}" for d, n in array.sizes.items())
    name, quoted = str(dim), "0"
    for name, values in columns_of(array, name).items():
        quoted = value_text(values[0])
        if values.dtype.kind not in "iuf":
            quoted = repr(quoted)
        break
    raise ValueError(
        message(
            function,
            f"{what} ({sizes}); a picture shows three unless it is told where others "
            "go.",
            f"Select a value first, `sel={{{name!r}: {quoted}}}`, or say where: `x=`, "
            "`y=` (or `hue=` for lines), `row=` and `col=`.",
        )
    )
