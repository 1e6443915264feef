"""Values that are read when somebody asks for them."""

import math
import operator
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._errors import message
from .store import Store


class Stored(np.lib.mixins.NDArrayOperatorsMixin):
    """One variable of a store as an array that is read when it is indexed.

    It has a `shape` and a `dtype`; `[i]`, slices, lists of indices and masks give
    arrays, as do `numpy.asarray` and `jax.numpy.asarray`. Operators, methods of arrays
    and functions of NumPy read all of it; functions of JAX want `leaf[:]`. The leading
    axis counts the points, or with `grid=True` the leading axes are the dims of the
    grid. `kind` is that of PRNG keys, which are stored as their raw data.
    """

    def __init__(
        self,
        store: Store,
        variable: int,
        dtype: Any,
        kind: Any = None,
        grid: bool = False,
    ):
        lengths = store.chunks.lengths
        self.store = store
        self._variable, self._raw, self._kind, self._grid = variable, dtype, kind, grid
        self._inner = store.arrays[variable].shape[len(lengths) :]
        self._lead = lengths if grid else (math.prod(lengths),)
        self._last: tuple[int, np.ndarray] | None = None
        empty = self._wrap(np.zeros((0, *self._inner), dtype))
        self.dtype: Any = empty.dtype
        self.shape: tuple[int, ...] = (*self._lead, *empty.shape[1:])

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        shape = ",".join(map(str, self.shape))
        return f"Stored({self.dtype}[{shape}] in {self.store.path})"

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        if self._kind is not None:
            raise TypeError(
                "PRNG keys are no NumPy array. `leaf[:]` gives them as an array of "
                "JAX; their raw data are in `to_xarray()`."
            )
        whole = self[...]
        return whole if dtype is None else whole.astype(dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kw: Any) -> Any:
        given = [x[...] if isinstance(x, Stored) else x for x in inputs]
        return getattr(ufunc, method)(*given, **kw)

    def __jax_array__(self) -> jax.Array:
        return jnp.asarray(self[...])

    def __getattr__(self, name: str) -> Any:
        # What arrays have besides: `mean`, `max`, `T`, `astype`.
        if name.startswith("_") or not hasattr(np.ndarray, name):
            raise AttributeError(f"`Stored` has no attribute `{name}`.")
        return getattr(self[...], name)

    def reshape(self, *shape: Any) -> Any:
        """With the dims of the grid in front it stays unread, else it is an array."""
        given = tuple(shape[0]) if len(shape) == 1 and not _is_int(shape[0]) else shape
        lengths = self.store.chunks.lengths
        if given == (*lengths, *self.shape[len(self._lead) :]):
            return Stored(self.store, self._variable, self._raw, self._kind, True)
        return self[...].reshape(given)

    def __getitem__(self, index: Any) -> Any:
        index = index if isinstance(index, tuple) else (index,)
        first: Any
        first, *rest = index or (Ellipsis,)
        n = self.shape[0]
        if _is_int(first):
            i = _within(operator.index(first), n)
            return self._read(i, i + 1)[(0, *rest)]
        if isinstance(first, slice):
            chosen = range(n)[first]
            low, high = min(chosen, default=0), max(chosen, default=-1) + 1
            found = self._read(low, high)[:: abs(chosen.step)]
            return (found if chosen.step > 0 else found[::-1])[(slice(None), *rest)]
        if not (rest or self._grid or first is Ellipsis or first is None):
            return self._take(np.asarray(first))
        return self._read(0, n)[index]

    def _take(self, index: np.ndarray) -> Any:
        """The values at some points, in any order."""
        n = self.shape[0]
        if index.dtype == bool and index.shape != (n,):
            raise IndexError(
                message(
                    "SweepResult",
                    f"a mask {list(index.shape)} for {n} values in a store.",
                    "Give a mask with one bool for each point, such as `result.ok`.",
                )
            )
        if index.dtype == bool:
            index = np.flatnonzero(index)
        elif index.size and index.dtype.kind not in "iu":
            raise IndexError(
                message(
                    "SweepResult",
                    f"an index of {index.dtype} for values in a store.",
                    "Give integers, a mask with one bool for each point, or a slice.",
                )
            )
        flat = np.array([_within(int(i), n) for i in index.reshape(-1)], np.int64)
        found = np.empty((len(flat), *self._inner), self._raw)
        chunk = np.array([self.store.chunks.holds(int(i)) for i in flat], np.int64)
        for number in map(int, np.unique(chunk)):
            here = chunk == number
            start = self.store.chunks.span(number)[0]
            found[here] = self._chunk(number)[flat[here] - start]
        return self._wrap(found.reshape(*index.shape, *self._inner))

    def _read(self, first: int, last: int) -> Any:
        """The values from one position on the leading axis to another."""
        row = math.prod(self._lead[1:])
        found = np.empty(((last - first) * row, *self._inner), self._raw)
        begin, at, end = first * row, first * row, last * row
        while at < end:
            number = self.store.chunks.holds(at)
            start, stop = self.store.chunks.span(number)
            stop = min(stop, end)
            values = self._chunk(number)[at - start : stop - start]
            found[at - begin : stop - begin] = values
            at = stop
        return self._wrap(found.reshape(last - first, *self._lead[1:], *self._inner))

    def _chunk(self, number: int) -> np.ndarray:
        """The values of a chunk; the last one is kept, for those who iterate."""
        last = self._last
        if last is not None and last[0] == number:
            return last[1]
        found = self.store.read(number, self._variable).astype(self._raw)
        self._last = (number, found)
        return found

    def _wrap(self, raw: np.ndarray) -> Any:
        if self._kind is None:
            return raw
        return jax.random.wrap_key_data(jnp.asarray(raw), impl=self._kind)


def stored_in(leaves: Iterable[Any]) -> Store | None:
    """The store that all of some leaves are read from, as they stand; or `None`."""
    leaves = list(leaves)
    if leaves and all(isinstance(leaf, Stored) for leaf in leaves):
        return leaves[0].store
    return None


def _is_int(x: Any) -> bool:
    if isinstance(x, bool | np.bool_) or not hasattr(x, "__index__"):
        return False
    return getattr(x, "ndim", 0) == 0


def _within(i: int, n: int) -> int:
    if not -n <= i < n:
        raise IndexError(
            message(
                "SweepResult",
                f"index {i} is out of range for {n} values in a store.",
                f"Give one from 0 to {n - 1}, or from {-n} to -1 to count from the "
                "end.",
            )
        )
    return i % n
