"""What is lost when numbers are put into the dtype that JAX gives them.

Rounding is allowed. A number that has no place there is refused, and different numbers
that become one are warned of: a sweep would compute the same point many times over.
"""

import warnings
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._errors import message, value_error

_CURE = (
    "Use a wider dtype (64 bits need `jax.config.update('jax_enable_x64', True)` at "
    "the top of the program), or rescale the numbers."
)
_MOST = 2**16
"""More values than this are not compared: it would take longer than to make them."""


def check_fits(
    function: str, name: str, given: Any, dtype: Any, place: str = ""
) -> None:
    """Raises if a number is too large for `dtype`, or so small that it becomes 0.

    `name` is that of the argument, and `place` says in messages where it stands.
    """
    given = np.asarray(given)  # by NumPy throughout: under `jit` arrays are traced
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        fitted = given.astype(dtype)
    kinds = []
    if jnp.issubdtype(dtype, jnp.integer):
        kinds = [(fitted != given, "does not fit")]
    if jnp.issubdtype(dtype, jnp.inexact):
        too_large = np.isfinite(given) & ~np.isfinite(fitted)
        becomes_0 = (given != 0) & (fitted == 0)
        kinds = [(too_large, "is too large for"), (becomes_0, "becomes 0 in")]
    for lost, what in kinds:
        if np.any(lost):
            entry = tuple(int(k) for k in np.argwhere(lost)[0])
            at = f"[{', '.join(map(str, entry))}]" if entry else ""
            number = given[entry].item()
            wrong = f"{place}`{name}{at}` is {number!r}, which {what} {dtype}."
            raise value_error(function, wrong, _CURE)


def warn_if_alike(function: str, given: Any, dtype: Any) -> None:
    """Warns if more than one in a hundred of different numbers become equal."""
    narrower = np.issubdtype(given.dtype, np.floating) and given.dtype != dtype
    if not narrower or not 1 < given.size <= _MOST:
        return
    ordered = np.sort(given, axis=None)
    differ = ordered[1:] != ordered[:-1]
    fitted = ordered.astype(dtype)  # which keeps the order
    alike = differ & (fitted[1:] == fitted[:-1])
    lost, different = int(np.sum(alike)), int(np.sum(differ)) + 1
    if 100 * lost <= different:
        return
    at = int(np.argmax(alike))
    pair = f"{ordered[at].item()!r} and {ordered[at + 1].item()!r}"
    left = f"{different - lost} of {different} different values are left"
    wrong = f"{pair} are the same number in {dtype}: {left}."
    warnings.warn(message(function, wrong, _CURE), stacklevel=3)
