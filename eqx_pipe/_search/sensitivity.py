"""Sensitivities by SALib: its designs as spaces, its analyses as labelled datasets."""

from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from .._check import check_choice, check_int, check_is
from .._errors import describe_value, nearest, optional, value_error
from .._keys import check_key, seed_of
from .._spaces import Space, SpaceLike, as_space
from .._sweep import SweepResult
from .._tree import leaves_with_names
from .._types import Dataset, Key

Method: TypeAlias = Literal["sobol", "morris"]
"""The design and the analysis, by their names in SALib."""


class _Kind(NamedTuple):
    """A method of SALib: its indices, the rows of its design, and its options."""

    indices: tuple[str, ...]
    more: int  # rows for each row of the base, besides one for each axis
    sample: dict[str, Any]
    analyze: dict[str, Any]


# Effects of pairs of axes would take nearly twice as many points.
_FIRST = {"calc_second_order": False}
_KINDS = {
    "sobol": _Kind(("S1", "S1_conf", "ST", "ST_conf"), 2, _FIRST, _FIRST),
    "morris": _Kind(
        ("mu", "mu_star", "mu_star_conf", "sigma"), 1, {"num_levels": 4}, {}
    ),
}


def sensitivity_design(
    space: SpaceLike, num: int, *, method: Method = "sobol", key: Key | None = None
) -> Space:
    """Return the points that `sensitivity` needs.

    **Arguments:**

    - `space`: the axes to compare, over their whole ranges as in `Space.from_unit`:
      a `LogUniform` evenly in the logarithm, `Values` and `Static` as categories.
    - `num`: the number of base points for `"sobol"`, a power of 2, or of trajectories
      for `"morris"`.
    - `method`: `"sobol"`, the design of Saltelli with `num * (axes + 2)` points, or
      `"morris"`, the design of Morris with four levels and `num * (axes + 1)` points.
      (Keyword only.)
    - `key`: a PRNG key for the design; without one it is always the same. (Keyword
      only.)

    **Returns:** a `Space` with one dim named `point`.

    **Raises:** `ValueError` for any other method, if `num` is not a power of 2 for
    `"sobol"`, or if two axes vary together; `ImportError` without SALib.

    Needs `pip install 'eqx_pipe[search]'`.

    !!! example

        >>> import eqx_pipe as ep
        >>> axes = {"a": ep.Uniform(-1, 1), "b": ep.LogUniform(0.1, 10)}
        >>> ep.search.sensitivity_design(axes, 8).size
        32
    """
    function = "search.sensitivity_design"
    space = as_space(function, space)
    check_choice(function, "method", method, tuple(_KINDS))
    check_int(function, "num", num, 1)
    check_key(function, key)
    if method == "sobol" and num & (num - 1):
        raise value_error(
            function,
            f"`num` is {num}, but Sobol's points are balanced in powers of 2.",
            f"Give {1 << (num.bit_length() - 1)} or {1 << num.bit_length()}.",
        )
    sample = optional(function, f"SALib.sample.{method}", "search").sample
    return space.from_unit(
        sample(_problem(space), num, seed=seed_of(key), **_KINDS[method].sample)
    )


