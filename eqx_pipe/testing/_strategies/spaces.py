"""A strategy for spaces."""

from collections.abc import Callable, Sequence
from typing import Literal

import hypothesis.strategies as st
import jax.random as jr
import numpy as np
from jaxtyping import Array

from ... import (
    Axis,
    Geomspace,
    Linspace,
    Mapped,
    Random,
    Space,
    Static,
    Uniform,
    Values,
    sobol,
)
from ..._check import check_int
from ..._types import PyTree
from .arrays import Draw, check_strategies

_NAMES = ("a", "b", "c")


_KINDS: dict[str, Callable[[list[float], str | None], Axis]] = {
    "values": lambda v, dim: Values(np.asarray(v, np.float32), dim=dim),
    "linspace": lambda v, dim: Linspace(v[0], v[-1], len(v), dim=dim),
    "geomspace": lambda v, dim: Geomspace(1, 2.0 ** np.sign(v[0]), len(v), dim=dim),
    "arrays": lambda v, dim: Values(np.stack([v, v], -1).astype(np.int32), dim=dim),
    "mapped": lambda v, dim: Mapped(_square, Linspace(v[0], v[-1], len(v), dim=dim)),
    "random": lambda v, dim: Random(jr.normal, len(v), dim=dim),
    "static": lambda v, dim: Static([f"choice {i}" for i in range(len(v))], dim=dim),
}


def _axis(draw: Draw, size: int, static: bool, dim: str | None) -> Axis:
    """Draw an axis of any kind."""
    numbers = st.integers(-8, 8).map(lambda i: i / 4)
    kind = draw(st.sampled_from([k for k in _KINDS if static or k != "static"]))
    # Every kind uses the same draws, so all shrink to the first kind.
    return _KINDS[kind](draw(st.lists(numbers, min_size=size, max_size=size)), dim)


def _square(value: Array) -> Array:
    return value * value


@st.composite
def spaces(
    draw: Draw,
    *,
    axes: Sequence[st.SearchStrategy[Axis]] = (),
    max_axes: int = 3,
    max_size: int = 3,
    static: bool = False,
) -> Space:
    """Draw a `Space`: a product or zip, with shared dims, joint designs and slices.

    **Arguments:**

    - `axes`: strategies of your own axes; every product without shared dims contains
        one. (Keyword only.)
    - `max_axes`: the largest number of axes. (Keyword only.)
    - `max_size`: the largest number of values of an axis. (Keyword only.)
    - `static`: whether to draw `Static` axes. (Keyword only.)

    **Returns:** a strategy. Examples shrink to one axis with one value.

    **Raises:** when drawn, `hypothesis.errors.InvalidArgument`, a `TypeError`, if
    `axes` is not a list of strategies; `ValueError` if `max_axes` or `max_size` is
    below 1.

    !!! example

        >>> import eqx_pipe.testing as ept, hypothesis
        >>> @hypothesis.given(ept.spaces(max_axes=2))
        ... def test_size(space):
        ...     assert 1 <= space.size <= 9
        >>> test_size()
    """
    check_strategies("spaces", "axes", axes)
    check_int("testing.spaces", "max_axes", max_axes, 1)
    check_int("testing.spaces", "max_size", max_size, 1)
    count = draw(st.integers(1, min(max_axes, len(_NAMES))))
    modes: list[Literal["product", "zip"]] = ["product", "zip"]
    mode = draw(st.sampled_from(modes))
    size = draw(st.integers(1, max_size))
    # Both modes use the same draws, so both shrink to the first mode.
    shared = draw(st.booleans()) and mode == "product" and count > 1
    has_design = draw(st.booleans()) and mode == "product" and count < max_axes
    tree: dict[str, PyTree] = {}
    for i, name in enumerate(_NAMES[:count]):
        dim = "both" if shared and i < 2 else None
        length = draw(st.integers(1, max_size))
        length = size if mode == "zip" or dim else length
        tree[name] = _axis(draw, length, static, dim)
    if axes and mode == "product" and not shared:
        tree["own"] = draw(draw(st.sampled_from(list(axes))))
    if draw(st.booleans()):
        tree["fixed"] = "text"
    if has_design:
        box = {"u": Uniform(0.0, 1.0), "v": Uniform(-1.0, 1.0)}
        tree["design"] = sobol(box, max_size, dim="design").tree
    space = Space(tree, mode=mode, key=jr.key(draw(st.integers(0, 3))))
    if space.size > 1 and draw(st.booleans()):
        return space[draw(st.integers(0, space.size - 1)) :]
    return space
