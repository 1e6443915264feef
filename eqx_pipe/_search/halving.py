"""`halving`: training in rungs, after each of which the worst runs are dropped."""

import dataclasses
import math
import operator
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float, Int

from .._check import check_choice, check_int, check_is
from .._errors import describe_value, optional, type_error, value_error
from .._files import as_path
from .._keys import check_key, key_argument
from .._mesh_context import check_mesh
from .._spaces import Space, SpaceLike, Values, as_space
from .._sweep import Best, Sweeper, ranked, request_of, scores
from .._tree import leaves_with_names
from .._types import Key, PyTree
from .._vmap import warn_if_cores_idle
from .method import as_texts

if TYPE_CHECKING:
    from xarray import Dataset
else:
    Dataset = Any

_BATCH = 256
"""The maximum number of trainings in a batch, unless `batch_size` is given.

Carries are as large as models, so a batch of all trainings may not fit into memory.
"""


class Training(eqx.Module):
    """A training that can be resumed.

    - `init(point)` returns the first carry: any pytree of arrays, such as parameters
      and the state of an optimiser, or a `TrainState` of Flax.
    - `step(point, carry)` returns the next carry, of the same structure, shapes and
      dtypes.
    - `score(point, carry)` returns a number by which trainings are compared.

    For an Equinox model, carry only its arrays, `eqx.filter(model, eqx.is_array)`, and
    add the rest in `step` and `score` by `eqx.combine`, since numbers in a carry become
    arrays.

    `init` and `step` may have a parameter `key`: step `k`, counted from 1, gets
    `fold_in(key, k)` of the training's key, and `init` gets `fold_in(key, 0)`.
    """

    init: Callable[..., PyTree]
    step: Callable[..., PyTree]
    score: Callable[[PyTree, PyTree], Any]


class HalvingResult(eqx.Module):
    """The trainings of `halving`, with their scores.

    `scores` has a row for each point and a column for each rung, with NaN after a
    training was dropped. `survivors` are the indices of the points that completed the
    last rung, the best first, and `carry` has their carries in this order. `steps` are
    the numbers of steps needed and executed; the latter includes padded lanes.
    """

    space: Space
    scores: Float[np.ndarray, "points rungs"]
    rungs: tuple[int, ...] = eqx.field(static=True)
    survivors: Int[np.ndarray, " survivors"]
    carry: PyTree
    steps: tuple[int, int] = eqx.field(static=True)

    def best(self) -> Best:
        """Return the best training: `value` is its score, `output` its carry.

        **Raises:** `ValueError` if no training completed the last rung with a score.
        """
        if not len(self.survivors):
            raise value_error(
                "search.HalvingResult.best",
                "no training has a score that is a number.",
                "Look at `.scores`.",
            )
        i = int(self.survivors[0])
        columns = self.space[[i]].geometry.columns()
        coordinates = {name: column[0] for name, column in columns.items()}
        carry = jax.tree.map(lambda leaf: leaf[0], self.carry)
        return Best(
            i, self.space.point(i), float(self.scores[i, -1]), carry, coordinates
        )

    def to_xarray(self) -> Dataset:
        """Return the scores as a Dataset over `point` and `rung`, with the axes."""
        xarray = optional("search.HalvingResult.to_xarray", "xarray")
        frame = self.space.to_pandas()
        columns = {name: ("point", frame[name].to_numpy()) for name in frame}
        coords = columns | {"rung": ("rung", np.array(self.rungs))}
        return xarray.Dataset({"score": (("point", "rung"), self.scores)}, coords)

    def __repr__(self) -> str:
        came = f"{len(self.scores):,} trainings, {len(self.survivors):,} to the end"
        best = f"point {self.survivors[0]:,} is the best" if len(self.survivors) else ""
        return f"HalvingResult({came}; {best or 'none has a score'})"


