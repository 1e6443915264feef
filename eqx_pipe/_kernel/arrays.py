"""Rules for primitives on arrays, whose elements are scalars of the program.

Moving elements leaves no trace in the program. A sum becomes additions in order, and an
element at a place that is known only when the kernel runs is selected from all places.
"""

import functools as ft
import itertools as it
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._jaxprs import Equation
from .scalars import (
    Scalar,
    Scalars,
    Writer,
    filled,
    known_array,
    rule,
    single,
)

_MOST_PLACES = 4096


def _moving(name: str, move: Any) -> None:
    """Register a primitive that moves elements, as a function of its parameters."""

    @rule(name)
    def run(writer: Writer, eqn: Equation, *inputs: Scalars) -> list[Scalars]:
        out = move(*inputs, **eqn.params)
        rows = out if isinstance(out, list) else [out]
        return [x if isinstance(x, np.ndarray) else single(x) for x in rows]


_moving("transpose", lambda x, permutation, **_: x.transpose(permutation))
_moving("rev", lambda x, dimensions, **_: np.flip(x, dimensions))
_moving("concatenate", lambda *xs, dimension, **_: np.concatenate(xs, dimension))
_moving("unstack", lambda x, axis, **_: list(np.moveaxis(x, axis, 0)))
_moving("tile", lambda x, reps, **_: np.tile(x, reps))
_moving("stack", lambda *xs, axis=0, **_: np.stack(xs, axis))
_moving("split", lambda x, sizes, axis, **_: np.split(x, np.cumsum(sizes)[:-1], axis))
_moving(
    "slice",
    lambda x, start_indices, limit_indices, strides, **_: x[
        tuple(map(slice, start_indices, limit_indices, strides or [1] * x.ndim))
    ],
)


@rule("reshape", "squeeze", "expand_dims")
def _reshape(writer: Writer, eqn: Equation, x: Scalars) -> list[Scalars]:
    return [x.reshape(_shape(eqn))]


def _shape(eqn: Equation) -> tuple[int, ...]:
    aval: Any = eqn.outvars[0].aval
    return aval.shape


def _dtype(eqn: Equation) -> Any:
    aval: Any = eqn.outvars[0].aval
    return aval.dtype


@rule("broadcast_in_dim")
def _broadcast(writer: Writer, eqn: Equation, x: Scalars) -> list[Scalars]:
    shape = _shape(eqn)
    aligned = [1] * len(shape)
    for axis, size in zip(eqn.params["broadcast_dimensions"], x.shape, strict=True):
        aligned[axis] = size
    return [np.broadcast_to(x.reshape(aligned), shape)]


@rule("iota")
def _iota(writer: Writer, eqn: Equation) -> list[Scalars]:
    along, dtype = eqn.params["dimension"], eqn.params["dtype"]
    return [filled(_shape(eqn), lambda i: writer.constant(i[along], dtype))]


@rule("pad")
def _pad(writer: Writer, eqn: Equation, x: Scalars, fill: Scalars) -> list[Scalars]:
    config = eqn.params["padding_config"]

    def at(index: tuple[int, ...]) -> Scalar:
        place = []
        for k, (low, _, inner), size in zip(index, config, x.shape, strict=True):
            quotient, rest = divmod(k - low, inner + 1)
            if rest or not 0 <= quotient < size:
                return fill[()]
            place.append(quotient)
        return x[tuple(place)]

    return [filled(_shape(eqn), at)]


_FOLDS = {
    "reduce_sum": "add",
    "reduce_prod": "mul",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_or": "or",
    "reduce_and": "and",
    "reduce_xor": "xor",
    "cumsum": "add",
    "cumprod": "mul",
    "cummax": "max",
    "cummin": "min",
}


def _first_axes(x: Scalars, axes: Sequence[int]) -> Scalars:
    """Return an array with `axes` as its only first one."""
    rest = [k for k in range(x.ndim) if k not in axes]
    moved = x.transpose([*axes, *rest])
    return moved.reshape(-1, *[x.shape[k] for k in rest])


@rule("reduce_sum", "reduce_prod", "reduce_max", "reduce_min")
@rule("reduce_or", "reduce_and", "reduce_xor")
def _reduce(writer: Writer, eqn: Equation, x: Scalars) -> list[Scalars]:
    rows = _first_axes(x, eqn.params["axes"])
    if not len(rows):
        raise writer.refuse("reduces no numbers", "Leave out the empty array.")
    combine = ft.partial(writer.apply, _FOLDS[eqn.primitive.name])
    return [filled(rows.shape[1:], lambda i: ft.reduce(combine, rows[(..., *i)]))]


