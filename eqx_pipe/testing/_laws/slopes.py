"""Derivatives of a function of arrays by differences, and how far to trust them.

Differences of two step sizes tell that: where the two disagree, or the slopes on both
sides do, there is a kink, and that element is left out and counted. So `jax.nn.relu` at
0 is no false alarm, and neither is a root.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..._jaxprs.jaxpr import equations, trace

Arrays: TypeAlias = list[Array]
Call: TypeAlias = Callable[[Arrays], Arrays]
"""A function from arrays of real or complex numbers to such arrays."""


class Slope(NamedTuple):
    """A derivative along a direction by differences, element by element.

    `doubt` bounds its error, `noise` is what rounding makes of that, and `smooth` says
    where there is no kink.
    """

    value: Array
    doubt: Array
    noise: Array
    smooth: Array


class Dots(NamedTuple):
    """A number by differences and by reverse mode, and how far apart they may be."""

    slope: Array
    gradient: Array
    allowed: Array


class Directions(NamedTuple):
    """A point, how its arrays are moved, and by what."""

    inputs: Arrays
    tangents: Arrays
    eps: float

    @property
    def step(self) -> float:
        """For two differences, whose error goes with the fourth power of the step."""
        # There that is as large as rounding, eps / step.
        return self.eps**0.2

    def slopes(self, fn: Call, chosen: list[list[int]]) -> list[list[Slope]]:
        """The outputs' slopes, if one after the other only these inputs are moved."""
        steps = self.step * np.array([-1, -0.5, 0, 0.5, 1])
        rows = np.zeros((len(chosen), 5, len(self.inputs)))
        for row, inside in zip(rows, chosen, strict=True):
            row[:, inside] = steps[:, None]

        def at(row: Array) -> Arrays:
            moving = zip(self.inputs, self.tangents, row, strict=True)
            return fn([v + (c * t).astype(v.dtype) for v, t, c in moving])

        values = jax.lax.map(at, jnp.asarray(rows.reshape(-1, rows.shape[-1])))
        each = [v.reshape(len(chosen), 5, *v.shape[1:]) for v in values]
        return [[self.slope(v[d]) for v in each] for d in range(len(chosen))]

    def slope(self, v: Array) -> Slope:
        """The slope, of values at -1, -1/2, 0, 1/2 and 1 steps."""
        wide, half = (v[4] - v[0]) / (2 * self.step), (v[3] - v[1]) / self.step
        # Richardson's extrapolation: what goes with the square of the step falls out.
        value = (4 * half - wide) / 3
        # The slopes to the right and to the left differ by a step times the curvature;
        # what is left of that for a step of no length is a kink.
        near = (v[3] - 2 * v[2] + v[1]) / (self.step / 2)
        far = (v[4] - 2 * v[2] + v[0]) / self.step
        doubt = jnp.abs(wide - half) + jnp.abs(2 * near - far)
        size = jnp.max(jnp.where(jnp.isfinite(v), jnp.abs(v), 0), initial=0.0)
        noise = jnp.broadcast_to(self.eps * size / self.step, doubt.shape)
        trusted = doubt <= 0.02 * (jnp.abs(value) + size) + 1000 * noise
        return Slope(value, doubt, noise, trusted & jnp.isfinite(v).all(0))

    def dots(
        self, inside: list[int], cotangents: Arrays, slopes: Any, grads: Any
    ) -> Dots:
        """What cotangents make of the slopes along some inputs, and of gradients."""
        left, bounds = [], []
        for c, s in zip(cotangents, slopes, strict=True):
            left.append(jnp.where(s.smooth, jnp.real(c * s.value), 0))
            error = jnp.abs(c) * (2 * s.doubt + 50 * s.noise)
            bounds.append(jnp.where(s.smooth, error, 0))
        right = [jnp.real(grads[i] * self.tangents[i]) for i in inside]
        # Where an output is left out its cotangent is 0, and 0 times an infinite slope
        # is NaN, of which nothing follows.
        all_smooth = jnp.stack([s.smooth.all() for s in slopes]).all()
        known = all_smooth | jnp.isfinite(_total(right))
        size = _total([jnp.abs(v) for v in left + right])
        numbers = (_total(left), _total(right), _total(bounds) + 1e-5 * size)
        return Dots(*(jnp.where(known, v, 0) for v in numbers))


def _total(terms: Arrays) -> Array:
    return sum((jnp.sum(term) for term in terms), jnp.zeros(()))


def direction(rng: np.random.Generator, like: Any, scaled: bool = False) -> Array:
    """Numbers between 0.5 and 1 of either sign; `scaled` by those that they change."""
    # None near zero, by which nothing would be moved.
    drawn = rng.uniform(0.5, 1, like.shape) * rng.choice([-1, 1], like.shape)
    if jnp.issubdtype(like.dtype, jnp.complexfloating):
        drawn = drawn * np.exp(1j * rng.uniform(0, 2 * np.pi, like.shape))
    drawn = jnp.asarray(drawn, like.dtype)
    if not scaled:
        return drawn
    size = jnp.abs(like)
    usual = (size > 0) & jnp.isfinite(size)
    return drawn * jnp.where(usual, jnp.maximum(size, 0.01), 1).astype(drawn.dtype)


def coarsest(call: Call, inputs: Arrays) -> float:
    """The rounding of the coarsest numbers that a function computes with."""
    variables = [v for eqn in equations(trace(call, inputs)) for v in eqn.outvars]
    seen = [v.dtype for v in inputs]
    seen += [getattr(v.aval, "dtype", np.dtype(int)) for v in variables]
    inexact = [dtype for dtype in seen if jnp.issubdtype(dtype, jnp.inexact)]
    return max((float(jnp.finfo(dtype).eps) for dtype in inexact), default=0.0)
