"""Methods of other packages, by the names by which they are public."""

from collections.abc import Callable
from typing import Any

from .._check import check_choice
from .._errors import describe_value, optional, type_error
from .._sweep.results.best import Compared
from .evolution import Evolution
from .optuna import Sampler
from .refine import Refine


def refine(by: Compared = None) -> Refine:
    """Refines a grid where the function bends, by the learners of adaptive.

    The first points are the corners; then intervals, triangles or simplices of the
    unit cube (`Space.from_unit`) are cut where their edges are longest, values
    included. Points that failed, or have a NaN, are left out of it.

    **Arguments:**

    - `by`: what is looked at, as in `SweepResult.best`.

    **Returns:** a `Method` for `explore`, for spaces of `Linspace` and `Geomspace`.

    **Raises:** when the search begins, `ValueError` for other axes.

    !!! example

        >>> import jax.numpy as jnp
        >>> import eqx_pipe as ep
        >>> step = lambda p: jnp.tanh(20 * (p["x"] - 0.3))
        >>> found = ep.search.explore(step, {"x": ep.Linspace(-1, 1, 2)},
        ...     ep.search.refine(),
        ...                    rounds=5, n=8)
        >>> near = abs(found.to_pandas()["x"] - 0.3) < 0.25
        >>> len(found), bool(near.mean() > 0.5)  # an eighth of the way
        (40, True)
    """
    optional("search.refine", "adaptive", "search")
    return Refine(by)


def evolution(
    strategy: Callable[..., Any], by: Compared = None, mode: str = "min"
) -> Evolution:
    """Evolution strategies of evosax, a generation a round.

    They search the unit cube of the space (`Space.from_unit`): from its middle, or, if
    they work on a population, from one that is drawn from all of it. A candidate
    outside of the cube is mirrored at its walls. A point that failed, or has a NaN,
    counts as infinitely bad.

    **Arguments:**

    - `strategy`: a class of `evosax.algorithms`, such as `CMA_ES`; or a function that
      makes one: it is called with `population_size=`, the `n` of the search, and
      `solution=`.
    - `by`, `mode`: what is made small or large, as in `SweepResult.best`.

    **Returns:** a `Method` for `explore`, whose state is a pytree.

    **Raises:** `TypeError` for what is no strategy, `ValueError` without a key.

    !!! example

        >>> import jax
        >>> import eqx_pipe as ep
        >>> from evosax.algorithms import CMA_ES
        >>> bowl = lambda p: (p["x"] - 3.0) ** 2 + (p["y"] + 1.0) ** 2
        >>> space = {"x": ep.Linspace(-5, 5, 2), "y": ep.Linspace(-5, 5, 2)}
        >>> found = ep.search.explore(bowl, space, ep.search.evolution(CMA_ES),
        ...     rounds=20, n=16,
        ...                    key=jax.random.key(0))
        >>> found.best().value < 0.01
        True
    """
    cure = "Give a class of `evosax.algorithms`, such as `CMA_ES`."
    _check("search.evolution", "evosax", mode, "strategy", strategy, cure)
    return Evolution(strategy, by, mode)


def optuna(
    sampler: Callable[..., Any], by: Compared = None, mode: str = "min"
) -> Sampler:
    """Any sampler of Optuna, asked for a whole round at once.

    Each round begins a study of all trials so far: the state is these trials, and the
    proposals depend on nothing else. In `Linspace` and `Geomspace` (there in the
    logarithm) any number is proposed, other axes are categories. A point that failed,
    or has a NaN, is a failed trial.

    **Arguments:**

    - `sampler`: makes a sampler when it is called with `seed=`, such as
      `optuna.samplers.TPESampler`, or
      `functools.partial(TPESampler, constant_liar=True)`, which spreads the points of
      one round.
    - `by`, `mode`: what is made small or large, as in `SweepResult.best`.

    **Returns:** a `Method` for `explore`, whose state JSON can hold but for the space.

    **Raises:** `TypeError` for what makes no sampler, `ValueError` without a key.

    !!! example

        >>> import jax
        >>> import eqx_pipe as ep
        >>> from optuna.samplers import RandomSampler
        >>> space = {"x": ep.Geomspace(1e-3, 1.0, 2), "act": ep.Static(["re", "ge"])}
        >>> found = ep.search.explore(lambda p: p["x"] + (p["act"] == "re"), space,
        ...                    ep.search.optuna(RandomSampler), rounds=2, n=4,
        ...                    key=jax.random.key(0))
        >>> len(found), found.best().point["act"]
        (8, 'ge')
    """
    cure = (
        "Give what makes a sampler from a seed, such as `optuna.samplers.TPESampler`."
    )
    _check("search.optuna", "optuna", mode, "sampler", sampler, cure)
    return Sampler(sampler, by, mode)


def _check(
    function: str, package: str, mode: str, argument: str, made_by: object, cure: str
) -> None:
    """What is asked of every method that another package proposes for."""
    optional(function, package, "search")
    check_choice(function, "mode", mode, ("min", "max"))
    if not callable(made_by):
        wrong = f"`{argument}` is {describe_value(made_by)}."
        raise type_error(function, wrong, cure)
