"""When a search ends before its last round."""

from collections.abc import Callable

import numpy as np

from .._check import check_choice, check_int, keywords
from .._sweep.results.best import Compared
from .explore import Explored
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

    def stop(found: Explored) -> bool:
        values, _ = losses("search.stalled", found.result, by, mode)
        last = found.rounds > found.rounds[-1] - rounds
        return bool(not np.all(last) and values[last].min() >= values[~last].min())

    return stop
