"""Derivatives by finite differences, with error bounds.

Differences of two step sizes give the bounds. If the two disagree, or the slopes on
both sides do, the element is a kink, which is left out and counted. So `jax.nn.relu` at
0 raises no false alarm, nor does a square root.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np

STEPS = (-1, -0.5, 0, 0.5, 1)
"""The places along a direction at which a function is evaluated, in steps."""

if TYPE_CHECKING:
    Numbers: TypeAlias = np.ndarray
else:  # NumPy operations return scalars for arrays without axes
    Numbers = np.ndarray | np.generic


class Slope(NamedTuple):
    """A derivative along a direction by finite differences, element by element.

    `doubt` bounds its error, `noise` is the rounding error, and `smooth` is False at
    kinks.
    """

    value: Numbers
    doubt: Numbers
    noise: Numbers
    smooth: Numbers


def step_of(eps: float) -> float:
    """Return the step for the differences, from the rounding error `eps`."""
    # The truncation error is of order `step**4`, and the rounding error `eps / step`.
    return eps**0.2


def slope(values: Sequence[Numbers], eps: float) -> Slope:
    """Return the slope of five values at `STEPS`."""
    step, v = step_of(eps), np.stack(values)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        wide, half = (v[4] - v[0]) / (2 * step), (v[3] - v[1]) / step
        # Richardson extrapolation cancels the error of order `step**2`.
        value = (4 * half - wide) / 3
        # The slopes to the right and to the left differ by the step times the
        # curvature; a difference that remains as the step goes to zero is a kink.
        near = (v[3] - 2 * v[2] + v[1]) / (step / 2)
        far = (v[4] - 2 * v[2] + v[0]) / step
        doubt = np.abs(wide - half) + np.abs(2 * near - far)
        size = np.max(np.where(np.isfinite(v), np.abs(v), 0), initial=0.0)
        noise = np.broadcast_to(eps * size / step, doubt.shape)
        trusted = doubt <= 0.02 * (np.abs(value) + size) + 1000 * noise
    return Slope(value, doubt, noise, trusted & np.isfinite(v).all(0))


def direction(seed: int, like: Any, scaled_by: Numbers | None = None) -> Numbers:
    """Return numbers between 0.5 and 1 of either sign, the same in every call.

    They are scaled by the numbers that they will change.
    """
    rng = np.random.default_rng(seed)
    # Not near zero, which would move nothing.
    drawn = rng.uniform(0.5, 1, like.shape) * rng.choice([-1, 1], like.shape)
    if jnp.issubdtype(like.dtype, jnp.complexfloating):
        drawn = drawn * np.exp(1j * rng.uniform(0, 2 * np.pi, like.shape))
    if scaled_by is not None:
        size = np.abs(np.asarray(scaled_by).astype(drawn.dtype))
        usual = (size > 0) & np.isfinite(size)
        drawn = drawn * np.where(usual, np.maximum(size, 0.01), 1)
    return np.asarray(drawn).astype(like.dtype)