def sensitivity(
    result: SweepResult,
    space: SpaceLike,
    by: str | None = None,
    *,
    method: Method = "sobol",
    key: Key | None = None,
) -> Dataset:
    """Return the sensitivity of an output to each axis, by SALib.

    **Arguments:**

    - `result`: a sweep over `sensitivity_design(space, num, method=method)`.
    - `space`: the space of that design.
    - `by`: the path of an output, not needed if there is only one. Each entry of an
      array is analysed by itself.
    - `method`: the method of the design. (Keyword only.)
    - `key`: a PRNG key for the resampling of confidence intervals; without one it is
      always the same. (Keyword only.)

    **Returns:** an `xarray.Dataset` with the dim `axis` and the dims of the output. For
    `"sobol"` it has the first-order and the total index, `S1` and `ST`, and half the
    width of their 95 % confidence intervals, `S1_conf` and `ST_conf`. For `"morris"` it
    has the mean `mu` and the standard deviation `sigma` of the elementary effects, and
    the mean of their absolute values, `mu_star`, with `mu_star_conf`. Effects are
    scaled to the whole range of an axis.

    **Raises:** `ValueError` if the result does not fit the design, if `by` is not an
    output, or if points have no finite value; `TypeError` if `result` is not a
    `SweepResult`; `ImportError` without SALib.

    Needs `pip install 'eqx_pipe[search]'`.

    !!! example

        >>> import eqx_pipe as ep
        >>> axes = {"a": ep.Uniform(-1, 1), "b": ep.Uniform(-1, 1)}
        >>> design = ep.search.sensitivity_design(axes, 256)
        >>> result = ep.sweep(lambda p: 2 * p["a"] + p["b"], design)
        >>> ep.search.sensitivity(result, axes)["ST"].values.round(1).tolist()
        [0.8, 0.2]

    ??? cite "Source"

        J. Herman and W. Usher, "SALib" (2017); A. Saltelli and others (2010) for the
        indices of Sobol, M. D. Morris (1991) for elementary effects.
    """
    check_choice("search.sensitivity", "method", method, tuple(_KINDS))
    check_key("search.sensitivity", key)
    cure = "Give what `sweep` returns."
    check_is("search.sensitivity", "result", result, SweepResult, cure)
    space, kind = as_space("search.sensitivity", space), _KINDS[method]
    named = {name or "value": leaf for name, leaf in leaves_with_names(result.values)}
    name = next(iter(named)) if by is None and len(named) == 1 else by
    if not isinstance(name, str) or name not in named:
        wrong = f"`by` is {describe_value(by)}, but there are {len(named)} outputs."
        raise value_error("search.sensitivity", wrong, nearest(by, named))
    values = np.asarray(named[name][...], np.float64)
    wrong = ~result.ok | ~np.isfinite(values.reshape(len(values), -1)).all(axis=1)
    if wrong.any():
        raise value_error(
            "search.sensitivity",
            f"`{name}` has no finite value at {int(wrong.sum())} points, of which the "
            f"first is {int(np.argmax(wrong))}.",
            "A design is analysed as a whole: let the function give a number at every "
            "point, or narrow the axes.",
        )
    rows, problem = len(values), _problem(space)
    each = len(problem["names"]) + kind.more
    # This also raises for other axes, and for values beyond the ends of these axes.
    u = space.to_unit(result.space)
    if not rows or rows % each:
        raise value_error(
            "search.sensitivity",
            f"`result` has {rows} points, but a design of {method!r} has {each} for "
            "each point of the base.",
            f"Sweep over `sensitivity_design(space, num, method={method!r})`, all of "
            "it.",
        )
    module = f"SALib.analyze.{method}"
    analyze = optional("search.sensitivity", module, "search").analyze
    points = (u,) if method == "morris" else ()
    analyses = [
        analyze(problem, *points, column, seed=seed_of(key), **kind.analyze)
        for column in values.reshape(rows, -1).T
    ]
    shape = (len(problem["names"]), *values.shape[1:])
    dims = ("axis", *(f"{name}.{k}" for k in range(values.ndim - 1)))
    variables = {
        k: (dims, np.stack([np.asarray(one[k]) for one in analyses], -1).reshape(shape))
        for k in kind.indices
    }
    xarray = optional("search.sensitivity", "xarray", "search")
    attrs = {"method": method, "output": name, "points": rows, "confidence": 0.95}
    return xarray.Dataset(variables, {"axis": problem["names"]}, attrs)


def _problem(space: Space) -> dict[str, Any]:
    names = list(space.names)
    return {"num_vars": len(names), "names": names, "bounds": [[0.0, 1.0]] * len(names)}
