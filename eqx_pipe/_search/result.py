"""`SearchResult`: the points of a search, computed now or read from its folder."""

import dataclasses
import functools as ft
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int

from .._errors import message
from .._files import as_path
from .._sweep import Best, Compared, SweepResult
from .._types import PyTree

if TYPE_CHECKING:
    from pandas import DataFrame
    from xarray import Dataset
else:
    DataFrame = Dataset = Any


@dataclasses.dataclass(frozen=True, repr=False)
class SearchResult:
    """All points of a search, in the order in which they were computed.

    `sweeps` has the `SweepResult` of each round, and `result` is one `SweepResult` of
    all points, over a table. `state` is the state of the method after the last round,
    or `None` if the search was read from its folder. `by` and `mode` are the arguments
    of the search.
    """

    sweeps: tuple[SweepResult, ...]
    state: PyTree = None
    by: Compared = None
    mode: str = "min"

    @ft.cached_property
    def result(self) -> SweepResult:
        """The points of all rounds as one `SweepResult`."""
        return SweepResult.concat(self.sweeps)

    @property
    def rounds(self) -> Int[np.ndarray, " points"]:
        """The number of the round of each point."""
        lengths = [len(sweep) for sweep in self.sweeps]
        return np.repeat(np.arange(len(lengths)), lengths)

    def __len__(self) -> int:
        return sum(map(len, self.sweeps))

    def best(self, by: Compared = None, mode: str | None = None) -> Best:
        """Return the best point of all rounds; see `SweepResult.best`.

        **Arguments:**

        - `by`, `mode`: as in `SweepResult.best`; by default the arguments of the
          search.
        """
        by = self.by if by is None else by
        return self.result.best(by, self.mode if mode is None else mode)

    def to_xarray(self) -> Dataset:
        """Return the table as an `xarray.Dataset` with the coordinate `round`."""
        data = self.result.to_xarray()
        (dim,) = self.result.space.dims
        return data.assign_coords({_free("round", data): (dim, self.rounds)})

    def to_pandas(self) -> DataFrame:
        """Return the table as a `pandas.DataFrame` with the column `round`."""
        frame = self.result.to_pandas()
        return frame.assign(**{_free("round", frame): self.rounds})

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "SearchResult":
        """Read a search from its folder, without the function or the method.

        The search may still be running, or may have been killed: missing points of an
        unfinished round are not `.ok`. Nothing is computed.

        **Arguments:**

        - `path`: the folder that was passed to `explore` as `store=`.

        **Returns:** a `SearchResult` without `.state`, `.by` and `.mode`. Its sweeps
        are read from the stores of the rounds by `SweepResult.load`.

        **Raises:** `FileNotFoundError` if no round is at `path`, and as
        `SweepResult.load`.

        !!! example

            >>> import tempfile
            >>> import eqx_pipe as ep
            >>> points = ep.search.Design([[0.0], [0.5], [1.0]])
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     found = ep.search.explore(lambda p: p["x"] ** 2,
            ...                               {"x": ep.Uniform(0, 4)}, points,
            ...                               rounds=3, num=1, store=folder)
            ...     ep.search.SearchResult.load(folder).best(mode="max")
            Best(index=2, value=16, x=4)
        """
        folder = as_path("search.SearchResult.load", path)
        count = 0
        while place_of(folder, count).is_dir():
            count += 1
        if not count:
            raise FileNotFoundError(
                message(
                    "search.SearchResult.load",
                    f"there is no round of a search at {str(folder)!r}.",
                    "Give the folder of `explore(..., store=)`; `SweepResult.load` "
                    "reads the store of a sweep.",
                )
            )
        places = [place_of(folder, k) for k in range(count)]
        return SearchResult(tuple(map(SweepResult.load, places)))

    def __repr__(self) -> str:
        return f"SearchResult({len(self):,} points in {len(self.sweeps):,} rounds)"


def _free(name: str, taken: Any) -> str:
    while name in taken:
        name = f"search.{name}"
    return name


def place_of(folder: Path, number: int) -> Path:
    """Return the path of the store of a round."""
    return folder / f"round-{number:04}.zarr"
