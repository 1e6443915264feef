"""Checks of what a `Loader` is given, and the source put where its batches shall be."""

from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from .._errors import describe_value, message
from .._sharding.mesh import no_context
from .._sharding.place import shard
from .._stage import as_stage, is_stateful
from .prepare import automatic, parts, typed
from .source import DeviceSource, Source


def as_stateless(argument: str, stage: Any) -> Any:
    """A stage that keeps no state, after a check."""
    stage = as_stage("Loader", argument, stage)
    if is_stateful(stage):
        raise ValueError(
            message(
                "Loader",
                f"`{argument}` is stateful, and a loader keeps no state.",
                "Call the stage in the training step, which can carry its state.",
            )
        )
    return stage


def check_switch(argument: str, value: Any) -> None:
    """Raises a `TypeError` unless `value` is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(
            message(
                "Loader",
                f"`{argument}` is {describe_value(value)}.",
                "Give True or False.",
            )
        )


def check_size(size: int, batch_size: int, drop_remainder: bool) -> None:
    """Raises a `ValueError` if no batch comes of so many records."""
    if size == 0:
        raise ValueError(
            message("Loader", "`source` is empty.", "Give one with records.")
        )
    if drop_remainder and batch_size > size:
        raise ValueError(
            message(
                "Loader",
                f"`batch_size` is {batch_size}, and the source has {size} records: "
                "with `drop_remainder` no batch would be left.",
                f"Give at most {size}, or `drop_remainder=False`.",
            )
        )


def check_sharding(sharding: Any, batch_size: int) -> NamedSharding | None:
    """The sharding for batches, after a check that it splits them evenly."""
    if sharding is None:
        return None
    if not isinstance(sharding, NamedSharding):
        raise TypeError(
            message(
                "Loader",
                f"`sharding` is {describe_value(sharding)}.",
                "Give a `jax.sharding.NamedSharding(mesh, PartitionSpec('data'))`.",
            )
        )
    ways = parts(sharding)
    if batch_size % ways:
        below, above = batch_size // ways * ways, -(-batch_size // ways) * ways
        sizes = f"{above}" if below == 0 else f"{below} or {above}"
        raise ValueError(
            message(
                "Loader",
                f"`batch_size` is {batch_size}, which {sharding.spec} splits into "
                f"{ways} parts.",
                f"Give a batch size that divides by {ways}, such as {sizes}.",
            )
        )
    return sharding


def placed(source: Source, sharding: NamedSharding | None) -> Source:
    """A device source on all devices of the mesh, so that no batch moves it again."""
    if sharding is None or not isinstance(source, DeviceSource):
        return source
    devices = sharding.device_set
    arrays = [x for x in jax.tree_util.tree_leaves(source) if eqx.is_array(x)]
    there = all(isinstance(x, jax.Array) and _on(x, devices) for x in arrays)
    with no_context():
        source = source if there else shard(source, automatic(sharding), P())
        # Explicit axes stand in the types of arrays: those of the user's mesh.
        return typed(source, sharding.mesh)


def _on(x: jax.Array, devices: Any) -> bool:
    if isinstance(x, Tracer):
        return True
    return isinstance(x.sharding, NamedSharding) and x.sharding.device_set == devices
