"""A search: rounds of points that a method proposes, each computed by one sweep."""

import dataclasses
import functools as ft
import math
import operator
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Int

from .._check import check_bool, check_choice, check_int, check_is
from .._errors import describe_value, message, type_error, value_error
from .._keys import check_key, fold
from .._progress import Progress
from .._reduce import Over
from .._results import Best, Compared, SweepResult, concatenated, replicates, scores
from .._spaces import Space, SpaceLike, as_space, joined, settings_of, with_replicates
from .._store import Files, StoreLike, as_files, disk_errors, exists
from .._sweep import BatchSize, Executor, Sweeper, as_texts, request_of
from .._types import DataFrame, Dataset, Key, PyTree
from .method import Method, losses


@dataclasses.dataclass(frozen=True, repr=False)
class SearchResult:
    """All points of a search, in the order in which they were computed.

    `sweeps` has the `SweepResult` of each round, and `result` is one `SweepResult` of
    all points, over a table. `state` is the state of the method after the last round,
    or `None` if the search was read from its folder. `by` and `mode` are the arguments
    of the search; a `by` that is a function is not read from a folder.

    `over` are the dims of the replicates of the space, such as `("seed",)`. If there
    are any, `result` is a grid of the dim `setting` and these dims.
    """

    sweeps: tuple[SweepResult, ...]
    state: PyTree = None
    by: Compared = None
    mode: str = "min"
    over: tuple[str, ...] = ()

    @ft.cached_property
    def result(self) -> SweepResult:
        """The points of all rounds as one `SweepResult`."""
        return concatenated(self.sweeps, self.over)

    @property
    def rounds(self) -> Int[np.ndarray, " points"]:
        """The number of the round of each point."""
        spaces = [sweep.space for sweep in self.sweeps]
        rounds = np.repeat(np.arange(len(spaces)), list(map(len, spaces)))
        if self.over:
            # The points of a round are no stretch if a dim of replicates comes first.
            order = replicates(joined(spaces, self.over), self.over)
            rounds[order] = rounds.copy().reshape(order.shape)
        return rounds

    def __len__(self) -> int:
        return sum(map(len, self.sweeps))

    def best(
        self, by: Compared = None, mode: str | None = None, *, over: Over = None
    ) -> Best:
        """Return the best point of all rounds; see `SweepResult.best`.

        In a space with replicates, it is the setting with the best mean over them, as
        the method was told: `result.best()` returns the best single point.

        **Arguments:**

        - `by`, `mode`: as in `SweepResult.best`; by default the arguments of the
          search.
        - `over`: as in `SweepResult.best`; by default all dims of replicates. (Keyword
          only.)
        """
        by = self.by if by is None else by
        over = (self.over or None) if over is None else over
        mode = self.mode if mode is None else mode
        return self.result.best(by, mode, over=over)

    def to_xarray(self) -> Dataset:
        """Return the table as an `xarray.Dataset` with the coordinate `round`."""
        data, space, rounds = self.result.to_xarray(), self.result.space, self.rounds
        (dim,) = (dim for dim in space.dims if dim not in self.over)
        if self.over:
            rounds = rounds[replicates(space, self.over)[:, 0]]
        return data.assign_coords({_free_name(data): (dim, rounds)})

    def to_pandas(self) -> DataFrame:
        """Return the table as a `pandas.DataFrame` with the column `round`."""
        frame = self.result.to_pandas()
        return frame.assign(**{_free_name(frame): self.rounds})

    @staticmethod
    def load(path: StoreLike) -> "SearchResult":
        """Read a search from its folder, without the function or the method.

        The search may still be running, or may have been killed: missing points of an
        unfinished round are not `.ok`. Nothing is computed.

        **Arguments:**

        - `path`: the folder that was passed to `explore` as `store=`.

        **Returns:** a `SearchResult` without `.state`. Its sweeps are read from the
        stores of the rounds by `SweepResult.load`.

        **Raises:** `FileNotFoundError` if no round is at `path`; `ValueError` if a
        round before the last is missing; and as `SweepResult.load`.

        !!! example

            >>> import tempfile
            >>> import eqx_pipe as ep
            >>> points = ep.search.Design([[0.0], [0.5], [1.0]])
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     found = ep.search.explore(lambda p: p["x"] ** 2,
            ...                               {"x": ep.Uniform(0, 4)}, points,
            ...                               rounds=3, num=1, mode="max", store=folder)
            ...     ep.search.SearchResult.load(folder).best()
            Best(index=2, value=16, x=4)
        """
        function = "search.SearchResult.load"
        files = as_files(function, path, "path")
        rounds = rounds_in(function, files)
        if not rounds:
            wrong = f"{files.path_of()!r} has no rounds of a search."
            cure = "Give the folder of `explore(..., store=)`; `SweepResult.load` "
            cure += "reads the store of a sweep."
            raise FileNotFoundError(message(function, wrong, cure))
        sweeps = tuple(map(SweepResult.load, rounds))
        goal = dict(sweeps[-1].made)
        mode, over = goal.get("mode", "min"), tuple(goal.get("over", ()))
        return SearchResult(sweeps, by=goal.get("by"), mode=mode, over=over)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            wrong = f"a `SearchResult` has no attribute `{name}`."
            if name in dir(SweepResult) or name in SweepResult.__dataclass_fields__:
                wrong += f" That of all points is `.result.{name}`."
            raise AttributeError(wrong)

    def __repr__(self) -> str:
        return f"SearchResult({len(self):,} points in {len(self.sweeps):,} rounds)"


