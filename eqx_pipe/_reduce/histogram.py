"""`Histogram`: the number of points in each bin."""

import contextlib
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Float64, Int64

from .._errors import describe_value, value_error
from .._types import PyTree
from . import exact
from .interface import (
    AbstractReducer,
    By,
    Ok,
    Over,
    ResultDims,
    over_field,
    scalar,
    scalar_of_each,
)


def as_edges(edges: ArrayLike | Sequence[ArrayLike]) -> tuple[float, ...]:
    """Return the edges of bins; raise unless they are increasing finite numbers."""
    found = np.zeros(1)
    with contextlib.suppress(TypeError, ValueError):
        found = np.asarray(edges, np.float64)
    increasing = found.ndim == 1 and found.size > 1 and np.all(np.diff(found) > 0)
    if not increasing or not np.all(np.isfinite(found)):
        raise value_error(
            "reduce.Histogram",
            f"`edges` is {describe_value(edges)}, which is not a sequence of at least "
            "two increasing finite edges.",
            "Give the edges, such as `numpy.linspace(0, 1, 11)` for ten bins: a "
            "running reduction does not know the range of the values in advance.",
        )
    return tuple(found.tolist())


class Counts(eqx.Module):
    """The result of `Histogram`: counts for each bin, and the edges of the bins.

    `below` and `above` count the points outside the bins. NaNs are not counted. With
    `over`, all counts have a leading axis.
    """

    counts: Int64[np.ndarray, "*cells bins"]
    edges: Float64[np.ndarray, "*cells edges"]
    below: int | Int64[np.ndarray, " cells"]
    above: int | Int64[np.ndarray, " cells"]


class Histogram(AbstractReducer):
    """The counts of the points whose scalar lies between the edges of bins.

    A bin includes its left edge but not its right one, except the last bin, which
    includes both, as in `numpy.histogram`. NaNs are not counted.

    **Arguments:**

    - `edges`: the edges of the bins, increasing, such as `numpy.linspace(0, 1, 11)`.
    - `by`: the scalar to count: the path of an output, or a function of the output
      that returns a real scalar. Not needed if the output is one scalar.
    - `over`: the dims to reduce, a name or several; the result then has the other dims.
      By default all points are reduced to one result. (Keyword only.)

    **Returns:** (as the sweep's `.values`) an object with `.counts`, `.edges`, and the
    numbers of points `.below` and `.above` all bins.

    **Raises:**

    - `ValueError` unless `edges` are increasing and finite.
    - When the sweep is called, `ValueError` if the counted output is not a real scalar.

    !!! example

        >>> import eqx_pipe as ep
        >>> space = ep.Linspace(0, 3, 4)
        >>> ep.sweep(lambda x: x, space, reduce=ep.reduce.Histogram([0, 2,
        ...     3])).values.counts
        array([2, 2])
    """

    edges: tuple[float, ...] = eqx.field(static=True, converter=as_edges)
    by: By = None
    over: Over = over_field()

    def dims_at(self, path: str, shape: tuple[int, ...]) -> ResultDims:
        edges = np.array(self.edges)
        dims = {"counts": {"bin": edges[:-1]}, "edges": {"edge": edges}}
        return dims.get(path, {}), None

    def begin(self, struct: PyTree) -> exact.Pair:
        scalar(self, struct)
        return exact.zero((len(self.edges) + 2,), jnp.uint32)

    def absorb(self, state: exact.Pair, values: PyTree, ok: Ok) -> exact.Pair:
        score = scalar_of_each(self, values)
        score = score.astype(jnp.int32) if score.dtype == jnp.bool_ else score
        lefts, last = _exact_edges(np.array(self.edges), score.dtype)
        bins = len(self.edges) - 1
        place = jnp.searchsorted(lefts, score, side="right", method="scan_unrolled")
        # The places: below, the bins, above, and a last one for NaNs and failed points.
        place = jnp.where((place == bins + 1) & (score <= last), bins, place)
        counted = ok & (score == score)
        place = jnp.where(counted, place, bins + 2)
        low = jnp.zeros(bins + 3, jnp.uint32).at[place].add(jnp.uint32(1))
        return exact.add(state, (low, jnp.zeros_like(low)))

    def merge(self, first: exact.Pair, second: exact.Pair) -> exact.Pair:
        return exact.add(first, second)

    def finish(self, state: exact.AnyPair) -> Counts:
        counts = exact.on_host(state, jnp.int32)
        edges = np.array(self.edges)
        if counts.ndim > 1:
            each = np.broadcast_to(edges, (len(counts), len(edges)))
            return Counts(counts[:, 1:-2], each, counts[:, 0], counts[:, -2])
        return Counts(counts[1:-2], edges, int(counts[0]), int(counts[-2]))


def _exact_edges(edges: np.ndarray, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return left edges and the last right one, in the dtype of the values.

    Left edges are rounded up and the last edge down, so that a number of this dtype
    falls into the same bin as in a comparison with the edges in float64.
    """
    if jnp.issubdtype(dtype, jnp.integer):
        limits = jnp.iinfo(dtype)
        # Use Python integers: floats do not represent the limits of 64 bits.
        lefts = [int(e) for e in np.ceil(edges)]
        last = min(max(int(np.floor(edges[-1])), limits.min), limits.max)
        # No number reaches an edge beyond the limit, so such edges are left out.
        lefts = [max(e, int(limits.min)) for e in lefts if e <= limits.max]
        return np.array(lefts, dtype), np.array(last, dtype)
    with np.errstate(over="ignore"):
        rounded = edges.astype(dtype)
    up, down = (np.array(x, dtype) for x in (np.inf, -np.inf))
    wide = rounded.astype(np.float64)
    lefts = np.where(wide < edges, np.nextafter(rounded, up), rounded)
    last = np.where(wide > edges, np.nextafter(rounded, down), rounded)[-1]
    return lefts, np.asarray(last)
