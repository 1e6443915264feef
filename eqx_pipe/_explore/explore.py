"""`explore`: rounds of points that a method proposes, each swept at once."""

import os
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import jax.random as jr
from jax.sharding import Mesh

from .._check import check_int
from .._errors import describe_value, type_error, value_error
from .._files import as_path
from .._keys import check_key, fold
from .._spaces import SpaceLike, as_space
from .._sweep.compute.progress import Progress, is_shown
from .._sweep.request import BatchSize, Executor, check_progress
from .._types import Key, ProgressLike, PyTree
from .explored import SearchResult
from .method import Method
from .rounds import Rounds

Stop: TypeAlias = Callable[[SearchResult], object]
"""Whether a search ends, after each of its rounds."""


def explore(
    fn: Callable[..., PyTree],
    space: SpaceLike,
    method: Method[Any],
    *,
    rounds: int,
    n: int,
    key: Key | None = None,
    stop: Stop | Sequence[Stop] | None = None,
    store: str | os.PathLike[str] | None = None,
    executor: Executor | None = None,
    batch_size: BatchSize = "auto",
    mesh: Mesh | None = None,
    on_error: Literal["raise", "mark"] = "raise",
    progress: ProgressLike = None,
) -> SearchResult:
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
      where it gives something true: `lambda found: found.best().value < 1`. Of
      several, in a list, one is enough.
    - `store`: a folder in which each round has a store of its own, `round-0000.zarr`
      and so on. The same call after a kill reads the rounds that are there, lets the
      method propose what it had proposed, and goes on; of the round that was under way
      finished chunks are kept. `eqx_pipe.search.load` reads the folder at any time.
    - `executor`: as in `sweep`; needs a `store`.
    - `progress`: as in `sweep`: a bar of the rounds, below which a long round has its
      own; in a file a line a minute. The path of an output also shows its best so far.

    **Returns:** an `SearchResult`.

    **Raises:** `ValueError` if the method proposes no point at all, or if the store is
    that of another search; and as `sweep`.

    After Ctrl-C the `KeyboardInterrupt` has as `.result` an `SearchResult` of all that
    is finished.

    **Laws:** round `r` is `sweep(fn, points, key=jax.random.fold_in(key, r))` of the
    points that the method proposes, to rounding. A search that was killed ends as one
    that was not.

    !!! example

        >>> import jax
        >>> import eqx_pipe as ep
        >>> space = {"x": ep.Linspace(0, 4, 2)}
        >>> points = ep.search.design([[0.0], [0.25], [0.5], [1.0]])
        >>> found = ep.search.explore(lambda p: (p["x"] - 2.0) ** 2, space, points,
        ...                    rounds=2, n=2)
        >>> found.best()
        Best(index=2, value=0, x=2)
        >>> found.to_pandas()["round"].tolist()
        [0, 0, 1, 1]
    """
    whole = as_space("search.explore", space)
    check_key("search.explore", key)
    if not isinstance(method, Method):
        raise type_error(
            "search.explore",
            f"`method` is {describe_value(method)}.",
            "Give a method of `eqx_pipe.search`, such as `search.refine()`, or an "
            "object with `init`, `ask` and `tell`.",
        )
    check_int("search.explore", "rounds", rounds, 1)
    check_int("search.explore", "n", n, 1)
    stops = _stops(stop)
    if executor is not None and store is None:
        raise value_error(
            "search.explore",
            "there is an `executor` without a `store`.",
            "Workers are for rounds that are long: give a folder, `store=`, too.",
        )
    check_progress("search.explore", progress)
    options = {"batch_size": batch_size, "mesh": mesh, "on_error": on_error}
    folder = None if store is None else as_path("search.explore", store, "store")
    run = Rounds(fn, options, folder, executor, progress)
    # By a name: rounds have the keys of their numbers.
    state = method.init(whole, fold(key, "method"))
    with Progress(is_shown(progress), rounds, title="rounds", unit="rounds") as bar:
        try:
            for number in range(rounds):
                points, state = method.ask(state, n)
                if not points.size:
                    break
                own = None if key is None else jr.fold_in(key, number)
                state = method.tell(state, run.compute(points, own))
                run.ended(bar)
                if stops:
                    found = run.so_far(state)
                    # All are asked, each after every round: one may count how often it
                    # was.
                    if any([stop(found) for stop in stops]):
                        break
        except KeyboardInterrupt as interrupt:
            run.carry(interrupt, state)
            raise
    if not run.sweeps:
        raise value_error(
            "search.explore",
            "the method proposed no point in its first round.",
            "A design may be empty, or the state is that of a search that has ended.",
        )
    return run.so_far(state)


def _stops(stop: Stop | Sequence[Stop] | None) -> tuple[Stop, ...]:
    if stop is None:
        return ()
    stops = tuple(stop) if isinstance(stop, Sequence) else (stop,)
    for one in stops:
        if not callable(one):
            raise type_error(
                "search.explore",
                f"`stop` is {describe_value(stop)}.",
                "Give a function of the `SearchResult` so far, or a list of some: "
                "`lambda found: len(found) >= 10_000`.",
            )
    return stops
