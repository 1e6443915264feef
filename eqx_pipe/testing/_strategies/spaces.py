"""Strategies for axes, spaces and meshes."""

import math
from typing import Literal

import hypothesis.strategies as st
import jax
import jax.random as jr
import numpy as np
from jax.sharding import AxisType, Mesh
from jaxtyping import Array

from ..._spaces import (
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
from ..._types import PyTree
from .validate import Draw, check_bool, check_int, composite

_NAMES = ("a", "b", "c")
_MESH_AXES = ("data", "model")


@composite
def axes(
    draw: Draw, *, max_size: int = 4, random: bool = True, static: bool = False
) -> Axis:
    """An axis of any kind.

    **Arguments:**

    - `max_size`: the largest number of values. (Keyword only.)
    - `random`: whether axes that need a key (`Random`) are among them. (Keyword only.)
    - `static`: whether `Static` axes are among them. (Keyword only.)

    **Returns:** a strategy. It shrinks to one value, zero.

    **Raises:** `hypothesis.errors.InvalidArgument`, a `TypeError`, if a size is below
    1, or `random` or `static` no bool.

    !!! example

        >>> import eqx_pipe.testing as ept, hypothesis
        >>> @hypothesis.given(ept.axes())
        ... def test_length(axis):
        ...     assert 1 <= len(axis) <= 4
        >>> test_length()
    """
    check_int("axes", "max_size", max_size, 1)
    check_bool("axes", "random", random)
    check_bool("axes", "static", static)
    size = draw(st.integers(1, max_size))
    return _axis(draw, size, random, static, None)


def _axis(draw: Draw, size: int, random: bool, static: bool, dim: str | None) -> Axis:
    numbers = st.integers(-8, 8).map(lambda i: i / 4)
    kinds = ["values", "linspace", "geomspace", "arrays", "mapped"]
    kinds += ["random"] * random + ["static"] * static
    kind = draw(st.sampled_from(kinds))
    # The same draws for every kind: so the first kind is what it shrinks to.
    given = draw(st.lists(numbers, min_size=size, max_size=size))
    lo, hi = given[0], given[-1]
    if kind == "values":
        return Values(np.asarray(given, np.float32), dim=dim)
    if kind == "arrays":
        return Values(np.arange(2 * size, dtype=np.int32).reshape(size, 2), dim=dim)
    if kind == "random":
        return Random(jr.normal, size, dim=dim)
    if kind == "static":
        return Static([f"choice {i}" for i in range(size)], dim=dim)
    if kind == "geomspace":
        return Geomspace(1.0, 10.0 if lo >= 0 else 0.5, size, dim=dim)
    line = Linspace(lo, hi, size, dim=dim)
    return Mapped(_square, line) if kind == "mapped" else line


def _square(value: Array) -> Array:
    return value * value


@composite
def spaces(
    draw: Draw,
    *,
    max_axes: int = 3,
    max_size: int = 3,
    random: bool = True,
    static: bool = False,
) -> Space:
    """A `Space`: products and zips, shared dims, joint designs, slices.

    **Arguments:**

    - `max_axes`: the largest number of axes. (Keyword only.)
    - `max_size`: the largest number of values of an axis. (Keyword only.)
    - `random`: whether there are `Random` axes; the space has a key if so. (Keyword
      only.)
    - `static`: whether there are `Static` axes. (Keyword only.)

    **Returns:** a strategy. It shrinks to one axis with one value.

    **Raises:** `hypothesis.errors.InvalidArgument`, a `TypeError`, if a size is below
    1, or `random` or `static` no bool.

    !!! example

        >>> import eqx_pipe.testing as ept, hypothesis
        >>> @hypothesis.given(ept.spaces(max_axes=2))
        ... def test_size(space):
        ...     assert 1 <= space.size <= 9
        >>> test_size()
    """
    check_int("spaces", "max_axes", max_axes, 1)
    check_int("spaces", "max_size", max_size, 1)
    check_bool("spaces", "random", random)
    check_bool("spaces", "static", static)
    count = draw(st.integers(1, min(max_axes, len(_NAMES))))
    modes: list[Literal["product", "zip"]] = ["product", "zip"]
    mode = draw(st.sampled_from(modes))
    size = draw(st.integers(1, max_size))
    # The same draws for both modes: so the first is what it shrinks to.
    shared = draw(st.booleans()) and mode == "product" and count > 1
    has_design = draw(st.booleans()) and mode == "product" and count < max_axes
    tree: dict[str, PyTree] = {}
    for i, name in enumerate(_NAMES[:count]):
        dim = "both" if shared and i < 2 else None
        length = draw(st.integers(1, max_size))
        length = size if mode == "zip" or dim else length
        tree[name] = _axis(draw, length, random, static, dim)
    if draw(st.booleans()):
        tree["fixed"] = "text"
    if has_design:
        box = {"u": Uniform(0.0, 1.0), "v": Uniform(-1.0, 1.0)}
        tree["design"] = sobol(box, max_size, dim="design").tree
    key = jr.key(draw(st.integers(0, 3))) if random else None
    space = Space(tree, mode=mode, key=key)
    if space.size > 1 and draw(st.booleans()):
        return space[draw(st.integers(0, space.size - 1)) :]
    return space


@composite
def meshes(
    draw: Draw,
    *,
    max_devices: int | None = None,
    max_axes: int = 2,
    explicit: bool = True,
) -> Mesh:
    """A `jax.sharding.Mesh` over some of the local devices.

    To have several devices on a CPU, set `jax.config.update("jax_num_cpu_devices", 8)`
    before JAX is first used.

    **Arguments:**

    - `max_devices`: the largest number of devices; by default all. (Keyword only.)
    - `max_axes`: 1 for one axis, `data`; 2 for `model`, too. (Keyword only.)
    - `explicit`: whether meshes with explicit axes are among those with automatic
        ones. On them JAX asks each operation for a sharding. (Keyword only.)

    **Returns:** a strategy. It shrinks to one device, automatic.

    **Raises:** `hypothesis.errors.InvalidArgument`, a `TypeError`, if a number is below
    1, or `explicit` no bool.

    !!! example

        >>> import eqx_pipe.testing as ept, hypothesis
        >>> @hypothesis.given(ept.meshes(max_devices=1))
        ... def test_size(mesh):
        ...     assert mesh.size == 1
        >>> test_size()
    """
    devices = jax.local_devices()
    if max_devices is None:
        max_devices = len(devices)
    check_int("meshes", "max_devices", max_devices, 1)
    check_int("meshes", "max_axes", max_axes, 1)
    check_bool("meshes", "explicit", explicit)
    most = min(max_devices, len(devices))
    sizes = [2**i for i in range(most.bit_length()) if 2**i <= most]
    shapes = [(n,) for n in sizes]
    if max_axes > 1:
        pairs = [(a, b) for a in sizes for b in sizes]
        shapes += [pair for pair in pairs if math.prod(pair) <= most]
    shape = draw(st.sampled_from(shapes))
    kinds = [AxisType.Auto] + [AxisType.Explicit] * explicit
    kind = draw(st.sampled_from(kinds))
    chosen = np.array(devices[: math.prod(shape)]).reshape(shape)
    return Mesh(chosen, _MESH_AXES[: len(shape)], axis_types=(kind,) * len(shape))
