"""The rounds of a search: computed by one program, in memory or each in a store."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax.tree_util as jtu
import numpy as np

from .._spaces import Space
from .._sweep.compute.progress import Progress, Watched, watched
from .._sweep.request import Executor, checked
from .._sweep.results.result import SweepResult
from .._sweep.sweeper import Sweeper
from .._types import Key, ProgressLike, PyTree
from .explored import SearchResult, place_of


@dataclasses.dataclass
class Rounds:
    """Computes the points of one round after the other; `fn` is traced for the first.

    Rounds that are in the `folder` are read. `sweeps` are what there is.
    """

    fn: Callable[..., PyTree]
    options: Mapping[str, Any]
    folder: Path | None
    executor: Executor | None
    progress: ProgressLike

    def __post_init__(self) -> None:
        self._run: Sweeper | None = None
        self.sweeps: list[SweepResult] = []
        self._watched: Watched | None = None
        self._failed = 0
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)

    def compute(self, points: Space, key: Key | None) -> SweepResult:
        """The next round."""
        number = len(self.sweeps)
        place = None if self.folder is None else place_of(self.folder, number)
        try:
            if self._run is None:
                # Not before: what is traced depends on the form of the points.
                self._run = self._made(points, key, place)
            self.sweeps.append(self._run.swept(points, key, place))
            return self.sweeps[-1]
        except ValueError as error:
            if place is not None:
                where = f"In round {number} of the search in {self.folder}."
                error.add_note(where)
            raise

    def _made(self, points: Space, key: Key | None, place: Path | None) -> Sweeper:
        request = checked(
            self.fn,
            points,
            key=key,
            store=place,
            executor=self.executor,
            # Below the bar of the rounds; there is none in a file of logs.
            progress=False if self.progress is False else None,
            function="search.explore",
            **self.options,
        )
        run = Sweeper(request)
        if not request.by_hand:
            outputs = run.outputs(points, key)
            self._watched = watched("search.explore", outputs, self.progress)
        return run

    def ended(self, bar: Progress) -> None:
        """Show on the bar that a round has ended."""
        sweep = self.sweeps[-1]
        lacking = 0 if sweep.missing is None else int(np.sum(sweep.missing))
        self._failed += int(np.sum(~sweep.ok)) - lacking
        bar.failed(self._failed)
        if self._watched is not None:
            leaf = jtu.tree_leaves(sweep.values)[self._watched.leaf]
            # Of the outputs the bar is shown this one alone.
            bar.watch(self._watched._replace(leaf=0))
            bar.saw([np.asarray(leaf[...])], slice(None))
        bar.done(1)

    def so_far(self, state: PyTree) -> SearchResult:
        """All rounds that have ended."""
        return SearchResult(tuple(self.sweeps), state)

    def carry(self, interrupt: KeyboardInterrupt, state: PyTree) -> None:
        """Has Ctrl-C carry all rounds, with what is finished of the last one."""
        sweeps = [*self.sweeps]
        last = getattr(interrupt, "result", None)
        if isinstance(last, SweepResult):
            sweeps.append(last)
        found = SearchResult(tuple(sweeps), state)
        interrupt.result = found  # pyright: ignore[reportAttributeAccessIssue]
