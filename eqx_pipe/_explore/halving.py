"""`halving`: trainings that are carried on in rungs, the worse ones dropped."""

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float, Int

from .._check import check_choice, check_int
from .._errors import describe_value, optional, type_error, value_error
from .._files import as_path
from .._keys import check_key, key_argument
from .._spaces import Space, SpaceLike, Values, as_space, point_key
from .._sweep.results.result import SweepResult
from .._sweep.run import sweep
from .._tree import leaves_with_names
from .._types import Key, PyTree

if TYPE_CHECKING:
    from xarray import Dataset
else:
    Dataset = Any

_BATCH = 256
"""The most trainings of one batch, unless a size is given.

Carries are as large as models, so that a batch of all trainings may not fit.
"""


class Training(eqx.Module):
    """A training that can be carried on.

    - `init(point)` gives the first carry: any pytree of arrays, such as parameters
      and the state of an optimiser.
    - `step(point, carry)` gives the next carry, of the same form.
    - `score(point, carry)` gives a number: how good it is.

    Of an Equinox model carry the arrays, `eqx.filter(model, eqx.is_array)`, and put the
    rest back in `step` and `score` by `eqx.combine`: numbers in a carry become arrays.

    `init` and `step` may take `key=`: a step draws from `fold_in(key, number)` of the
    training's key, the first step having the number 1 and `init` 0.
    """

    init: Callable[..., PyTree]
    step: Callable[..., PyTree]
    score: Callable[[PyTree, PyTree], Any]


class HalvingResult(eqx.Module):
    """What became of each training.

    `scores` has a row for each point and a column for each rung: NaN where a training
    was dropped before. `survivors` are the points that came to the end, the best
    first, and `carry` their carries in this order. `lane_steps` are the steps that
    were needed, and those that were executed, lanes that repeat others included.
    """

    space: Space
    scores: Float[np.ndarray, "points rungs"]
    rungs: tuple[int, ...] = eqx.field(static=True)
    survivors: Int[np.ndarray, " survivors"]
    carry: PyTree
    lane_steps: tuple[int, int] = eqx.field(static=True)

    @property
    def best(self) -> PyTree:
        """The point of the best training."""
        return self.space.point(int(self.survivors[0]))

    def to_xarray(self) -> Dataset:
        """The scores as an `xarray.Dataset` over `point` and `rung`, with the axes."""
        xarray = optional("search.HalvingResult.to_xarray", "xarray")
        frame = self.space.to_pandas()
        columns = {name: ("point", frame[name].to_numpy()) for name in frame}
        coords = columns | {"rung": ("rung", np.array(self.rungs))}
        return xarray.Dataset({"score": (("point", "rung"), self.scores)}, coords)

    def __repr__(self) -> str:
        best = int(self.survivors[0])
        head = f"{len(self.scores):,} trainings, {len(self.survivors):,} to the end"
        lines = [f"HalvingResult({head}; point {best:,} is the best)"]
        width = len(f"{self.rungs[-1]:,}")
        for steps, scores in zip(self.rungs, self.scores.T, strict=True):
            count = int((~np.isnan(scores)).sum())
            what = f"{count:,} trainings, {scores[best]:.6g} by the best of them"
            lines.append(f"  after {steps:>{width},} steps  {what}")
        return "\n".join(lines)


