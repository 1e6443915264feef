"""The points of a call: the function traced for each case, and the batch size."""

import functools as ft
from collections.abc import Callable
from typing import Any, TypeAlias

import jax.tree_util as jtu

from ..._errors import MissingKeyError, log_once, value_error
from ..._jaxprs import settled
from ..._run import error_text
from ..._spaces import Space
from ..._types import Device, Key
from ..._vmap import choose_batch_size, warn_if_it_may_hang
from ..program.layout import CHUNK_BYTES
from ..trace.cases import cases_of, check_agree, naming
from ..trace.kept import Traces, kept
from ..trace.trace import arrays_of, check_concrete, trace
from .points import Points

# Offsets within a call have 32 bits, with room for a tail of one batch more. Batches of
# some thousands are no slower than larger ones.
_AT_ONCE = 2**30


_Options: TypeAlias = tuple[str, bool, bool, bool]
"""The public function, whether failures are isolated, steps counted, arrays copied."""


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
    detached: bool = False,
    lasting: bool = False,
) -> Points:
    """Trace a function on a space, for each combination of static values.

    A trace of an earlier call is used if it would be the same (`kept.py`). An
    automatic batch size is chosen for one of `shares` processes. If failures are
    `isolated`, static values for which tracing the function raises are recorded. With
    `counting`, outputs are `(output, needed, executed)`, with the steps of loops. If
    traces are `detached`, they copy the NumPy arrays of the function. A `lasting` sweep
    may be continued in another process, which computes the same bits.
    """
    geometry = space.geometry
    options = function, isolated, counting, detached
    make = ft.partial(_traced, fn, space, key, options)
    cases, traced, broken = kept(fn, space, key, options, make)
    check_concrete(function, [*arrays_of(geometry, space.key), key])
    adapts, wanted = batch_size == "auto", 0
    if adapts and any(each.has_effects for each in traced):
        batch_size = 1  # without padding that repeats a point, or lanes that wait
    elif adapts:
        choose = ft.partial(choose_batch_size, devices=devices, alike=ordered)
        pairs = [
            (each.analysis, max(1, -(-case.size // shares)))
            for each, case in zip(traced, cases, strict=True)
        ]
        reserved = CHUNK_BYTES // len(devices)
        batch_size = min(choose(each, n, reserved=reserved) for each, n in pairs)
        wanted = min(choose(each, n, reserved=None) for each, n in pairs)
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
    # What a process has computed before must not change the program of a lasting sweep.
    literal = settled([each.fingerprint for each in traced]) or lasting
    points = Points(
        space=space,
        geometry=geometry,
        key=key,
        cases=cases,
        traced=traced,
        batch_size=batch_size,
        devices=devices,
        ordered=ordered,
        most=geometry.size,
        isolated=isolated,
        broken=broken,
        adapts=adapts,
        wanted=wanted,
        literal=literal,
        function=function,
    )
    return points if function == "plan" else points.fitted()


def _traced(
    fn: Callable[..., Any], space: Space, key: Key | None, options: _Options
) -> Traces:
    """Return the cases with their traces, and the cases that raised with their errors.

    Raises the error of the function unless it is isolated and other cases remain.
    """
    function, isolated, counting, detached = options
    geometry, cases, traced, broken = space.geometry, [], [], []
    for case in cases_of(geometry):
        try:
            with naming(case):
                made = trace(function, fn, space, key, case.plain, geometry)
        except MissingKeyError:
            raise
        except Exception as error:
            broken.append((case, error, error_text(error)))
            if not isolated:
                raise
            continue
        cases.append(case)
        traced.append(made)
    if not cases:
        raise broken[0][1]
    for case, _, what in broken:
        text = "eqx_pipe.sweep: `fn` fails for `%s`, which is left out: %s."
        log_once(f"{case.name}: {what}", text, case.name, what)
    outputs = [jtu.tree_unflatten(each.structure, each.outputs) for each in traced]
    check_agree(function, cases, outputs)
    if counting:
        traced = [each.counting() for each in traced]
    if detached:
        traced = [each.detached() for each in traced]
    return cases, traced, tuple((case, what) for case, _, what in broken)