@rule("cumsum", "cumprod", "cummax", "cummin")
def _cumulative(writer: Writer, eqn: Equation, x: Scalars) -> list[Scalars]:
    combine = ft.partial(writer.apply, _FOLDS[eqn.primitive.name])
    axis, backwards = eqn.params["axis"], eqn.params["reverse"]
    order = slice(None, None, -1 if backwards else 1)
    rows = np.moveaxis(x, axis, 0)[order]
    sums = np.asarray([*it.accumulate(rows, np.frompyfunc(combine, 2, 1))], object)
    return [np.moveaxis(sums[order], 0, axis)]


@rule("argmax", "argmin")
def _argmax(writer: Writer, eqn: Equation, x: Scalars) -> list[Scalars]:
    dtype = eqn.params["index_dtype"]
    better = "gt" if eqn.primitive.name == "argmax" else "lt"
    rows = _first_axes(x, eqn.params["axes"])
    apply = writer.apply

    def one(index: tuple[int, ...]) -> Scalar:
        column = rows[(slice(None), *index)]
        best, at = column[0], writer.constant(0, dtype)
        for k, value in enumerate(column[1:], 1):
            wins = apply(better, value, best, dtype=bool)
            if jnp.issubdtype(value.dtype, jnp.floating):  # the first NaN wins
                nan = apply("ne", value, value, dtype=bool)
                number = apply("eq", best, best, dtype=bool)
                wins = apply("or", wins, apply("and", nan, number))
            best = apply("select_n", wins, best, value, dtype=value.dtype)
            place = writer.constant(k, dtype)
            at = apply("select_n", wins, at, place, dtype=dtype)
        return at

    return [filled(rows.shape[1:], one)]


@rule("dot_general")
def _dot_general(
    writer: Writer, eqn: Equation, x: Scalars, y: Scalars
) -> list[Scalars]:
    (x_sum, y_sum), (x_batch, y_batch) = eqn.params["dimension_numbers"]
    x_rest = [k for k in range(x.ndim) if k not in (*x_sum, *x_batch)]
    y_rest = [k for k in range(y.ndim) if k not in (*y_sum, *y_batch)]
    x = x.transpose([*x_batch, *x_rest, *x_sum])
    y = y.transpose([*y_batch, *y_rest, *y_sum])
    batch, rest = len(x_batch), len(x_batch) + len(x_rest)
    dtype = _dtype(eqn)

    def cast(scalar: Scalar) -> Scalar:
        if scalar.dtype == dtype:
            return scalar
        name = "convert_element_type"
        return writer.apply(name, scalar, dtype=dtype, new_dtype=dtype)

    def one(index: tuple[int, ...]) -> Scalar:
        left = x[(*index[:rest], ...)]
        right = y[(*index[:batch], *index[rest:], ...)]
        pairs = zip(left.flat, right.flat, strict=True)
        products = [writer.apply("mul", cast(a), cast(b)) for a, b in pairs]
        return ft.reduce(ft.partial(writer.apply, "add"), products)

    return [filled(_shape(eqn), one)]


def _clamped(writer: Writer, start: Scalar, most: int) -> Scalar:
    low, high = (writer.constant(k, start.dtype) for k in (0, most))
    return writer.apply("clamp", low, start, high)


def _is_at(writer: Writer, start: Scalar, place: int) -> Scalar:
    return writer.apply("eq", start, writer.constant(place, start.dtype), dtype=bool)


def _picked(writer: Writer, choices: Sequence[Scalars], which: Scalar) -> Scalars:
    """Return `choices[which]` for an index in range."""
    if which.known is not None:
        return choices[int(which.known)]
    out = choices[0]
    for k, choice in enumerate(choices[1:], 1):
        out = _chosen(writer, _is_at(writer, which, k), choice, out)
    return out


def _chosen(writer: Writer, test: Scalar, then: Scalars, otherwise: Scalars) -> Scalars:
    def one(index: tuple[int, ...]) -> Any:
        elements = [test, otherwise[index], then[index]]
        dtype = getattr(elements[1], "dtype", None)
        return writer.on_words("select_n", elements, dtype, {})

    return filled(then.shape, one)


def _window(
    writer: Writer, x: Scalars, starts: dict[int, Scalar], sizes: Sequence[int]
) -> Scalars:
    """Return the window of an array that begins at `starts`, which are in range."""
    for axis, size in enumerate(sizes):
        rows = np.moveaxis(x, axis, 0)
        places = [
            np.moveaxis(rows[k : k + size], 0, axis)
            for k in range(len(rows) - size + 1)
        ]
        x = _picked(writer, places, starts[axis]) if axis in starts else places[0]
    return x


