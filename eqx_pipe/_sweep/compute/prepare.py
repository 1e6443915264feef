"""The preparation of `Points`: tracing, comparison of outputs, and the batch size."""

from collections.abc import Callable
from typing import Any

import jax.tree_util as jtu

from ..._errors import MissingKeyError, log_once, value_error
from ..._spaces import Geometry, Space
from ..._types import Device, Key
from ..._vmap import choose_batch_size, warn_if_it_may_hang
from .cases import Case, cases_of, check_agree, naming
from .failure import error_text
from .points import Points
from .rows import CHUNK_BYTES
from .trace import Traced, trace, with_steps

# Offsets within a call have 32 bits, with room for a tail of one batch more. Batches of
# some thousands are no slower than larger ones.
_AT_ONCE = 2**30


def prepare(
    fn: Callable[..., Any],
    space: Space,
    key: Key | None,
    batch_size: Any,
    devices: tuple[Device, ...],
    *,
    ordered: bool = False,
    shares: int = 1,
    isolated: bool = False,
    counting: bool = False,
    function: str = "sweep",
    kept: bool = False,
) -> Points:
    """Trace a function on a space, for each combination of static values.

    An automatic batch size is chosen for one of `shares` processes. If failures are
    `isolated`, static values for which tracing the function raises are recorded. With
    `counting`, outputs are `(output, needed, executed)`, with the steps of loops. If
    traces are `kept` for later calls, they copy the NumPy arrays of the function.
    """
    geometry = space.geometry
    cases, traced, broken = _traced(function, fn, space, key, geometry, isolated)
    outputs = [jtu.tree_unflatten(each.structure, each.outputs) for each in traced]
    check_agree(function, cases, outputs)
    if counting:
        traced = [with_steps(each) for each in traced]
    if kept:
        traced = [each.detached() for each in traced]
    adapts = batch_size in ("auto", "tune")
    if adapts and any(each.has_effects for each in traced):
        batch_size = 1  # without padding that repeats a point, or lanes that wait
    elif adapts:
        batch_size = min(
            choose_batch_size(
                each.analysis,
                max(1, -(-case.size // shares)),
                devices,
                alike=ordered,
                reserved=CHUNK_BYTES // len(devices),
            )
            for each, case in zip(traced, cases, strict=True)
        )
    batch_size = min(int(batch_size), max(1, *(case.size for case in cases)))
    if batch_size > (most := _AT_ONCE // len(devices)):
        raise value_error(
            function,
            f"`batch_size` is {batch_size} on {len(devices)} devices.",
            f"Offsets in a batch have 32 bits: give at most {most}. Batches of some "
            "thousands are no slower.",
        )
    for each in traced:
        warn_if_it_may_hang(batch_size, each.analysis.linalg_limit, devices)
    return Points(
        space=space,
        geometry=geometry,
        key=key,
        cases=cases,
        traced=traced,
        asked=batch_size,
        devices=devices,
        ordered=ordered,
        most=geometry.size,
        isolated=isolated,
        broken=broken,
        adapts=adapts,
        function=function,
    )


def _traced(
    function: str,
    fn: Callable[..., Any],
    space: Space,
    key: Key | None,
    geometry: Geometry,
    isolated: bool,
) -> tuple[list[Case], list[Traced], tuple[tuple[Case, str], ...]]:
    """Return the cases with their traces, and the cases that raised with their errors.

    Raises the error of the function unless it is isolated and other cases remain.
    """
    cases, traced, broken = [], [], []
    for case in cases_of(geometry):
        try:
            with naming(case):
                found = trace(function, fn, space, key, case.plain, geometry)
        except MissingKeyError:
            raise
        except Exception as error:
            broken.append((case, error, error_text(error)))
            if not isolated:
                raise
            continue
        cases.append(case)
        traced.append(found)
    if not cases:
        raise broken[0][1]
    for case, _, what in broken:
        text = "eqx_pipe.sweep: `fn` fails for `%s`, which is left out: %s."
        log_once(f"{case.name}: {what}", text, case.name, what)
    return cases, traced, tuple((case, what) for case, _, what in broken)
