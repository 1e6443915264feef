"""The laws of search methods."""

import dataclasses
import functools as ft
from collections.abc import Callable
from typing import Any, Literal

import jax.tree_util as jtu
import numpy as np

from ..._check import check_choice, check_int, check_is
from ..._search import Method, losses
from ..._spaces import Space, SpaceLike, as_space
from ..._sweep import Compared, SweepResult, gaps_of, sweeper
from ..._types import Key, PyTree
from .law import Broken, Undecided, agree, check_laws, law, must_work

_ROUNDS = 3
_SEARCHED = 8  # rounds of a search, or more for few points per round
_POINTS = 32
# Worse than the mean loss of points at random by this factor is worse than by chance.
_WORSE, _BETTER = 1.5, 0.9
_FAILS_ABOVE = 0.7


@dataclasses.dataclass(frozen=True)
class MethodTrial:
    """A method, with a function of a space's points."""

    method: Method[Any]
    space: Space
    run: Callable[[Space], SweepResult]
    num: int
    by: Compared
    key: Key | None
    expects: str | None = None

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

    @ft.cached_property
    def chance(self) -> np.ndarray:
        """Places of points at random, as the axes of the space round them."""
        count = len(self.space.axes())
        u = np.random.default_rng(0).uniform(size=(256, count))
        return self.space.to_unit(self.space.from_unit(u))

    def search(self, loss_of: Callable[[np.ndarray], np.ndarray]) -> list[np.ndarray]:
        """Return the places of each round, with losses that depend on the place."""
        state, rounds = self.method.init(self.space, self.key), []
        for _ in range(max(_SEARCHED, _POINTS // self.num)):
            points, state = self.method.ask(state, self.num)
            if not points.size:
                break
            rounds.append(self.space.to_unit(points))
            losses = loss_of(rounds[-1])
            state = self.method.tell(
                state, losses, _with_losses(self.run(points), losses)
            )
        return rounds

    @ft.cached_property
    def minimising(self) -> list[np.ndarray]:
        return self.search(_distance)

    @ft.cached_property
    def is_adaptive(self) -> bool:
        """True if the losses change the proposals."""
        others = self.search(lambda u: 2.0 - _distance(u))
        return list(map(np.ndarray.tolist, others)) != list(
            map(np.ndarray.tolist, self.minimising)
        )

    @law("repeated", "rounds of a continuous space propose new points.")
    def repeated_law(self) -> None:
        if len(np.unique(self.chance, axis=0)) < len(self.chance):
            raise Undecided("the space has categories, which repeat")
        seen, twice, again = set[bytes](), 0, 0
        for u in self.minimising:
            rows = {row.tobytes() for row in u}
            twice += len(u) > 1 and 2 * len(rows) <= len(u)
            again += rows <= seen
            seen |= rows
        count = len(self.minimising)
        if 2 * again >= count > 1:
            what = "propose only points of earlier rounds; it may ignore the losses"
            raise Broken(f"{again} of {count} rounds {what}")
        if 2 * twice >= count:
            raise Broken(f"{twice} of {count} rounds propose points twice")

    @law("losses", "the losses lead to better points, not to worse ones.")
    def losses_law(self) -> None:
        strict = self.expects == "minimum"
        if not self.is_adaptive:
            if strict:
                raise Broken("the proposals do not depend on the losses")
            return
        late = np.concatenate(self.minimising[len(self.minimising) // 2 :])
        mean, usual = (float(_distance(u).mean()) for u in (late, self.chance))
        if mean > (_BETTER if strict else _WORSE) * usual:
            raise Broken(
                f"late points have a mean loss of {mean:.3g}, and points at random "
                f"{usual:.3g}; the method has to minimise the losses"
            )

    @law("failed", "points that fail are not taken for the best.")
    def failed_law(self) -> None:
        def loss_of(u: np.ndarray) -> np.ndarray:
            return np.where(u[:, 0] > _FAILS_ABOVE, np.inf, _distance(u))

        if not self.is_adaptive:
            return
        rounds = self.search(loss_of)
        late = np.concatenate(rounds[len(rounds) // 2 :])
        share, usual = (
            float((u[:, 0] > _FAILS_ABOVE).mean()) for u in (late, self.chance)
        )
        if share > max(2 / 3, 1.5 * usual):
            raise Broken(
                f"{share:.0%} of late points, and {usual:.0%} of points at random, are "
                "where all points fail; a NaN or infinite loss is the worst"
            )


def _distance(u: np.ndarray) -> np.ndarray:
    """Return the squared distance from a point inside the unit cube."""
    # Not in its middle, nor a simple fraction, where grids have points.
    return np.sum((u - (0.35 + 0.01 * np.arange(u.shape[1]))) ** 2, axis=1)


def _with_losses(result: SweepResult, losses: np.ndarray) -> SweepResult:
    """Return a result with other values, if these are single numbers."""
    ok = np.isfinite(losses)
    single = isinstance(result.values, np.ndarray) and result.values.ndim == 1
    values = np.where(ok, losses, np.nan) if single else result.values
    return dataclasses.replace(result, values=values, _gaps=gaps_of(ok))


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
        v.geometry.columns() if isinstance(v, Space) else v for v in (got, wanted)
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
    expects: Literal["minimum"] | None = None,
) -> None:
    """Check that a search method is reproducible, can be resumed, and searches.

    The laws: the method proposes points of the space, at most as many as requested.
    Repeated calls of `ask` and `tell` with the same arguments return the same, also
    after a new start. The method continues after a failed point, whose value is NaN.
    The other laws replace the values of `fn` by losses whose minimum is inside of the
    space: points of a continuous space are not repeated; if the losses change the
    proposals, these do not become worse than points at random; and they do not gather
    where all points fail.

    **Arguments:**

    - `method`: a method of `eqx_pipe.search`, or your own `Method`.
    - `fn`, `space`: a function and the space of its points. Three rounds of `num`
        points are evaluated.
    - `num`: the number of points per round. (Keyword only.)
    - `by`: the output to minimise, as in `explore`. (Keyword only.)
    - `key`: a PRNG key for the method, not for `fn`. (Keyword only.)
    - `expects`: `"minimum"` for a method that minimises: the losses must change its
        proposals, which must become better than points at random. By default also a
        design, random search or refinement keeps the laws. (Keyword only.)

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
    if expects is not None:
        check_choice(function, "expects", expects, ("minimum",))
    whole, runs = as_space(function, space), []

    def run(points: Space) -> SweepResult:
        if not runs:
            runs.append(sweeper(fn, points))
        return runs[0](points)

    trial = MethodTrial(method, whole, run, num, by, key, expects)
    check_laws("check_method", "a method", trial, type(method).__name__)