@rule("dynamic_slice")
def _dynamic_slice(
    writer: Writer, eqn: Equation, x: Scalars, *starts: Scalars
) -> list[Scalars]:
    sizes = eqn.params["slice_sizes"]
    pairs = zip(starts, x.shape, sizes, strict=True)
    clamped = [_clamped(writer, s[()], n - size) for s, n, size in pairs]
    return [_window(writer, x, dict(enumerate(clamped)), sizes)]


@rule("dynamic_update_slice")
def _dynamic_update_slice(
    writer: Writer, eqn: Equation, x: Scalars, update: Scalars, *starts: Scalars
) -> list[Scalars]:
    pairs = zip(starts, x.shape, update.shape, strict=True)
    clamped = [_clamped(writer, s[()], n - size) for s, n, size in pairs]
    out = x.copy()
    _write_window(writer, out, update, dict(enumerate(clamped)), lambda old, new: new)
    return [out]


def _write_window(
    writer: Writer, x: Scalars, update: Scalars, starts: dict[int, Scalar], combine: Any
) -> None:
    """Change a window of an array; out of range, nothing."""
    spans = []
    for axis, (n, size) in enumerate(zip(x.shape, update.shape, strict=True)):
        start = starts.get(axis)
        known = 0 if start is None else start.known
        span = range(n - size + 1)
        spans.append(span if known is None else [k for k in span if k == int(known)])
    if math.prod(map(len, spans)) * update.size > _MOST_PLACES:
        raise writer.refuse(
            f"changes {update.size} numbers at one of {math.prod(map(len, spans))} "
            "places, which all have to be written",
            "Use smaller arrays, or sweep `fn` itself.",
        )
    before = x.copy()
    for place in it.product(*spans):
        tests = [
            _is_at(writer, starts[axis], k)
            for axis, k in enumerate(place)
            if axis in starts and starts[axis].known is None
        ]
        test = ft.reduce(ft.partial(writer.apply, "and"), tests) if tests else None
        for index in np.ndindex(*update.shape):
            at = tuple(map(int, np.add(place, index)))
            new = single(combine(before[at], update[index]))
            if test is not None:
                new = _chosen(writer, test, new, single(x[at]))
            x[at] = new[()]


def _mode(eqn: Equation) -> str:
    return str(eqn.params["mode"])


def _starts(
    indices: Scalars, batch: tuple[int, ...], axes: Sequence[int]
) -> dict[int, Scalar]:
    """Return the first place of a window along axes, for an element of a batch."""
    return {axis: indices[(*batch, k)] for k, axis in enumerate(axes)}


def _in_range(
    writer: Writer, starts: dict[int, Scalar], most: Sequence[int]
) -> Scalar | None:
    """Return whether a window is inside of an array."""
    tests = []
    for axis, start in starts.items():
        low, high = (writer.constant(k, start.dtype) for k in (0, most[axis]))
        tests.append(writer.apply("ge", start, low, dtype=bool))
        tests.append(writer.apply("le", start, high, dtype=bool))
    return ft.reduce(ft.partial(writer.apply, "and"), tests) if tests else None


@rule("gather")
def _gather(
    writer: Writer, eqn: Equation, x: Scalars, indices: Scalars
) -> list[Scalars]:
    params: Any = eqn.params
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    offsets = numbers.offset_dims
    batching = numbers.operand_batching_dims
    dropped = (*numbers.collapsed_slice_dims, *batching)
    kept = [k for k in range(x.ndim) if k not in dropped]
    most = [n - size for n, size in zip(x.shape, sizes, strict=True)]
    fill = _fill_value(eqn) if "FILL" in _mode(eqn) else None

    @ft.cache
    def window(batch: tuple[int, ...]) -> Scalars:
        starts = _starts(indices, batch, numbers.start_index_map)
        clamped = {a: _clamped(writer, s, most[a]) for a, s in starts.items()}
        of_batch = zip(batching, numbers.start_indices_batching_dims, strict=True)
        for axis, position in of_batch:
            clamped[axis] = writer.constant(batch[position], "int32")
        out = _window(writer, x, clamped, sizes)
        inside = _in_range(writer, starts, most) if fill is not None else None
        if inside is None or (inside.known is not None and inside.known):
            return out
        other = known_array(np.full(out.shape, fill, _dtype(eqn)))
        return _chosen(writer, inside, out, other)

    def one(index: tuple[int, ...]) -> Any:
        batch = tuple(k for axis, k in enumerate(index) if axis not in offsets)
        place = dict(zip(kept, (index[axis] for axis in offsets), strict=True))
        return window(batch)[tuple(place.get(axis, 0) for axis in range(x.ndim))]

    return [filled(_shape(eqn), one)]


