"""`explore`: rounds of points that a method proposes, each swept at once."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import equinox as eqx
import jax.random as jr
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Int

from .._check import check_int, check_key, keywords
from .._errors import describe_value, type_error, value_error
from .._spaces.accept import SpaceLike, as_space
from .._spaces.space import Space
from .._stage.scope import fold
from .._sweep.request import BatchSize, Executor
from .._sweep.results.best import Best, Compared
from .._sweep.results.concat import concat
from .._sweep.results.result import SweepResult
from .._sweep.run import sweep
from .._sweep.sweeper import Sweeper, sweeper
from .._types import Key, PyTree
from .method import Method

if TYPE_CHECKING:
    from pandas import DataFrame
    from xarray import Dataset
else:
    DataFrame = Dataset = Any


class Explored(eqx.Module):
    """All points of a search, in the order in which they were computed.

    `result` is the `SweepResult` of all of them, a table, and `rounds` the number of
    the round of each. `state` is the method's after the last round.
    """

    result: SweepResult
    rounds: Int[np.ndarray, " points"]
    state: PyTree

    def __len__(self) -> int:
        return len(self.result)

    def best(self, by: Compared = None, mode: str = "min") -> Best:
        """The best point of all rounds; see `SweepResult.best`."""
        return self.result.best(by, mode)

    def to_xarray(self) -> Dataset:
        """The table as an `xarray.Dataset` with the coordinate `round`."""
        data = self.result.to_xarray()
        (dim,) = self.result.space.dims
        return data.assign_coords({_free("round", data): (dim, self.rounds)})

    def to_pandas(self) -> DataFrame:
        """The table as a `pandas.DataFrame` with the column `round`."""
        frame = self.result.to_pandas()
        return frame.assign(**{_free("round", frame): self.rounds})

    def __repr__(self) -> str:
        last = int(self.rounds[-1]) + 1
        return f"Explored({len(self)} points in {last} rounds, {self.result!r})"


def _free(name: str, taken: Any) -> str:
    while name in taken:
        name = f"search.{name}"
    return name


@keywords(
    "explore",
    max_rounds="It is called `rounds`.",
    n_trials="Give `rounds=`, and `n=` points in each.",
    direction='Give `mode="max"` to the method.',
)
def explore(
    fn: Callable[..., PyTree],
    space: SpaceLike,
    method: Method[Any],
    *,
    rounds: int,
    n: int,
    key: Key | None = None,
    stop: Callable[[Explored], object] | None = None,
    store: str | os.PathLike[str] | None = None,
    executor: Executor | None = None,
    batch_size: BatchSize = "auto",
    mesh: Mesh | None = None,
    on_error: Literal["raise", "isolate"] = "raise",
) -> Explored:
    """Lets a method propose points of a space, round after round.

    Each round is a sweep of `n` points, which are computed at once. All rounds are one
    program, unless the points have `Static` axes: then one for each of their values.

    **Arguments:**

    - `fn`, `space`, `batch_size`, `mesh`, `on_error`: as in `sweep`.
    - `method`: what proposes points: of `eqx_pipe.search`, or a `Method` of your own.
    - `rounds`: how many rounds at most.
    - `n`: how many points the method is asked for in a round.
    - `key`: for the method and for `fn`. (Keyword only.)
    - `stop`: called after each round with all that is there so far; the search ends
      where it gives something true: `lambda found: len(found) >= 10_000`, or
      `found.result.seconds > 600`. `eqx_pipe.search.stalled` stops where nothing
      better came.
    - `store`: a folder in which each round has a store of its own, `round-0000.zarr`
      and so on. The same call after a kill reads the rounds that are there, lets the
      method propose what it had proposed, and goes on; of the round that was under way
      finished chunks are kept. `fn` is traced in each round then.
    - `executor`: as in `sweep`; needs a `store`.

    **Returns:** an `Explored`.

    **Raises:** `ValueError` if the method proposes no point at all, or if the store is
    that of another search; and as `sweep`.

    **Laws:** round `r` is `sweep(fn, points, key=jax.random.fold_in(key, r))` of the
    points that the method proposes. A search that was killed ends as one that was not.

    !!! example

        >>> import jax
        >>> import eqx_pipe as ep
        >>> import eqx_pipe.search as eps
        >>> space = {"x": ep.Linspace(0, 4, 2)}
        >>> points = eps.design([[0.0], [0.25], [0.5], [1.0]])
        >>> found = ep.explore(lambda p: (p["x"] - 2.0) ** 2, space, points,
        ...                    rounds=2, n=2)
        >>> found.best()
        Best(index=2, value=0, x=2)
        >>> found.to_pandas()["round"].tolist()
        [0, 0, 1, 1]
    """
    whole = as_space("explore", space)
    check_key("explore", key)
    if not isinstance(method, Method):
        raise type_error(
            "explore",
            f"`method` is {describe_value(method)}.",
            "Give a method of `eqx_pipe.search`, such as `search.refine()`, or an "
            "object with `init`, `ask` and `tell`.",
        )
    check_int("explore", "rounds", rounds, 1)
    check_int("explore", "n", n, 1)
    if stop is not None and not callable(stop):
        wrong = f"`stop` is {describe_value(stop)}."
        raise type_error("explore", wrong, "Give a function of the `Explored` so far.")
    if executor is not None and store is None:
        raise value_error(
            "explore",
            "there is an `executor` without a `store`.",
            "Workers are for rounds that are long: give a folder, `store=`, too.",
        )
    options = {"batch_size": batch_size, "mesh": mesh, "on_error": on_error}
    run: _Here | _Stored = _Here(fn, options)
    if store is not None:
        run = _Stored(fn, {**options, "executor": executor}, Path(store))
    results, state = [], method.init(whole, fold(key, "method"))
    for number in range(rounds):
        points, state = method.ask(state, n)
        if not points.size:
            break
        result = run(points, None if key is None else jr.fold_in(key, number), number)
        state = method.tell(state, result)
        results.append(result)
        if stop is not None and stop(_explored(results, state)):
            break
    if not results:
        raise value_error(
            "explore",
            "the method proposed no point in its first round.",
            "A design may be empty, or a state that has ended was gone on with.",
        )
    return _explored(results, state)


def _explored(results: list[SweepResult], state: PyTree) -> Explored:
    lengths = [len(result) for result in results]
    rounds = np.repeat(np.arange(len(results)), lengths)
    return Explored(concat(results), rounds, state)


class _Here:
    """Computes rounds in memory, by one program."""

    def __init__(self, fn: Callable[..., PyTree], options: dict[str, Any]):
        self._fn, self._options = fn, options
        self._run: Sweeper | None = None

    def __call__(self, points: Space, key: Key | None, number: int) -> SweepResult:
        if self._run is None:
            self._run = sweeper(self._fn, points, key=key, **self._options)
        return self._run(points, key=key)


class _Stored:
    """Computes rounds, each in a store, or reads what is there."""

    def __init__(self, fn: Callable[..., PyTree], options: dict[str, Any], path: Path):
        self._fn, self._options, self._path = fn, options, path
        path.mkdir(parents=True, exist_ok=True)

    def __call__(self, points: Space, key: Key | None, number: int) -> SweepResult:
        place = self._path / f"round-{number:04}.zarr"
        try:
            return sweep(self._fn, points, key=key, store=place, **self._options)
        except ValueError as error:
            error.add_note(f"In round {number} of the search in {self._path}.")
            raise
