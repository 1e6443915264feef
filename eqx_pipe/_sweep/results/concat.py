"""Several results, concatenated to one."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from ..._errors import describe_value, structure_error, type_error, value_error
from ..._spaces import joined
from ..._tree import differences
from ..._types import PyTree
from ..store import StoredArray, joined_gaps
from .output_coords import coords_texts

if TYPE_CHECKING:
    from .result import SweepResult
else:
    SweepResult = Any

_FUNCTION = "SweepResult.concat"


def concat(cls: type[SweepResult], results: Sequence[SweepResult]) -> SweepResult:
    """Concatenate several results: their points and values, in order.

    Use it for rounds of a search, a wider space, or recomputed points. A point that
    several results have appears several times.

    **Arguments:**

    - `results`: at least one `SweepResult`, none of them reduced. Their spaces must
      have the same axes, and their outputs the same structure, shapes and dtypes.
      Values in a store are read into memory.

    **Returns:** a `SweepResult` with one dim named `point`. Its space is a part of
    a grid if all results are parts of that grid; otherwise a table with `Values` and
    `Static` axes. `seconds` is the sum over results, `started` the earliest time, and
    `batch_size` and `num_devices` are the largest.

    **Raises:** `ValueError` for an empty list, or if axes or constants of the spaces
    differ; `StructureError` if outputs differ in structure, shape or dtype; `TypeError`
    for other objects, or a reduced result.

    **Laws:** `SweepResult.concat([result[a], result[b]])` is `result[[*a, *b]]`.

    !!! example

        >>> import eqx_pipe as ep
        >>> near = ep.sweep(lambda p: p["x"] ** 2, {"x": ep.Linspace(0, 1, 3)})
        >>> far = ep.sweep(lambda p: p["x"] ** 2, {"x": ep.Values([2.0, 3.0])})
        >>> ep.SweepResult.concat([near, far]).values.tolist()
        [0.0, 0.25, 1.0, 4.0, 9.0]
    """
    results = list(results) if isinstance(results, Sequence) else [results]
    if not results:
        raise value_error(_FUNCTION, "`results` is empty.", "Give at least one result.")
    for k, result in enumerate(results):
        _check(cls, k, result, results[0])
    names = dict.fromkeys(result.function for result in results if result.function)
    values, steps, cells = (
        _joined([getattr(result, name) for result in results])
        for name in ("values", "steps", "cells")
    )
    return cls(
        values=values,
        space=joined(_FUNCTION, [result.space for result in results]),
        _gaps=joined_gaps([(result._gaps, len(result)) for result in results]),
        batch_size=max(result.batch_size for result in results),
        num_devices=max(result.num_devices for result in results),
        started=min(result.started for result in results),
        seconds=sum(result.seconds for result in results),
        function=", ".join(names),
        _errors=_errors(results),
        cells=cells,
        output_coords=results[0].output_coords,
        steps=steps,
    )


def _check(cls: type[SweepResult], k: int, result: object, first: SweepResult) -> None:
    """Raise unless a result can follow the first one."""
    if not isinstance(result, cls) or result.points is not None:
        what = "reduced" if isinstance(result, cls) else describe_value(result)
        raise type_error(
            _FUNCTION,
            f"`results[{k}]` is {what}.",
            "Give a list of results of `sweep` with the values at all points, that "
            "is, without `reduce=`.",
        )
    found = differences(first.values, result.values, free_axis=0)
    if found:
        raise structure_error(
            _FUNCTION,
            f"the outputs of `results[0]` and `results[{k}]` differ: "
            f"{'; '.join(found)}.",
            "Join results of functions that return the same structure.",
        )
    if coords_texts(result.output_coords) != coords_texts(first.output_coords):
        raise value_error(
            _FUNCTION,
            f"`results[0]` and `results[{k}]` have different `output_coords`.",
            "Sweep both with the same ones, or drop them: "
            "`dataclasses.replace(result, output_coords={})`.",
        )


def _joined(trees: Sequence[PyTree]) -> PyTree:
    """Return pytrees joined along their leading axis; `None` if one of them is."""
    return (
        None
        if any(tree is None for tree in trees)
        else jtu.tree_map(_concatenated, *trees)
    )


def _concatenated(*leaves: Any) -> Any:
    some = [leaf[...] if isinstance(leaf, StoredArray) else leaf for leaf in leaves]
    on_host = not any(isinstance(leaf, jax.Array) for leaf in some)
    return np.concatenate(some) if on_host else jnp.concatenate(some)


def _errors(results: Sequence[SweepResult]) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    first = 0
    for result in results:
        for text, points in result._errors.items():
            found[text] = np.append(found.get(text, points[:0]), first + points)
        first += len(result)
    return found
