"""The unit cube of a space."""

import jax
from jax.numpy import sin

import eqx_pipe as ep

from .common import ones


def line(n=3):
    return ep.Space({"a": ep.Linspace(0, 1, n)})


UNIT = [
    (
        "no n",
        lambda: ep.Space(ep.Linspace(0, 1)),
        ValueError,
        r"`Linspace\(lo, hi, n\)`",
    ),
    ("flat", lambda: line().from_unit([0.5]), ValueError, r"shape \(points, 1\)"),
    ("text", lambda: line().from_unit("a"), ValueError, r"shape \(points, 1\)"),
    (
        "two that vary together",
        lambda: ep.Space([ep.Values([1], dim="g")] * 2).from_unit([[0, 0]]),
        ValueError,
        "Give each its own dim",
    ),
    (
        "other axes",
        lambda: line().to_unit(ep.Space({"b": ep.Values([1])})),
        ValueError,
        "Give a space with the same axes",
    ),
    (
        "beyond the end",
        lambda: line().to_unit(ep.Space({"a": ep.Values([0.5, 2.0])})),
        ValueError,
        "point 1 lies at 2 of the way .* from one end to the other",
    ),
    (
        "another category",
        lambda: ep.Space(ep.Values([1])).to_unit(ep.Space(ep.Values([2]))),
        ValueError,
        "give points that have one of them",
    ),
    (
        "a mapped range",
        lambda: ep.Space(ep.Mapped(sin, ep.Linspace(0, 1, 2))).to_unit(
            ep.Space(ep.Values([0.5]))
        ),
        TypeError,
        "made by `space.from_unit`",
    ),
    (
        "traced ends",
        lambda: jax.eval_shape(
            lambda hi: ep.Space(ep.Linspace(0, hi, 2)).from_unit([[0.5]])[0], ones()
        ),
        TypeError,
        "Do so outside of `jit`",
    ),
]
