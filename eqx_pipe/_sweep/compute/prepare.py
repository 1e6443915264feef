"""From a function and a space to a `Job`: traced, compared, with a batch size.

A function is traced once for each combination of `Static` values, and all of these are
compared before anything is computed.
"""

from collections.abc import Callable
from typing import Any

import jax.tree_util as jtu

from ..._errors import MissingKeyError, log_once, value_error
from ..._spaces import Geometry, Space
from ..._types import Device, Key
from ..._vmap import choose_batch_size, warn_if_it_may_hang
from ..tracing.steps import with_steps
from ..tracing.trace import Traced, trace
from .failure import error_text
from .job import Job
from .points import Part, check_agree, naming, parts_of
from .sizes import CHUNK_BYTES

# Offsets within a call are int32, with room for a tail of one batch more.
_AT_ONCE = 2**30


def prepare(
    fn: Callable[..., Any],
    space: Space,
    key: Key | None,
    batch_size: Any,
    devices: tuple[Device, ...],
    costs: bool,
    shares: int = 1,
    isolated: bool = False,
    counting: bool = False,
    function: str = "sweep",
) -> Job:
    """Traces a function on a space, for each combination of static values.

    An automatic batch size is chosen for one of `shares` processes. Where failures are
    `isolated`, values for which the function raises when it is traced are set apart.
    With `counting` outputs are `(output, needed, executed)`, with steps of loops.
    """
    geometry = space.geometry
    parts, traced, broken = _traced(function, fn, space, key, geometry, isolated)
    outputs = [jtu.tree_unflatten(each.structure, each.outputs) for each in traced]
    check_agree(function, parts, outputs)
    if counting:
        traced = [with_steps(each) for each in traced]
    auto = batch_size in ("auto", "tune")
    if auto and any(each.has_effects for each in traced):
        batch_size = 1  # no tail that repeats a point, no lanes that wait
    elif auto:
        batch_size = min(
            choose_batch_size(
                each.analysis,
                max(1, -(-part.size // shares)),
                devices,
                alike=costs,
                reserved=CHUNK_BYTES // len(devices),
            )
            for each, part in zip(traced, parts, strict=True)
        )
    batch_size = min(int(batch_size), max(1, *(part.size for part in parts)))
    _check_at_once(function, batch_size, len(devices))
    for each in traced:
        warn_if_it_may_hang(batch_size, each.analysis.linalg_limit, devices)
    return Job(
        space=space,
        geometry=geometry,
        key=key,
        parts=parts,
        traced=traced,
        batch_size=batch_size,
        devices=devices,
        costs=costs,
        stretch=geometry.size,
        isolated=isolated,
        broken=broken,
        adapts=auto,
        function=function,
    )


def _traced(
    function: str,
    fn: Callable[..., Any],
    space: Space,
    key: Key | None,
    geometry: Geometry,
    isolated: bool,
) -> tuple[list[Part], list[Traced], tuple[tuple[Part, str], ...]]:
    """The parts with what was traced for them, and those for which nothing could be.

    Raises what the function raised if that is to be, or if nothing else is left.
    """
    parts, traced, broken = [], [], []
    for part in parts_of(geometry):
        try:
            with naming(part):
                found = trace(function, fn, space, key, part.plain, geometry)
        except MissingKeyError:
            raise
        except Exception as error:
            broken.append((part, error, error_text(error)))
            if not isolated:
                raise
            continue
        parts.append(part)
        traced.append(found)
    if not parts:
        raise broken[0][1]
    for part, _, what in broken:
        text = "eqx_pipe.sweep: `fn` fails for `%s`, which is left out: %s."
        log_once(f"{part.name}: {what}", text, part.name, what)
    return parts, traced, tuple((part, what) for part, _, what in broken)


def _check_at_once(function: str, batch_size: int, num_devices: int) -> None:
    most = _AT_ONCE // num_devices
    if batch_size > most:
        raise value_error(
            function,
            f"`batch_size` is {batch_size} on {num_devices} devices.",
            f"Points computed at once are counted in 32 bits: give at most {most}. "
            "Batches of some thousands are no slower.",
        )
