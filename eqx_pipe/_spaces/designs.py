"""Joint designs: few points that fill a box of many dimensions evenly."""

import functools as ft
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, SupportsIndex, TypeAlias

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._check import check_int
from .._errors import describe_value, nearest, type_error, value_error
from .._tree import join_path, on_device, path_name
from .._types import PyTree
from .axes import Column
from .axis import Axis, Named, check_dim, check_length, is_axis
from .lookup import as_ends
from .unit import at_shares

# The direction numbers of SciPy's generator have 30 bits.
_SOBOL_MOST = 2**30

Texts: TypeAlias = Mapping[str, str] | str | None
"""Labels or units by the path of a pair; a bare one is that of the only pair."""


def sobol(
    bounds_tree: PyTree,
    n: SupportsIndex,
    *,
    seed: SupportsIndex = 0,
    dim: str = "sobol",
    label: Texts = None,
    unit: Texts = None,
) -> PyTree[Axis]:
    """The first `n` points of a scrambled Sobol sequence in a box.

    The points of a longer sequence begin with those of a shorter one. They are spread
    most evenly where `n` is a power of 2.

    **Arguments:**

    - `bounds_tree`: a pytree whose leaves are pairs `(lo, hi)` of finite real numbers,
      or of arrays of one shape (each entry then varies by itself). A tuple or list of
      two numbers or arrays is a pair; every other tuple or list is a node of the tree.
      Or axes, of which values are taken as by `Space.from_unit`: `Geomspace(lo, hi)`,
      which needs no number of values here, evenly in the logarithm, `Values` and
      `Static` one of theirs.
    - `n`: how many points, at least 1 and at most `2**30`.
    - `seed`: of the scrambling, an integer of at least 0. (Keyword only.)
    - `dim`: the dim that the axes share. Two designs in one space need two names.
      (Keyword only.)
    - `label`, `unit`: what pictures and xarray's attributes `long_name` and `units` say
      of the values: dicts from a pair's path in `bounds_tree` to a text, as in
      `unit={"rate": "1/s"}`; or a text if there is one pair. (Keyword only.)

    **Returns:** the same pytree with an axis in the place of each pair, floats between
    `lo` and `hi`. (For whole numbers round them: `Mapped(jnp.round, axis)`.)

    **Units:** those of the bounds, for each pair its own.

    **Raises:** `ValueError` for bounds that are not finite or differ in shape, and a
    wrong `n` or `seed`; `TypeError` for a leaf that is neither a pair nor an axis.

    !!! example

        >>> import eqx_pipe as ep
        >>> tree = ep.sobol({"rate": (0.0, 1.0), "depth": (2, 8)}, 16)
        >>> ep.Space(tree).dims, ep.Space({**tree, "on": ep.Values([0, 1])}).size
        ({'sobol': 16}, 32)
        >>> ep.sobol({"rate": ep.Geomspace(1e-4, 1e-1), "on": ep.Values([0, 1])}, 4)
        {'rate': sobol(4, dim='sobol'), 'on': sobol(4, dim='sobol')}

    ??? cite "Source"

        Sobol (1967), scrambled after Matousek (1998), as in `scipy.stats.qmc.Sobol`.
    """

    def draw(qmc: Any, columns: int, n: int, seed: int) -> np.ndarray:
        # A whole power of 2 and cut, since SciPy warns about any other number.
        sampler = qmc.Sobol(columns, scramble=True, seed=seed)
        return sampler.random_base2((n - 1).bit_length())[:n]

    if check_length("sobol", n) > _SOBOL_MOST:
        raise value_error(
            "sobol",
            f"`n` is {n}, and a Sobol sequence has 2**30 points.",
            "Give at most so many, or use `latin_hypercube`.",
        )
    return _design("sobol", draw, bounds_tree, n, seed, dim, (label, unit))


def latin_hypercube(
    bounds_tree: PyTree,
    n: SupportsIndex,
    *,
    seed: SupportsIndex = 0,
    dim: str = "latin_hypercube",
    label: Texts = None,
    unit: Texts = None,
) -> PyTree[Axis]:
    """A Latin hypercube of `n` points in a box.

    Cut each side of the box into `n` equal parts: every part has exactly one point.

    **Arguments:**

    - `bounds_tree`: a pytree whose leaves are pairs `(lo, hi)` of finite real numbers,
      or of arrays of one shape (each entry then varies by itself). A tuple or list of
      two numbers or arrays is a pair; every other tuple or list is a node of the tree.
      Or axes, of which values are taken as by `Space.from_unit`: `Geomspace(lo, hi)`,
      which needs no number of values here, evenly in the logarithm, `Values` and
      `Static` one of theirs.
    - `n`: how many points, at least 1.
    - `seed`: of the draws, an integer of at least 0. (Keyword only.)
    - `dim`: the dim that the axes share. Two designs in one space need two names.
      (Keyword only.)
    - `label`, `unit`: what pictures and xarray's attributes `long_name` and `units` say
      of the values: dicts from a pair's path in `bounds_tree` to a text, as in
      `unit={"rate": "1/s"}`; or a text if there is one pair. (Keyword only.)

    **Returns:** the same pytree with an axis in the place of each pair, floats between
    `lo` and `hi`.

    **Units:** those of the bounds, for each pair its own.

    **Raises:** as `sobol`.

    !!! example

        >>> import eqx_pipe as ep
        >>> space = ep.Space(ep.latin_hypercube({"a": (0, 4), "b": (-1.0, 1.0)}, 4))
        >>> sorted(int(point["a"]) for point in space)
        [0, 1, 2, 3]

    ??? cite "Source"

        McKay, Beckman, Conover (1979), as in `scipy.stats.qmc.LatinHypercube`.
    """

    def draw(qmc: Any, columns: int, n: int, seed: int) -> np.ndarray:
        return qmc.LatinHypercube(columns, seed=seed).random(n)

    return _design("latin_hypercube", draw, bounds_tree, n, seed, dim, (label, unit))


