"""Checks of what a `Loader` is given."""

import numpy as np
from jax.sharding import NamedSharding

from .._errors import describe_value, type_error, value_error
from .._stage import as_stage, is_stateful
from .._types import StageLike
from .layout import num_parts


def as_stateless(argument: str, stage: StageLike) -> StageLike:
    """A stage that keeps no state, after a check."""
    stage = as_stage("Loader", argument, stage)
    if is_stateful(stage):
        raise value_error(
            "Loader",
            f"`{argument}` is stateful, and a loader keeps no state.",
            "Call the stage in the training step, which can carry its state.",
        )
    return stage


def check_switch(argument: str, value: object) -> None:
    """Raises a `TypeError` unless `value` is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise type_error(
            "Loader", f"`{argument}` is {describe_value(value)}.", "Give True or False."
        )


def check_size(size: int, batch_size: int, drop_remainder: bool) -> None:
    """Raises a `ValueError` if no batch comes of so many records."""
    if size == 0:
        raise value_error("Loader", "`source` is empty.", "Give one with records.")
    if drop_remainder and batch_size > size:
        raise value_error(
            "Loader",
            f"`batch_size` is {batch_size}, and the source has {size} records: "
            "with `drop_remainder` no batch would be left.",
            f"Give at most {size}, or `drop_remainder=False`.",
        )


def check_sharding(sharding: object, batch_size: int) -> NamedSharding | None:
    """The sharding for batches, after a check that it splits them evenly."""
    if sharding is None:
        return None
    if not isinstance(sharding, NamedSharding):
        raise type_error(
            "Loader",
            f"`sharding` is {describe_value(sharding)}.",
            "Give a `jax.sharding.NamedSharding(mesh, PartitionSpec('data'))`.",
        )
    parts = num_parts(sharding)
    if batch_size % parts:
        below, above = batch_size // parts * parts, -(-batch_size // parts) * parts
        sizes = f"{above}" if below == 0 else f"{below} or {above}"
        raise value_error(
            "Loader",
            f"`batch_size` is {batch_size}, which {sharding.spec} splits into "
            f"{parts} parts.",
            f"Give a batch size that divides by {parts}, such as {sizes}.",
        )
    return sharding
