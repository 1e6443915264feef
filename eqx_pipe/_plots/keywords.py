"""The error for keywords that a picture does not take."""

from collections.abc import Iterable, Mapping
from typing import Any

from .._errors import message, nearest

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
        raise TypeError(message(function, f"there is no keyword `{name}`.", cure))