def _design(
    function: str,
    draw: Callable[[Any, int, int, int], np.ndarray],
    tree: PyTree,
    n: SupportsIndex,
    seed: SupportsIndex,
    dim: str,
    texts: tuple[Texts, Texts],
) -> PyTree:
    """A tree of axes from points of the unit cube, a column for each number."""
    from scipy.stats import qmc  # takes half a second, so where it is used

    n = check_length(function, n)
    check_int(function, "seed", seed, 0)
    check_dim(function, dim)
    bounds: list[tuple[str, Any]] = []
    _map_pairs(function, lambda path, pair: bounds.append((path, pair)), tree)
    if not bounds:
        raise value_error(
            function,
            "`bounds_tree` has no leaf.",
            "Give at least one pair: `{'rate': (0.0, 1.0)}`.",
        )
    paths = [path for path, _ in bounds]
    labels = _by_path(function, "label", texts[0], paths)
    units = _by_path(function, "unit", texts[1], paths)
    named = [Named(function, labels.get(p), units.get(p)) for p in paths]
    ends = [
        None
        if is_axis(b)
        else as_ends(function, *b, place=f"in the bounds of `{p or 'x'}`, ")
        for p, b in bounds
    ]
    sizes = [1 if both is None else math.prod(np.shape(both[0][0])) for both in ends]
    cube = draw(qmc, sum(sizes), n, operator.index(seed))
    parts = np.split(cube, np.cumsum(sizes)[:-1], axis=1)
    design = f"{function}({', '.join(paths)}; n={n}, seed={seed})"

    def axes() -> Iterator[Axis]:
        for (path, bound), part, both, name in zip(
            bounds, parts, ends, named, strict=True
        ):
            make = ft.partial(_column, dim, (design, path), name)
            if both is None:
                yield at_shares(bound, part[:, 0], make, dim)
            else:
                yield make(_scaled(part, *both), name)

    made = axes()
    return _map_pairs(function, lambda path, bound: next(made), tree)


def _column(
    dim: str, part: tuple[str, str], given: Named, values: Any, own: Named
) -> Axis:
    """A column of a design; a label and a unit that are given go before the axis's."""
    named = given if given.attrs else own
    return Column(values=values, dim=dim, part=part, named=named)


def _by_path(
    function: str, argument: str, given: Texts, paths: Sequence[str]
) -> Mapping[str, str | None]:
    """Texts by the path of a pair; a bare one is that of the only pair."""
    if not isinstance(given, Mapping):
        if given is None or len(paths) == 1:
            return {paths[0]: given}
        raise type_error(
            function,
            f"`{argument}` is {describe_value(given)}, and there are {len(paths)} "
            "pairs of bounds.",
            f"Give a dict: `{argument}={{{paths[0]!r}: ...}}`.",
        )
    for path in given:
        if path not in paths:
            wrong = f"`{argument}` names {describe_value(path)}."
            raise value_error(function, wrong, nearest(path, paths))
    return given


def _scaled(part: np.ndarray, ends: tuple[Any, Any], precise: tuple[Any, Any]) -> Any:
    first, (lo, hi) = ends[0], precise
    share: Any = part.reshape(len(part), *first.shape)
    if isinstance(first, jax.Array):
        share = jnp.asarray(share, first.dtype)
    # Unless traced, in float64 and rounded once.
    # Not `lo + (hi - lo) * share`, where `hi - lo` may overflow.
    return on_device((lo * (1 - share) + hi * share).astype(first.dtype))


def _is_pair(node: Any) -> bool:
    # Not by `isinstance`: a named tuple of two is a container.
    return type(node) in (tuple, list) and len(node) == 2 and all(map(_is_end, node))


def _is_end(x: Any) -> bool:
    return isinstance(x, bool | int | float | complex) or hasattr(x, "dtype")


def _map_pairs(
    function: str, fn: Callable[[str, Any], Any], node: Any, path: str = ""
) -> Any:
    """The tree with `fn(path, pair)` for each pair, in the order they were written."""
    if _is_pair(node) or is_axis(node):
        return fn(path, node)

    def child(name: str, below: Any) -> Any:
        return _map_pairs(function, fn, below, join_path(path, name))

    # By hand and not by `jax.tree_util`, which sorts the keys of a dict: the order in
    # which pairs are written decides which column of the design each gets.
    if type(node) is dict:
        return {key: child(str(key), below) for key, below in node.items()}
    found, structure = jtu.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
    if any(not step for step, _ in found):  # a leaf, which flattens to itself
        raise type_error(
            function,
            f"`bounds_tree` has {describe_value(node)} at `{path or '.'}`.",
            "Its leaves are pairs `(lo, hi)` of numbers, or of arrays of one "
            "shape, or axes. Put what does not vary in the space beside the design.",
        )
    children = [child(path_name(step), below) for step, below in found]
    return jtu.tree_unflatten(structure, children)