def _fill_value(eqn: Equation) -> Any:
    dtype: Any = _dtype(eqn)
    if eqn.params["fill_value"] is not None:
        return eqn.params["fill_value"]
    if jnp.issubdtype(dtype, jnp.floating):
        return math.nan
    if jnp.issubdtype(dtype, jnp.bool_):
        return True
    info = jnp.iinfo(dtype)
    return info.min if jnp.issubdtype(dtype, jnp.signedinteger) else info.max


_SCATTERS = {
    "scatter": lambda writer, old, new: new,
    "scatter-add": lambda writer, old, new: writer.apply("add", old, new),
    "scatter-sub": lambda writer, old, new: writer.apply("sub", old, new),
    "scatter-mul": lambda writer, old, new: writer.apply("mul", old, new),
    "scatter-min": lambda writer, old, new: writer.apply("min", old, new),
    "scatter-max": lambda writer, old, new: writer.apply("max", old, new),
}
_SCATTERS |= {name.replace("-", "_"): f for name, f in _SCATTERS.items()}


@rule(*_SCATTERS)
def _scatter(
    writer: Writer, eqn: Equation, x: Scalars, indices: Scalars, updates: Scalars
) -> list[Scalars]:
    params: Any = eqn.params
    numbers = params["dimension_numbers"]
    batching = numbers.operand_batching_dims
    dropped = (*numbers.inserted_window_dims, *batching)
    windows = numbers.update_window_dims
    outer = [k for k in range(updates.ndim) if k not in windows]
    arranged = updates.transpose([*outer, *windows])
    batch_shape = tuple(updates.shape[k] for k in outer)
    out = x.copy()
    combine = ft.partial(_SCATTERS[eqn.primitive.name], writer)
    for batch in np.ndindex(*batch_shape):
        update = np.asarray(arranged[batch], object)
        update = np.expand_dims(update, tuple(dropped))
        starts = _starts(indices, batch, numbers.scatter_dims_to_operand_dims)
        if "CLIP" in _mode(eqn):
            sizes = zip(x.shape, update.shape, strict=True)
            most = [n - size for n, size in sizes]
            starts = {a: _clamped(writer, s, most[a]) for a, s in starts.items()}
        of_batch = zip(batching, numbers.scatter_indices_batching_dims, strict=True)
        for axis, position in of_batch:
            starts[axis] = writer.constant(batch[position], "int32")
        _write_window(writer, out, update, starts, combine)
    return [out]


# Primitives of Equinox, which are those of a point outside of `vmap`.


@rule("unvmap_any", "unvmap_all", "unvmap_max")
def _unvmap(writer: Writer, eqn: Equation, x: Scalars) -> list[Scalars]:
    name = {"any": "or", "all": "and", "max": "max"}[eqn.primitive.name[7:]]
    return [single(ft.reduce(ft.partial(writer.apply, name), x.flat))]


@rule("select_if_vmap")
def _select_if_vmap(
    writer: Writer, eqn: Equation, test: Scalars, then: Scalars, otherwise: Scalars
) -> list[Scalars]:
    return [np.broadcast_to(then, _shape(eqn))]


@rule("maybe_set")
def _maybe_set(writer: Writer, eqn: Equation, *inputs: Scalars) -> list[Scalars]:
    primitive: Any = eqn.primitive
    return writer.inline(lambda *xs: primitive.impl(*xs, **eqn.params), *inputs)


@rule("nonbatchable", "nontraceable", "nondifferentiable", "nondifferentiable_backward")
@rule("optimization_barrier", "announce_transform", "pvary", "name")
def _as_is(writer: Writer, eqn: Equation, *inputs: Scalars) -> Sequence[Scalars]:
    return inputs


@rule("empty", "empty2")
def _empty(writer: Writer, eqn: Equation, *inputs: Scalars) -> list[Scalars]:
    aval: Any = eqn.outvars[0].aval
    return [known_array(np.zeros(aval.shape, aval.dtype))]


@rule("iota_2x32_shape")
def _iota_2x32_shape(writer: Writer, eqn: Equation) -> list[Scalars]:
    shape = eqn.params["shape"]
    count = np.arange(math.prod(shape), dtype=np.uint64).reshape(shape)
    halves = count >> np.uint64(32), count & np.uint64(0xFFFFFFFF)
    return [known_array(half.astype(np.uint32)) for half in halves]
