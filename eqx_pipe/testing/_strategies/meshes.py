"""A strategy for meshes."""

import math

import hypothesis.strategies as st
import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from .validate import Draw, check_bool, check_int, composite

_NAMES = ("data", "model")


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
    return Mesh(chosen, _NAMES[: len(shape)], axis_types=(kind,) * len(shape))
