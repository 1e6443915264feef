"""`explore`: rounds of points that a method proposes, each computed by one sweep."""

import dataclasses
import math
import operator
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeAlias

import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jax.sharding import Mesh

from .._check import check_bool, check_choice, check_int, check_is
from .._errors import describe_value, type_error, value_error
from .._files import as_path
from .._keys import check_key, fold
from .._progress import Progress
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
from .method import Method, as_texts, losses
from .result import SearchResult, place_of

Stop: TypeAlias = Callable[[SearchResult], object]
"""A condition that ends a search, called after each round."""


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
    """Search a space: a method proposes the points of each round.

    Each round is one sweep of `num` points. Rounds of one size share a program; with
    `Static` axes, one for each combination of their values.

    **Arguments:**

    - `fn`, `space`, `batch_size`, `mesh`, `on_error`: as in `sweep`. Use `Uniform` and
      `LogUniform` axes for numbers, `Values` and `Static` axes for categories; see
      `Space.from_unit`.
    - `method`: a method of `eqx_pipe.search`, or your own `Method`.
    - `rounds`: the maximum number of rounds. (Keyword only.)
    - `num`: the number of points that the method proposes in a round. (Keyword only.)
    - `by`: the number to optimise: the path of a scalar output, or a function of the
      output; not needed if the output is one number. (Keyword only.)
    - `mode`: `"min"` or `"max"`. (Keyword only.)
    - `key`: a PRNG key for the method and for `fn`. (Keyword only.)
    - `stop`: called after each round with the `SearchResult` so far; the search ends
      if it returns true: `lambda found: len(found) >= 1000`. `found.best()` raises
      until a point has a number. (Keyword only.)
    - `store`: a folder that contains one store for each round, `round-0000.zarr` and so
      on. After a kill, the same call reads the finished rounds, replays the proposals
      of the method, and resumes the unfinished round at its first missing chunk; only
      `rounds` and `stop` may change. A different call raises before it writes anything.
      `SearchResult.load` reads the folder at any time. (Keyword only.)
    - `executor`: as in `sweep`; requires a `store`. (Keyword only.)
    - `progress`: whether to show a progress bar of the rounds with the best number so
      far, and one for each long round; by default in a terminal or notebook. A file
      gets a line each minute. (Keyword only.)

    **Returns:** a `SearchResult`.

    **Raises:** `ValueError` if the method proposes no points in the first round, if
    `executor` is passed without `store`; `StructureError` (a `ValueError`) if the store
    belongs to another search, with the settings that differ; `TypeError` if `method` is
    not a `Method`; and as `sweep`.

    After Ctrl-C, the `.result` of the `KeyboardInterrupt` is a `SearchResult` of all
    finished points.

    **Laws:** round `r` equals `sweep(fn, points, key=jax.random.fold_in(key, r))` at
    the points that the method proposes, to rounding. A resumed search ends with the
    result of an uninterrupted one.

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
    settings = (
        None
        if folder is None
        else as_texts(
            num=operator.index(num),
            by=by,
            mode=mode,
            method=method,
            key=key,
            space=whole,
        )
    )

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
            # Shown below the bar of the rounds in a terminal, but not in a log file.
            progress=False if progress is False else None,
        )
        made = Sweeper(dataclasses.replace(request, search=settings))
        if not request.by_hand:
            _check_by(made.outputs(points, key), by)
        return made

    # Fold in a name, since rounds fold in their numbers.
    state = method.init(whole, fold(key, "method"))
    sweeps: list[SweepResult] = []
    run: Sweeper | None = None
    best = math.inf
    with Progress(progress, rounds, title="rounds", unit="rounds") as bar:
        try:
            for number in range(rounds):
                points, state = method.ask(state, num)
                if not points.size:
                    break
                own = None if key is None else jr.fold_in(key, number)
                place = None if folder is None else place_of(folder, number)
                try:
                    # The trace depends on the axes of the proposed points.
                    run = run or prepared(points, own, place)
                    sweeps.append(run.run(points, own, place))
                except ValueError as error:
                    if folder is not None:
                        error.add_note(f"In round {number} of the search in {folder}.")
                    raise
                found = losses(sweeps[-1], by, mode)
                state = method.tell(state, found, sweeps[-1])
                bar.failed(sum(int((sweep.status == 2).sum()) for sweep in sweeps))
                best = min([best, *found[np.isfinite(found)]])
                shown = best if mode == "min" else -best
                bar.note(**{by if isinstance(by, str) else "best": f"{shown:.5g}"})
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
    """Raise for arguments that are invalid for any function."""
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
    """Raise, before any computation, unless `by` selects one number of an output."""

    def one(leaf: Any) -> Any:
        return jnp.empty((1, *leaf.shape), leaf.dtype)

    scores("search.explore", jtu.tree_map(one, outputs), 1, by, [slice(None)])
