"""When a search ends before its last round."""

from collections.abc import Callable

from .._cache import WeakCache
from .._check import check_choice, check_int, keywords
from .._errors import describe_value, type_error, value_error
from .._sweep.results.best import Compared
from .._sweep.results.result import SweepResult
from .explored import Explored
from .method import losses


@keywords("search.stalled")
def stalled(
    rounds: int, by: Compared = None, mode: str = "min"
) -> Callable[[Explored], bool]:
    """Stops a search where nothing better came for some rounds.

    **Arguments:**

    - `rounds`: how many rounds may bring nothing better before the search ends.
    - `by`, `mode`: what is compared, as in `SweepResult.best`.

    **Returns:** a function for `explore(..., stop=)`.

    **Raises:** `ValueError` for another number of rounds than one or more.

    !!! example

        >>> import eqx_pipe as ep
        >>> import eqx_pipe.search as eps
        >>> points = eps.design([[1.0], [0.5], [0.5], [0.75], [0.0]])
        >>> found = ep.explore(lambda p: p["x"], {"x": ep.Linspace(0, 1, 2)}, points,
        ...                    rounds=5, n=1, stop=eps.stalled(2))
        >>> found.result.values.tolist()  # 0.0 came too late
        [1.0, 0.5, 0.5, 0.75]
    """
    check_int("search.stalled", "rounds", rounds, 1)
    check_choice("search.stalled", "mode", mode, ("min", "max"))

    # After each round all are asked again, and a sweep may be a large store.
    known = WeakCache[float]()

    def least(sweep: SweepResult) -> float:
        found = known.get(sweep)
        if found is None:
            values, _ = losses("search.stalled", sweep, by, mode)
            found = known.put(sweep, float(values.min()))
        return found

    def stop(found: Explored) -> bool:
        values = [least(sweep) for sweep in found.sweeps]
        before = values[:-rounds]
        return bool(before) and min(values[-rounds:]) >= min(before)

    return stop


@keywords("search.budget", minutes="Give `seconds=`.", n="Give `points=`.")
def budget(
    *, seconds: int | float | None = None, points: int | None = None
) -> Callable[[Explored], bool]:
    """Stops a search that has taken so many seconds, or computed so many points.

    It is asked after each round, so the last one may run beyond it.

    **Arguments:**

    - `seconds`: of all rounds together, with what the method took to propose them. In a
      search that goes on in its `store=`, rounds that are read count as long as they
      took when they were computed; a round that a kill cut off, from where it went on.
      (Keyword only.)
    - `points`: computed in all, the failed ones too. (Keyword only.)

    **Returns:** a function for `explore(..., stop=)`.

    **Raises:** `ValueError` if neither is given, or if one is not positive; `TypeError`
    for what is no number.

    !!! example

        >>> import eqx_pipe as ep
        >>> import eqx_pipe.search as eps
        >>> points = eps.design([[k / 10] for k in range(11)])
        >>> found = ep.explore(lambda p: p["x"], {"x": ep.Linspace(0, 1, 2)}, points,
        ...                    rounds=9, n=2, stop=eps.budget(points=6, seconds=3600))
        >>> len(found)
        6
    """
    if seconds is None and points is None:
        raise value_error(
            "search.budget",
            "neither `seconds` nor `points` is given.",
            "Give one, or both: `budget(seconds=3600, points=10_000)`.",
        )
    if points is not None:
        check_int("search.budget", "points", points, 1)
    if seconds is not None:
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise type_error(
                "search.budget",
                f"`seconds` is {describe_value(seconds)}.",
                "Give a number: `budget(seconds=3600)`.",
            )
        if not seconds > 0:
            raise value_error(
                "search.budget", f"`seconds` is {seconds}.", "Give more than 0."
            )

    def stop(found: Explored) -> bool:
        late = seconds is not None and sum(found.seconds) >= seconds
        return late or (points is not None and len(found) >= points)

    return stop
