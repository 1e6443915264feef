"""`StoredArray`: a variable of a store as an array that is read when it is indexed."""

import functools as ft
import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool

from .objects import AT_ONCE
from .store import Store


class StoredArray(np.lib.mixins.NDArrayOperatorsMixin):
    """One variable of a store as an array that is read when it is indexed.

    It has a `shape` and a `dtype`; `[i]`, slices, lists of indices and masks return
    arrays, as do `numpy.asarray` and `jax.numpy.asarray`. Operators, array methods and
    NumPy functions read the whole variable; JAX functions require `leaf[:]`. The
    leading axis counts the points, or with `grid=True` the leading axes are the dims of
    the grid. `kind` is the kind of PRNG keys, which are stored as raw data. Reading
    raises if a chunk that was `done` when the result was created is missing.
    """

    def __init__(
        self,
        store: Store,
        variable: int,
        dtype: Any,
        kind: Any = None,
        done: Bool[np.ndarray, " chunks"] | None = None,
        grid: bool = False,
    ):
        lengths = store.chunks.lengths
        self.store, self.done = store, done
        self._variable, self._raw, self._kind, self._grid = variable, dtype, kind, grid
        self._inner = store.variables[variable].inner
        self._lead = lengths if grid else (math.prod(lengths),)
        self._last: tuple[int, np.ndarray] | None = None
        empty = self._wrap(np.zeros((0, *self._inner), dtype))
        self.dtype: Any = empty.dtype
        self.shape: tuple[int, ...] = (*self._lead, *empty.shape[1:])
        self.ndim, self.size = len(self.shape), math.prod(self.shape)
        self.nbytes = self.size * self.dtype.itemsize

    def __repr__(self) -> str:
        shape = ",".join(map(str, self.shape))
        return f"StoredArray({self.dtype}[{shape}] in {self.store.path})"

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        if self._kind is not None:
            raise TypeError(
                "NumPy does not support PRNG keys. `leaf[:]` returns them as an array "
                "of JAX; `to_xarray()` has their raw data."
            )
        if copy is False:
            raise ValueError(
                "a stored array cannot be read without a copy. Leave out `copy=False`."
            )
        whole = self[...]
        return whole if dtype is None else whole.astype(dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kw: Any) -> Any:
        arrays = [x[...] if isinstance(x, StoredArray) else x for x in inputs]
        return getattr(ufunc, method)(*arrays, **kw)

    def __getattr__(self, name: str) -> Any:
        # Other attributes of arrays, such as `mean`, `max`, `T` and `astype`.
        if name.startswith("_") or not hasattr(np.ndarray, name):
            raise AttributeError(f"`{type(self).__name__}` has no attribute `{name}`.")
        return getattr(self[...], name)

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def grid(self, stored: bool = False) -> "StoredArray":
        """Return the array with leading axes for the dims of the grid, unread.

        With `stored`, it has the dtype of the store, and PRNG keys are raw data.
        """
        dtype, kind = self._raw, self._kind
        if stored:
            dtype, kind = self.store.variables[self._variable].dtype, None
        return StoredArray(self.store, self._variable, dtype, kind, self.done, True)

    def __getitem__(self, index: object) -> Any:
        index = index if isinstance(index, tuple) else (index,)
        first: Any
        first, *rest = index or (Ellipsis,)
        n = self.shape[0]
        if _is_int(first):
            i = int(self._positions(operator.index(first)))
            return self._read(i, i + 1)[(0, *rest)]
        if isinstance(first, slice):
            chosen = range(n)[first]
            low, high = min(chosen, default=0), max(chosen, default=-1) + 1
            values = self._read(low, high)[:: abs(chosen.step)]
            return (values if chosen.step > 0 else values[::-1])[(slice(None), *rest)]
        if not (rest or self._grid or first is Ellipsis or first is None):
            return self._take(self._positions(first))
        return self._read(0, n)[index]

    def _positions(self, index: object) -> np.ndarray:
        """Return the positions on the leading axis of an index, by NumPy's rules."""
        n = self.shape[0]
        index = np.asarray(index, np.int64 if np.size(index) == 0 else None)
        np.broadcast_to(0, (n,))[index]  # raises NumPy's errors, without memory
        if index.dtype == bool:
            return np.flatnonzero(index)
        return np.where(index < 0, index + n, index)

    def _take(self, index: np.ndarray) -> Any:
        """Return the values at some points, in any order."""
        flat, chunks = index.reshape(-1), self.store.chunks
        taken = np.empty((len(flat), *self._inner), self._raw)
        parts = dict(chunks.grouped(flat))
        for number, values in self._chunks([*parts]):
            here = parts[number]
            taken[here] = values[flat[here] - chunks.span(number)[0]]
        return self._wrap(taken.reshape(*index.shape, *self._inner))

    def _read(self, first: int, last: int) -> Any:
        """Return the values of a range of positions on the leading axis."""
        row = math.prod(self._lead[1:])
        whole = np.empty(((last - first) * row, *self._inner), self._raw)
        begin, end = first * row, last * row
        if begin < end:
            edges = self.store.chunks.holding(np.array([begin, end - 1])).tolist()
            for number, values in self._chunks(range(edges[0], edges[1] + 1)):
                start, stop = self.store.chunks.span(number)
                at, until = max(start, begin), min(stop, end)
                whole[at - begin : until - begin] = values[at - start : until - start]
        return self._wrap(whole.reshape(last - first, *self._lead[1:], *self._inner))

    def _chunks(self, numbers: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
        """Yield some chunks with their values; a bucket sends several at once."""
        for k in range(0, len(numbers), AT_ONCE):
            some = numbers[k : k + AT_ONCE]
            acts = [ft.partial(self._chunk, number) for number in some]
            yield from zip(some, self.store.files.at_once(acts), strict=True)

    def _chunk(self, number: int) -> np.ndarray:
        """Return the values of a chunk; the last one is cached for iteration."""
        last = self._last
        if last is not None and last[0] == number:
            return last[1]
        must_exist = self.done is not None and bool(self.done[number])
        values = self.store.read(number, self._variable, must_exist).astype(self._raw)
        self._last = (number, values)
        return values

    def _wrap(self, raw: np.ndarray) -> Any:
        if self._kind is None:
            return raw
        return jax.random.wrap_key_data(jnp.asarray(raw), impl=self._kind)


def _is_int(x: object) -> bool:
    if isinstance(x, bool | np.bool_) or not hasattr(x, "__index__"):
        return False
    return getattr(x, "ndim", 0) == 0