def halving(
    train: Training,
    space: SpaceLike,
    *,
    rungs: Sequence[int],
    eta: int = 3,
    key: Key | None = None,
    mode: str = "min",
    store: str | os.PathLike[str] | None = None,
    batch_size: int | None = None,
    mesh: Mesh | None = None,
) -> HalvingResult:
    """Trains at all points, and carries on with fewer and fewer of them.

    At the end of each rung the best `1/eta` of the trainings go on from where they
    are, at least one; the others are dropped. Those that go on fill the batches again.
    A score of NaN is the worst, and of equal ones the first point goes on. It is
    successive halving, of Jamieson and Talwalkar (2016).

    **Arguments:**

    - `train`: a `Training`: its `init`, `step` and `score`.
    - `space`: as in `sweep`, without `Static` axes.
    - `rungs`: after how many steps in all each rung ends, such as `(10, 30, 90)`.
    - `eta`: of how many trainings one goes on. (Keyword only.)
    - `key`: each training has that of its point in a sweep. (Keyword only.)
    - `mode`: whether a small (`"min"`) or a large score (`"max"`) is good.
    - `store`: a folder in which each rung has a store of its own, with its carries: a
      call after a kill goes on within the rung that was under way.
    - `batch_size`: how many trainings a device computes at once; by default such that
      batches are full.
    - `mesh`: as in `sweep`.

    **Returns:** a `HalvingResult`. One program is compiled for `init`, and one for each
    rung.

    **Raises:** `ValueError` for rungs that do not grow, and for `Static` axes;
    `TypeError` for what is no `Training`; and as `sweep`.

    **Laws:** a training that comes to the end has the carry and the score of the same
    number of steps without halving, to rounding.

    !!! example

        >>> import eqx_pipe as ep
        >>> descent = ep.search.Training(
        ...     init=lambda p: 4.0,
        ...     step=lambda p, x: x - p["rate"] * 2 * x,
        ...     score=lambda p, x: x**2,
        ... )
        >>> rates = {"rate": ep.Geomspace(1e-3, 1.0, 9)}
        >>> found = ep.search.halving(descent, rates, rungs=(1, 3, 9))
        >>> found.survivors.tolist(), round(float(found.best["rate"]), 3)
        ([7], 0.422)
    """
    whole = as_space("search.halving", space)
    check_key("search.halving", key)
    check_choice("search.halving", "mode", mode, ("min", "max"))
    check_int("search.halving", "eta", eta, 2)
    if batch_size is not None:
        check_int("search.halving", "batch_size", batch_size, 1)
    ends = _checked(train, whole, rungs)
    digits = whole.geometry.digits(np.arange(whole.size))
    digits = digits[:, list(whole.geometry.key_dims)].astype(np.uint32)
    folder = None if store is None else as_path("search.halving", store, "store")
    run = _Run(train, whole, key, mesh, folder)
    scores = np.full((whole.size, len(ends)), np.nan)
    left, carry = np.arange(whole.size), None
    needed = executed = done = 0
    for number, end in enumerate(ends):
        size = batch_size
        if size is None:
            size = _fitting(len(left), run.num_devices)
        result = run(number, left, digits[left], carry, (done, end), size)
        score, carry = np.asarray(result.values["score"]), result.values["carry"]
        scores[left, number] = score
        needed += len(left) * (end - done)
        executed += -(-len(left) // size) * size * (end - done)
        losses = score if mode == "min" else -score
        order = np.argsort(np.where(np.isnan(losses), np.inf, losses), kind="stable")
        if number < len(ends) - 1:
            # In the order of points, so that of equal scores the first goes on next
            # time too.
            keep = np.sort(order[: max(1, math.ceil(len(left) / eta))])
        else:
            keep = order
        left, done = left[keep], end
        carry = jax.tree.map(lambda leaf, keep=keep: np.asarray(leaf[keep]), carry)
    return HalvingResult(whole, scores, ends, left, carry, (needed, executed))


def _checked(train: object, space: Space, rungs: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(train, Training):
        raise type_error(
            "search.halving",
            f"`train` is {describe_value(train)}.",
            "Give `eqx_pipe.search.Training(init, step, score)`.",
        )
    for name, axis in space.axes().items():
        if axis.is_static:
            raise value_error(
                "search.halving",
                f"`{name}` is {axis!r}, which is another program for each value.",
                "Halve once for each of its values.",
            )
    if not space.size:
        raise value_error(
            "search.halving", "the space is empty.", "Give at least one point."
        )
    ends = tuple(rungs)
    for end in ends:
        check_int("search.halving", "rungs", end, 1)
    if not ends or list(ends) != sorted(set(ends)):
        raise value_error(
            "search.halving",
            f"`rungs` is {describe_value(rungs)}.",
            "Give after how many steps in all each rung ends, such as (10, 30, 90).",
        )
    return tuple(int(end) for end in ends)


def _fitting(trainings: int, devices: int) -> int:
    """The batch size with which every lane of every batch has a training, nearly."""
    each = -(-trainings // devices)
    return -(-each // -(-each // _BATCH))


def _as_arrays(carry: PyTree) -> PyTree:
    for name, leaf in leaves_with_names(carry):
        if not eqx.is_array_like(leaf):
            raise type_error(
                "search.halving",
                f"`init` gives {describe_value(leaf)} at `{name}`.",
                "Carry arrays, `params, rest = eqx.partition(model, eqx.is_array)`, "
                "and put the rest back in `step` by `eqx.combine(params, rest)`.",
            )
    return jax.tree.map(jnp.asarray, carry)


class _Run:
    """Carries trainings on, one rung at a time."""

    def __init__(
        self,
        train: Training,
        space: Space,
        key: Key | None,
        mesh: Mesh | None,
        store: Path | None,
    ):
        self._train, self._space, self._key = train, space, key
        self._mesh, self._store = mesh, store
        if store is not None:
            store.mkdir(parents=True, exist_ok=True)

    @property
    def num_devices(self) -> int:
        """How many devices share a rung."""
        return jax.local_device_count() if self._mesh is None else self._mesh.size

    def __call__(
        self,
        number: int,
        points: Int[np.ndarray, " points"],
        digits: np.ndarray,
        carry: PyTree,
        steps: tuple[int, int],
        batch_size: int,
    ) -> SweepResult:
        """The carries and scores after a rung, from the carries before it."""
        train, space, key = self._train, self._space, self._key
        first, last = (jnp.asarray(step, jnp.int32) for step in steps)

        def rung(row: PyTree) -> PyTree:
            point = space.point(row["row"])
            own = None
            if key is not None:
                at = [row["digits"][k] for k in range(digits.shape[1])]
                own = point_key(key, at)

            def draws(fn: Callable[..., Any], step: Any) -> dict[str, Any]:
                drawn = None if own is None else jax.random.fold_in(own, step)
                return key_argument(fn, drawn)

            def step(i: Any, carry: PyTree) -> PyTree:
                return train.step(point, carry, **draws(train.step, i + 1))

            begun = row.get("carry")
            if begun is None:
                begun = train.init(point, **draws(train.init, 0))
                begun = _as_arrays(begun)
            # The numbers of steps are values, so that rungs of any length share one
            # program.
            ended = jax.lax.fori_loop(first, last, step, begun)
            return {"carry": ended, "score": train.score(point, ended)}

        table: dict[str, Any] = {"row": Values(points.astype(np.int32))}
        if key is not None:
            table["digits"] = Values(digits)
        if carry is not None:
            table["carry"] = jax.tree.map(Values, carry)
        store = None
        if self._store is not None:
            store = self._store / f"rung-{number}.zarr"
        return sweep(
            rung,
            Space(table, mode="zip"),
            batch_size=batch_size,
            mesh=self._mesh,
            store=store,
        )
