"""The parts of a sweep, one after the other: traced, compared, and only then computed.

Most sweeps have one part. Those with `Static` axes have one for each combination of
their values.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Float, PyTree

from .._spaces.space import Space
from .._types import Key
from .batching import choose_batch_size
from .execute import execute
from .failure import Failures
from .kernel import Layout
from .plan import chunk_capacity, empty_values
from .points import Listed, Neighbours
from .progress import Progress
from .select import Part, check_agree, parts_of
from .trace import Traced, trace


def sweep_parts(
    fn: Callable[..., Any],
    space: Space,
    key: Key | None,
    batch_size: Any,
    devices: tuple[Any, ...],
    costs: Float[np.ndarray, " points"] | None,
    bar: Progress,
    failures: Failures,
) -> tuple[PyTree, int]:
    """The values at all points of a space, and the batch size."""
    parts = parts_of(space)
    if costs is not None:
        parts = [part.sorted_by(costs) for part in parts]
    traced = [trace("sweep", fn, space, key, part.plain) for part in parts]
    outputs = [jtu.tree_unflatten(each.structure, each.outputs) for each in traced]
    check_agree("sweep", parts, outputs)
    if batch_size == "auto":
        batch_size = min(
            choose_batch_size(
                each.jaxpr, part.size, len(devices), alike=costs is not None
            )
            for each, part in zip(traced, parts, strict=True)
        )
    batch_size = min(int(batch_size), max(part.size for part in parts))
    values = empty_values(space.size, traced[0].stored)
    listed = costs is not None or len(space.static_dims()) > 0
    for part, each in zip(parts, traced, strict=True):
        layout = _layout(space, part, each, batch_size, devices, listed)
        points: Neighbours | Listed
        points = Listed(space, part) if listed else Neighbours(*_window(space))
        execute(each, points, key, layout, bar, values, failures)
    leaves: list[Any] = values
    leaves = [
        leaf if kind is None else jr.wrap_key_data(leaf, impl=kind)
        for leaf, kind in zip(leaves, traced[0].key_kinds, strict=True)
    ]
    return jtu.tree_unflatten(traced[0].structure, leaves), batch_size


def _layout(
    space: Space,
    part: Part,
    traced: Traced,
    batch_size: int,
    devices: Sequence[Any],
    listed: bool,
) -> Layout:
    lengths = tuple(space.grid_dims.values())
    # A listed point takes memory itself.
    row = jax.ShapeDtypeStruct((len(lengths) + 2,), jnp.uint32)
    held = [*traced.outputs, *([row] if listed else [])]
    batch_size = min(batch_size, part.size)
    return Layout(
        lengths=lengths,
        batch_size=batch_size,
        capacity=chunk_capacity(part.size, batch_size, len(devices), held),
        devices=tuple(devices),
        strided=not listed and space.window is not None and space.window[1] != 1,
        wide=space.size > 2**32,
        listed=listed,
    )


def _window(space: Space) -> tuple[int, int, int]:
    return space.window or (0, 1, space.size)
