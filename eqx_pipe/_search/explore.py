"""`explore`: rounds of points that a method proposes, each swept at once."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeAlias

import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
from jax.sharding import Mesh

from .._check import check_bool, check_choice, check_int, check_is
from .._errors import describe_value, type_error, value_error
from .._files import as_path
from .._keys import check_key, fold
from .._progress import Progress, Watched
from .._spaces import Space, SpaceLike, as_space
from .._sweep import (
    BatchSize,
    Compared,
    Executor,
    Sweeper,
    SweepResult,
    request_of,
    scores,
)
from .._types import Key, PyTree
from .method import Method, losses
from .result import SearchResult, place_of

Stop: TypeAlias = Callable[[SearchResult], object]
"""A condition for the end of a search, asked for after each round."""


def explore(
    fn: Callable[..., PyTree],
    space: SpaceLike,
    method: Method[Any],
    *,
    rounds: int,
    num: int,
    by: Compared = None,
    mode: Literal["min", "max"] = "min",
    key: Key | None = None,
    stop: Stop | None = None,
    store: str | os.PathLike[str] | None = None,
    executor: Executor | None = None,
    batch_size: BatchSize = "auto",
    mesh: Mesh | None = None,
    on_error: Literal["raise", "mark"] = "raise",
    progress: bool | None = None,
) -> SearchResult:
    """Let a method propose points of a space, round after round.

    Each round is a sweep of `num` points, which are computed at once. All rounds are
    one program, unless the points have `Static` axes: then one for each of their
    values.

    **Arguments:**

    - `fn`, `space`, `batch_size`, `mesh`, `on_error`: as in `sweep`. The axes of a
      search are `Uniform` and `LogUniform` for numbers, `Values` and `Static` for
      categories; see `Space.from_unit`.
    - `method`: proposes points: one of `eqx_pipe.search`, or a `Method` of your own.
    - `rounds`: the largest number of rounds.
    - `num`: the number of points that the method is asked for in a round.
    - `by`: the number to optimise: the path of a scalar output, or a function of the
      output; not needed if the output is one number. (Keyword only.)
    - `mode`: `"min"` or `"max"`. (Keyword only.)
    - `key`: for the method and for `fn`. (Keyword only.)
    - `stop`: called after each round with the `SearchResult` so far; the search ends
      if it returns true: `lambda found: len(found) >= 1000`. `found.best()` raises
      until a point has a number. (Keyword only.)
    - `store`: a folder in which each round has a store of its own, `round-0000.zarr`
      and so on. The same call after a kill reads the rounds that are there, lets the
      method propose what it had proposed, and goes on; of the round that was under way
      finished chunks are kept. `SearchResult.load` reads the folder at any time.
    - `executor`: as in `sweep`; needs a `store`.
    - `progress`: whether there is a bar of the rounds with the best number so far,
      below which a long round has its own; by default if somebody can see it. In a file
      it is a line a minute.

    **Returns:** a `SearchResult`.

    **Raises:** `ValueError` if the method proposes no point at all, or if the store
    belongs to another search; and as `sweep`.

    After Ctrl-C the `KeyboardInterrupt` has as `.result` a `SearchResult` of all that
    is finished.

    **Laws:** round `r` is `sweep(fn, points, key=jax.random.fold_in(key, r))` of the
    points that the method proposes, to rounding. A search that was killed ends as one
    that was not.

    !!! example

        >>> import eqx_pipe as ep
        >>> space = {"x": ep.Uniform(0, 4)}
        >>> points = ep.search.Design([[0.0], [0.25], [0.5], [1.0]])
        >>> found = ep.search.explore(lambda p: (p["x"] - 2.0) ** 2, space, points,
        ...                           rounds=2, num=2)
        >>> found.best()
        Best(index=2, value=0, x=2)
        >>> found.to_pandas()["round"].tolist()
        [0, 0, 1, 1]
    """
    function = "search.explore"
    whole = as_space(function, space)
    check_key(function, key)
    check_choice(function, "mode", mode, ("min", "max"))
    check_int(function, "rounds", rounds, 1)
    check_int(function, "num", num, 1)
    _check_given(method, stop, executor, store, progress)
    folder = None if store is None else as_path(function, store, "store")
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)

    def prepared(points: Space, key: Key | None, place: Path | None) -> Sweeper:
        request = request_of(
            function,
            fn,
            points,
            key=key,
            store=place,
            executor=executor,
            batch_size=batch_size,
            mesh=mesh,
            on_error=on_error,
            # Below the bar of the rounds; there is none in a file of logs.
            progress=False if progress is False else None,
        )
        made = Sweeper(request)
        if not request.by_hand:
            _check_by(made.outputs(points, key), by)
        return made

    # By a name: rounds have the keys of their numbers.
    state = method.init(whole, fold(key, "method"))
    sweeps: list[SweepResult] = []
    run: Sweeper | None = None
    with Progress(progress, rounds, title="rounds", unit="rounds") as bar:
        bar.watch(Watched(by if isinstance(by, str) else "best", 0, mode))
        try:
            for number in range(rounds):
                points, state = method.ask(state, num)
                if not points.size:
                    break
                own = None if key is None else jr.fold_in(key, number)
                place = None if folder is None else place_of(folder, number)
                try:
                    # What is traced depends on the form of the points.
                    run = run or prepared(points, own, place)
                    sweeps.append(run.run(points, own, place))
                except ValueError as error:
                    if folder is not None:
                        error.add_note(f"In round {number} of the search in {folder}.")
                    raise
                found = losses(sweeps[-1], by, mode)
                state = method.tell(state, found, sweeps[-1])
                bar.failed(sum(int((sweep.status == 2).sum()) for sweep in sweeps))
                bar.saw([found if mode == "min" else -found], slice(None))
                bar.done(1)
                if stop and stop(SearchResult(tuple(sweeps), state, by, mode)):
                    break
        except KeyboardInterrupt as interrupt:
            last = getattr(interrupt, "result", None)
            some = [*sweeps, *([last] if isinstance(last, SweepResult) else [])]
            carried = SearchResult(tuple(some), state, by, mode)
            interrupt.result = carried  # pyright: ignore[reportAttributeAccessIssue]
            raise
    if not sweeps:
        raise value_error(
            function,
            "the method proposed no points in its first round.",
            "Check that its design has points, and that its state does not come from a "
            "search that has ended.",
        )
    return SearchResult(tuple(sweeps), state, by, mode)


def _check_given(
    method: object, stop: object, executor: object, store: object, progress: object
) -> None:
    """Raise for arguments that are wrong whatever the function is."""
    if not isinstance(method, Method) or isinstance(method, type):
        raise type_error(
            "search.explore",
            f"`method` is {describe_value(method)}.",
            "Give a method of `eqx_pipe.search`, such as `search.Adaptive()`, or an "
            "object with `init`, `ask` and `tell`.",
        )
    if stop is not None:
        cure = (
            "Give a function of the `SearchResult` so far: `lambda found: len(found) "
            ">= 10_000`."
        )
        check_is("search.explore", "stop", stop, Callable, cure)
    if executor is not None and store is None:
        raise value_error(
            "search.explore",
            "`executor` requires `store`.",
            "Give a folder, `store=`: workers are for long rounds.",
        )
    if progress is not None:
        check_bool("search.explore", "progress", progress)


def _check_by(outputs: PyTree, by: Compared) -> None:
    """Raise, before anything is computed, unless `by` is one number of an output."""

    def one(leaf: Any) -> Any:
        return jnp.empty((1, *leaf.shape), leaf.dtype)

    scores("search.explore", jtu.tree_map(one, outputs), 1, by, [slice(None)])
