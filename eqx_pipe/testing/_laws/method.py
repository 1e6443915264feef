"""The laws of search methods."""

import dataclasses
import functools as ft
from collections.abc import Callable
from typing import Any

import jax.tree_util as jtu
import numpy as np

from ..._check import check_int, check_is
from ..._search import Method, losses
from ..._spaces import Space, SpaceLike, as_space, point_columns
from ..._sweep import Compared, SweepResult, gaps_of, sweeper
from ..._types import Key, PyTree
from .law import Broken, Undecided, agree, check_laws, law, must_work

_ROUNDS = 3


@dataclasses.dataclass(frozen=True)
class MethodTrial:
    """A method, with a function of a space's points."""

    method: Method[Any]
    space: Space
    run: Callable[[Space], SweepResult]
    num: int
    by: Compared
    key: Key | None

    @ft.cached_property
    def history(self) -> list[tuple[Any, Space, Any, SweepResult]]:
        """The state, the points, the state after them, and the result, by round."""
        state, rounds = self.method.init(self.space, self.key), []
        for _ in range(_ROUNDS):
            points, asked = self.method.ask(state, self.num)
            if not points.size:
                break
            result = self.run(points)
            rounds.append((state, points, asked, result))
            state = self._after(asked, result)
        return rounds

    def _after(self, state: Any, result: SweepResult) -> Any:
        found = losses(result, self.by, "min")
        return self.method.tell(state, found, result)

    @law("form", "it proposes points of the space, at most `num`.")
    def form_law(self) -> None:
        for number, (_, points, _, _) in enumerate(self.history):
            if not isinstance(points, Space) or points.size > self.num:
                what = f"in round {number} `ask(state, {self.num})` gave {points!r}"
                raise Broken(what)
            with must_work(f"finding the points of round {number} in the space"):
                self.space.to_unit(points)

    @law("repeats", "the same calls, or a fresh start, give the same proposals.")
    def repeats_law(self) -> None:
        state = self.method.init(self.space, self.key)
        for number, (first, points, asked, result) in enumerate(self.history):
            for how, before in (("begun anew", state), ("asked again", first)):
                again, asked_again = self.method.ask(before, self.num)
                _same(f"{how} in round {number}", again, points)
            states = [self._after(state, result) for state in (asked_again, asked)]
            _same(f"after the same result again in round {number}", *states)
            state = states[0]

    @law("failures", "it continues after failed points.")
    def failures_law(self) -> None:
        if not self.history or len(self.history[0][-1]) < 2:
            raise Undecided("a round has at most one point, and one must succeed")
        _, _, asked, result = self.history[0]
        with must_work("`tell` with a failed point"):
            after = self._after(asked, _failed(result))
        with must_work("`ask` after a failed point"):
            self.space.to_unit(self.method.ask(after, self.num)[0])


def _failed(result: SweepResult) -> SweepResult:
    """Return the result as if the last point had failed."""

    def without(leaf: np.ndarray) -> np.ndarray:
        leaf = np.array(leaf)
        leaf[-1] = np.nan if np.issubdtype(leaf.dtype, np.inexact) else 0
        return leaf

    ok = result.ok & (np.arange(len(result)) < len(result) - 1)
    values = jtu.tree_map(without, result.values)
    return dataclasses.replace(result, values=values, _gaps=gaps_of(ok))


def _same(how: str, got: PyTree, wanted: PyTree) -> None:
    """Raise `Broken` if points or states are not bitwise identical."""
    got, wanted = (
        point_columns(v.geometry, v.key) if isinstance(v, Space) else v
        for v in (got, wanted)
    )
    agree(got, wanted, (how, "the first time"))


def check_method(
    method: Method[Any],
    fn: Callable[..., PyTree],
    space: SpaceLike,
    *,
    num: int = 4,
    by: Compared = None,
    key: Key | None = None,
) -> None:
    """Check that a search method is reproducible and can be resumed.

    The laws: the method proposes points of the space, at most as many as requested.
    Repeated calls of `ask` and `tell` with the same arguments return the same, also
    after a new start. The method continues after a failed point, whose value is NaN.

    **Arguments:**

    - `method`: a method of `eqx_pipe.search`, or your own `Method`.
    - `fn`, `space`: a function and the space of its points. Three rounds of `num`
        points are evaluated.
    - `num`: the number of points per round. (Keyword only.)
    - `by`: the output to minimise, as in `explore`. (Keyword only.)
    - `key`: a PRNG key for the method, not for `fn`. (Keyword only.)

    **Raises:** `AssertionError` if a law is broken; `TypeError` if `method` has no
    `init`, `ask` and `tell`.

    !!! example

        >>> import eqx_pipe as ep, eqx_pipe.testing as ept
        >>> space = {"x": ep.Uniform(0, 1)}
        >>> points = ep.search.Design([[0.5], [0.0], [1.0]])
        >>> ept.check_method(points, lambda p: p["x"] ** 2, space, num=2)
    """
    __tracebackhide__ = True
    function = "testing.check_method"
    cure = "Give an object with `init`, `ask` and `tell`."
    check_is(function, "method", method, Method, cure)
    check_int(function, "num", num, 1)
    whole, runs = as_space(function, space), []

    def run(points: Space) -> SweepResult:
        if not runs:
            runs.append(sweeper(fn, points))
        return runs[0](points)

    trial = MethodTrial(method, whole, run, num, by, key)
    check_laws("check_method", "a method", trial, type(method).__name__)
