"""Several results as one."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from ..._errors import describe_value, structure_error, type_error, value_error
from ..._spaces import joined
from ..._tree import differences
from ..store import StoredArray, joined_gaps
from .cells import CellPoints
from .output_coords import coords_texts
from .raised import Raised
from .result import SweepResult
from .steps import Steps


def concat(results: Sequence[SweepResult]) -> SweepResult:
    """Join results; see `SweepResult.concat`."""
    results = list(results) if isinstance(results, Sequence) else [results]
    if not results:
        raise value_error(
            "SweepResult.concat", "`results` is empty.", "Give at least one result."
        )
    for k, result in enumerate(results):
        if not isinstance(result, SweepResult):
            raise type_error(
                "SweepResult.concat",
                f"`results[{k}]` is {describe_value(result)}.",
                "Give a list of what `sweep` returns.",
            )
        if result.points is not None:
            raise type_error(
                "SweepResult.concat",
                f"`results[{k}]` is reduced.",
                "Sweep without `reduce=`, or over all points at once, "
                "`reduce=` with a `store=` that grows.",
            )
        found = differences(results[0].values, result.values, free_axis=0)
        if found:
            raise structure_error(
                "SweepResult.concat",
                f"the outputs of `results[0]` and `results[{k}]` differ: "
                f"{'; '.join(found)}.",
                "Join results of functions that return the same form.",
            )
        if coords_texts(result.output_coords) != coords_texts(results[0].output_coords):
            raise value_error(
                "SweepResult.concat",
                f"`results[0]` and `results[{k}]` have other `output_coords`.",
                "Sweep both with the same ones, or set them aside: "
                "`dataclasses.replace(result, output_coords={})`.",
            )
    values = jtu.tree_map(_joined, *(result.values for result in results))
    counted = [result.steps for result in results if result.steps is not None]
    names = dict.fromkeys(result.function for result in results if result.function)
    return SweepResult(
        values=values,
        space=joined("SweepResult.concat", [result.space for result in results]),
        gaps=joined_gaps([(result.gaps, len(result)) for result in results]),
        batch_size=max(result.batch_size for result in results),
        num_devices=max(result.num_devices for result in results),
        started=min(result.started for result in results),
        seconds=sum(result.seconds for result in results),
        function=", ".join(names),
        raised=_raised(results),
        cells=_cells([result.cells for result in results]),
        output_coords=results[0].output_coords,
        steps=_steps(counted) if len(counted) == len(results) else None,
    )


def _joined(*leaves: Any) -> Any:
    some = [leaf[...] if isinstance(leaf, StoredArray) else leaf for leaf in leaves]
    on_host = not any(isinstance(leaf, jax.Array) for leaf in some)
    return np.concatenate(some) if on_host else jnp.concatenate(some)


def _raised(results: Sequence[SweepResult]) -> Raised | None:
    found: dict[str, list[np.ndarray]] = {}
    first = 0
    for result in results:
        for text, points in (result.raised.by_text() if result.raised else {}).items():
            found.setdefault(text, []).append(first + points)
        first += len(result)
    return Raised.of({text: np.concatenate(points) for text, points in found.items()})


def _cells(some: Sequence[CellPoints | None]) -> CellPoints | None:
    known = [cells for cells in some if cells is not None]
    if len(known) < len(some):
        return None
    return CellPoints(
        np.concatenate([cells.points for cells in known]),
        np.concatenate([cells.failed for cells in known]),
    )


def _steps(counted: Sequence[Steps]) -> Steps:
    return Steps(
        np.concatenate([steps.needed for steps in counted]),
        np.concatenate([steps.executed for steps in counted]),
    )