def _free_name(taken: Any) -> str:
    """Return the name of the numbers of rounds, which an axis may have, too."""
    name = "round"
    while name in taken:
        name = f"search.{name}"
    return name


def round_name(number: int) -> str:
    """Return the name of the store of a round."""
    return f"round-{number:04}.zarr"


def rounds_in(function: str, files: Files) -> list[Files]:
    """Return the stores of the rounds of a search, in order; none for another folder.

    Raises a `ValueError` if a round before the last is missing.
    """
    with disk_errors(files.path_of(), "be read", function):
        names = {x for x in files.names() if re.fullmatch(r"round-\d+\.zarr", x)}
    stores = [round_name(k) for k in range(len(names))]
    lost = [name for name in stores if name not in names]
    if lost:
        wrong = f"{files.path_of()!r} has later rounds, but no `{lost[0]}`."
        cure = "Call the same search again, which computes this round."
        raise value_error(function, wrong, cure)
    rounds = [files.below(name) for name in stores]
    is_created = not rounds or exists(rounds[-1])
    return rounds if is_created else rounds[:-1]


Callback: TypeAlias = Callable[[SearchResult], object]
"""A function called after each round; a true value ends the search."""


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
    callback: Callback | None = None,
    store: StoreLike | None = None,
    executor: Executor | None = None,
    batch_size: BatchSize = "auto",
    mesh: Mesh | None = None,
    on_error: Literal["raise", "mark"] = "raise",
    progress: bool | None = None,
) -> SearchResult:
    """Search a space: a method proposes the points of each round.

    Each round is one sweep of `num` points. Rounds of one size share a program; with
    `Static` axes, one for each combination of their values.

    Axes of replicates (`Seeds`, PRNG keys) are not proposed: each proposed setting is
    computed for all replicates, and the method minimises the mean.

    **Arguments:**

    - `fn`, `space`, `batch_size`, `mesh`, `on_error`: as in `sweep`. Use `Uniform` and
      `LogUniform` axes for numbers, `Values` and `Static` axes for categories; see
      `Space.from_unit`.
    - `method`: a method of `eqx_pipe.search`, or your own `Method`.
    - `rounds`: the maximum number of rounds. (Keyword only.)
    - `num`: the number of points that the method proposes in a round; with replicates,
      the number of settings. (Keyword only.)
    - `by`: the number to optimise: the path of a scalar output, or a function of the
      output; not needed if the output is one number. (Keyword only.)
    - `mode`: `"min"` or `"max"`. (Keyword only.)
    - `key`: a PRNG key for the method and for `fn`. (Keyword only.)
    - `callback`: called after each round with the `SearchResult` so far; the search
      ends if it returns a true value: `lambda found: len(found) >= 1000`.
      `found.best()` raises until a point has a number. (Keyword only.)
    - `store`: a folder, or as in `sweep` a URL or a store object, that contains one
      store for each round, `round-0000.zarr` and so on. After a kill, the same call
      reads the finished rounds, replays the proposals of the method, and resumes the
      unfinished round at its first missing chunk; only `rounds` and `callback` may
      change. Everything that a function reaches by name counts, and what cannot be
      understood counts as changed. What code finds by text or outside of Python, or
      changes inside of an installed numerical package, does not count. A different call
      raises before it writes anything. `SearchResult.load` reads the folder at any
      time. (Keyword only.)
    - `executor`: as in `sweep`. (Keyword only.)
    - `progress`: whether to show a progress bar of the rounds with the best number so
      far, and one for each long round; by default in a terminal or notebook. A file
      gets a line each minute. (Keyword only.)

    **Returns:** a `SearchResult`.

    **Raises:** `ValueError` if the method proposes no points in the first round, or
    points with other axes than the space, or if all axes are replicates;
    `StructureError` (a `ValueError`) if the store belongs to another search, with the
    settings that differ; `TypeError` if `method` is not a `Method`; and as `sweep`.

    After Ctrl-C, the `.result` of the `KeyboardInterrupt` is a `SearchResult` of all
    finished points.

    **Laws:** round `r` equals `sweep(fn, points, key=jax.random.fold_in(key, r))` at
    the points that the method proposes, to rounding; with common draws of replicates,
    at `key=jax.random.fold_in(key, 0)`, so that all rounds share them. A resumed search
    ends with the result of an uninterrupted one.

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
    if not isinstance(method, Method) or isinstance(method, type):
        wrong = f"`method` is {describe_value(method)}."
        cure = "Give a method of `eqx_pipe.search`, such as `search.Adaptive()`, or an "
        cure += "object with `init`, `ask` and `tell`."
        raise type_error(function, wrong, cure)
    if callback is not None:
        cure = "Give a function of the `SearchResult` so far: `lambda found: "
        cure += "len(found) >= 10_000`."
        check_is(function, "callback", callback, Callable, cure)
    if progress is not None:
        check_bool(function, "progress", progress)
    folder = None if store is None else as_files(function, store)
    identity = {"num": operator.index(num), "by": by, "mode": mode}
    identity |= {"method": method, "key": key, "space": whole}
    texts = None if folder is None else as_texts(identity, function)
    settings, over = settings_of(function, whole)
    # Settings of all rounds are compared under the same noise.
    common = any(axis.replicates == "common" for axis in whole.axes().values())
    # Readable, for people who inspect a store. A function has no readable form.
    goal = {"by": by} if isinstance(by, str) else {}
    goal |= {"mode": mode, "rounds": operator.index(rounds)}
    goal |= {"over": list(over)} if over else {}

    options: Any = {"executor": executor, "batch_size": batch_size, "mesh": mesh}
    # Shown below the bar of the rounds in a terminal, but not in a log file.
    options |= {"on_error": on_error, "progress": False if progress is False else None}

    def prepared(points: Space, key: Key | None, files: Files | None) -> Sweeper:
        request = request_of(function, fn, points, key=key, store=files, **options)
        made = Sweeper(dataclasses.replace(request, search=texts, goal=goal))
        if not request.by_hand:
            # Raise, before any computation, unless `by` selects one number.
            structs = made.outputs(points, key)
            one = jtu.tree_map(lambda x: jnp.empty((1, *x.shape), x.dtype), structs)
            scores(function, one, 1, by)
        return made

    # Fold in a name, since rounds fold in their numbers.
    state = method.init(settings, fold(key, "method"))
    sweeps: list[SweepResult] = []
    run: Sweeper | None = None
    best = math.inf
    with Progress(progress, rounds, title="rounds", unit="rounds") as bar:
        try:
            for number in range(rounds):
                points, state = method.ask(state, num)
                if not points.size:
                    break
                if over:
                    points = with_replicates(function, whole, points)
                drawn = 0 if common else number
                round_key = None if key is None else jr.fold_in(key, drawn)
                here = None if folder is None else folder.below(round_name(number))
                try:
                    # The trace depends on the axes of the proposed points.
                    run = run or prepared(points, round_key, here)
                    sweeps.append(run.run(points, round_key, here))
                except ValueError as error:
                    if folder is not None:
                        where = f"round {number} of the search in {folder.path_of()}"
                        error.add_note(f"In {where}.")
                    raise
                numbers = losses(sweeps[-1], by, mode, over)
                state = method.tell(state, numbers, sweeps[-1])
                bar.failed(sum(int((sweep.status == 2).sum()) for sweep in sweeps))
                best = min([best, *numbers[np.isfinite(numbers)]])
                shown = best if mode == "min" else -best
                bar.note(**{by if isinstance(by, str) else "best": f"{shown:.5g}"})
                bar.done(1)
                so_far = SearchResult(tuple(sweeps), state, by, mode, over)
                if callback is not None and callback(so_far):
                    break
        except KeyboardInterrupt as interrupt:
            last = getattr(interrupt, "result", None)
            if isinstance(last, SweepResult):
                sweeps.append(last)
            partial = SearchResult(tuple(sweeps), state, by, mode, over)
            interrupt.result = partial  # pyright: ignore[reportAttributeAccessIssue]
            raise
    if not sweeps:
        wrong = "the method proposed no points in its first round."
        cure = "Check that its design has points, and that its state does not come "
        cure += "from a search that has ended."
        raise value_error(function, wrong, cure)
    return SearchResult(tuple(sweeps), state, by, mode, over)