def halving(
    train: Training,
    space: SpaceLike,
    *,
    rungs: Sequence[int],
    eta: int = 3,
    key: Key | None = None,
    mode: Literal["min", "max"] = "min",
    store: str | os.PathLike[str] | None = None,
    batch_size: int | None = None,
    mesh: Mesh | None = None,
) -> HalvingResult:
    """Train at all points, and after each rung continue only the best.

    At the end of each rung the best `1/eta` of the trainings, at least one, continue
    from their carries; the others are dropped. The remaining trainings are packed into
    full batches again. A training whose score is NaN is dropped; of equal scores, the
    lower index continues. This is successive halving (Jamieson and Talwalkar, 2016).

    **Arguments:**

    - `train`: a `Training`: its `init`, `step` and `score`.
    - `space`: as in `sweep`, without `Static` axes.
    - `rungs`: the total number of steps at the end of each rung, such as
      `(10, 30, 90)`. (Keyword only.)
    - `eta`: one of every `eta` trainings continues. (Keyword only.)
    - `key`: a PRNG key; each training gets the key of its point in a sweep. (Keyword
      only.)
    - `mode`: whether a small (`"min"`) or a large score (`"max"`) is better. (Keyword
      only.)
    - `store`: a folder that contains one store for each rung, with its carries. After a
      kill, the same call resumes within the unfinished rung. A call with other
      settings raises before it writes anything, but `rungs` may be appended. (Keyword
      only.)
    - `batch_size`: the number of trainings that a device computes at once; by default
      chosen so that batches are full. (Keyword only.)
    - `mesh`: as in `sweep`. (Keyword only.)

    **Returns:** a `HalvingResult`. One program is compiled for `init`, and one for each
    rung.

    **Raises:** `ValueError` if `rungs` do not increase, if the space is empty, or for
    `Static` axes; `TypeError` if `train` is not a `Training`; and as `sweep`.

    **Laws:** a training that completes the last rung has the carry and the score of the
    same number of steps without halving, to rounding.

    !!! example

        >>> import eqx_pipe as ep
        >>> descent = ep.search.Training(
        ...     init=lambda p: 4.0,
        ...     step=lambda p, x: x - p["rate"] * 2 * x,
        ...     score=lambda p, x: x**2,
        ... )
        >>> rates = {"rate": ep.Geomspace(1e-3, 1.0, 9)}
        >>> found = ep.search.halving(descent, rates, rungs=(1, 3, 9))
        >>> found.survivors.tolist(), round(float(found.best().point["rate"]), 3)
        ([7], 0.422)
    """
    whole = as_space("search.halving", space)
    check_key("search.halving", key)
    check_choice("search.halving", "mode", mode, ("min", "max"))
    check_int("search.halving", "eta", eta, 2)
    if batch_size is not None:
        check_int("search.halving", "batch_size", batch_size, 1)
    if mesh is not None:
        check_mesh("search.halving", mesh)
    ends = _checked(train, whole, rungs)
    folder = None if store is None else as_path("search.halving", store, "store")
    settings = {"eta": operator.index(eta), "mode": mode}
    settings |= {f"rungs[{k}]": end for k, end in enumerate(ends)}
    texts = None if folder is None else as_texts(settings)
    devices = jax.local_device_count() if mesh is None else mesh.size
    kept_scores = np.full((whole.size, len(ends)), np.nan)
    left = np.arange(whole.size)
    leaves: list[np.ndarray] = []
    needed = executed = done = 0
    for number, end in enumerate(ends):
        if not len(left):
            break
        size = _fitting(len(left), devices) if batch_size is None else batch_size
        table: dict[str, Any] = {"row": Values(left.astype(np.int32))}
        if number:
            table["carry"] = list(map(Values, leaves))
        request = request_of(
            "search.halving",
            _rung(train, whole, key, (done, end)),
            Space(table, mode="zip"),
            batch_size=size,
            mesh=mesh,
            store=None if folder is None else folder / f"rung-{number}.zarr",
        )
        request = dataclasses.replace(request, search=texts)
        warn_if_cores_idle(request.devices, mesh)
        values = Sweeper(request).run(request.space, None, request.store).values
        score = scores("search.halving", values, len(left), "score")
        kept_scores[left, number] = score
        needed += len(left) * (end - done)
        executed += -(-len(left) // size) * size * (end - done)
        keep = ranked(score, mode, ~np.isnan(score))
        if number < len(ends) - 1:
            # Keep the order of points, so that of equal scores the first point also
            # continues in the next rung.
            keep = np.sort(keep[: max(1, math.ceil(len(left) / eta))])
        left, done = left[keep], end
        leaves = [np.asarray(leaf[keep]) for leaf in values["carry"]]
    # Static fields may contain numbers of the point; take those of the best training.
    best = int(left[0]) if len(left) else 0
    first = _begun(train, whole.point(best), whole.point_key(best, key=key))
    carry = jtu.tree_unflatten(jtu.tree_structure(first), leaves)
    return HalvingResult(whole, kept_scores, ends, left, carry, (needed, executed))


def _checked(train: object, space: Space, rungs: Sequence[int]) -> tuple[int, ...]:
    cure = "Give `eqx_pipe.search.Training(init, step, score)`."
    check_is("search.halving", "train", train, Training, cure)
    for name, axis in space.axes().items():
        if axis.is_static:
            raise value_error(
                "search.halving",
                f"it does not support Static axes, such as `{name}`, {axis!r}.",
                "Run it once for each value of this axis.",
            )
    if not space.size:
        raise value_error(
            "search.halving", "the space is empty.", "Give at least one point."
        )
    ends = tuple(rungs) if isinstance(rungs, Iterable) else ()
    for k, end in enumerate(ends):
        check_int("search.halving", f"rungs[{k}]", end, 1)
    if not ends or list(ends) != sorted(set(ends)):
        raise value_error(
            "search.halving",
            f"`rungs` is {describe_value(rungs)}.",
            "Give the total steps after which each rung ends, such as `(10, 30, 90)`.",
        )
    return tuple(int(end) for end in ends)


def _fitting(trainings: int, devices: int) -> int:
    """Return a batch size for which nearly every lane of a batch has a training."""
    each = -(-trainings // devices)
    return -(-each // -(-each // _BATCH))


def _draws(fn: Callable[..., Any], key: Key | None, number: Any) -> dict[str, Any]:
    """Return the key of a step as a keyword argument, if the function takes one."""
    step_key = None if key is None else jax.random.fold_in(key, number)
    return key_argument(fn, step_key)


def _begun(train: Training, point: PyTree, key: Key | None) -> PyTree:
    """Return the first carry, with numbers as arrays."""
    carry = train.init(point, **_draws(train.init, key, 0))
    for name, leaf in leaves_with_names(carry):
        if not eqx.is_array_like(leaf):
            raise type_error(
                "search.halving",
                f"`init` returned {describe_value(leaf)} at `{name}`.",
                "Carry arrays, `params, rest = eqx.partition(model, eqx.is_array)`, "
                "and put the rest back in `step` by `eqx.combine(params, rest)`.",
            )
    return jax.tree.map(jnp.asarray, carry)


def _rung(
    train: Training, space: Space, key: Key | None, steps: tuple[int, int]
) -> Callable[[PyTree], PyTree]:
    """Return the function of a row that continues its training by some steps.

    A carry is passed from rung to rung as its leaves. Static fields, such as the
    optimiser in a `TrainState` of Flax, may contain numbers of the point, which are
    traced again in each rung: `init` returns them, and XLA drops its other results.
    """
    # The numbers of steps are arrays, so that rungs of any length share one program.
    first, last = (jnp.asarray(step, jnp.int32) for step in steps)

    def rung(row: PyTree) -> PyTree:
        point = space.point(row["row"])
        point_key = space.point_key(row["row"], key=key)

        def step(i: Any, carry: PyTree) -> PyTree:
            return train.step(point, carry, **_draws(train.step, point_key, i + 1))

        carry = _begun(train, point, point_key)
        if "carry" in row:
            carry = jtu.tree_unflatten(jtu.tree_structure(carry), row["carry"])
        carry = jax.lax.fori_loop(first, last, step, carry)
        score = train.score(point, carry)
        return {"carry": jtu.tree_leaves(carry), "score": score}

    return rung
