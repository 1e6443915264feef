"""Rules for primitives on arrays, whose elements are scalars of the program.

Moving elements leaves no trace in the program. A sum becomes additions in order, and an
element at a place that is known only when the kernel runs is selected from all places.
"""

import functools as ft
import itertools as it
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np

from .._jaxprs import Equation
from .scalars import MOVES, Scalar, Scalars, Writer, each, filled, rule, single


def _moving(name: str, move: Any) -> None:
    """Register a primitive that moves elements, as a function of its parameters."""
    MOVES.add(name)

    @rule(name)
    def run(writer: Writer, eqn: Equation, *inputs: Scalars) -> list[Scalars]:
        out = move(*inputs, **eqn.params)
        rows = out if isinstance(out, list) else [out]
        return [x if isinstance(x, np.ndarray) else single(x) for x in rows]


_moving("transpose", lambda x, permutation, **_: x.transpose(permutation))
_moving("rev", lambda x, dimensions, **_: np.flip(x, dimensions))
_moving("concatenate", lambda *xs, dimension, **_: np.concatenate(xs, dimension))
_moving("stack", lambda *xs, axis, **_: np.stack(xs, axis))
_moving("unstack", lambda x, axis, **_: [*np.moveaxis(x, axis, 0)])
_moving("tile", lambda x, reps, **_: np.tile(x, reps))
_moving("split", lambda x, sizes, axis, **_: np.split(x, np.cumsum(sizes)[:-1], axis))
_moving(
    "slice",
    lambda x, start_indices, limit_indices, strides, **_: x[
        (*map(slice, start_indices, limit_indices, strides or [1] * x.ndim), ...)
    ],
)


@rule("reshape", "squeeze", "expand_dims")
def _reshape(writer: Writer, eqn: Equation, x: Scalars) -> list[Scalars]:
    return [x.reshape(_form(eqn).shape)]


@rule("broadcast_in_dim")
def _broadcast(writer: Writer, eqn: Equation, x: Scalars) -> list[Scalars]:
    shape = _form(eqn).shape
    aligned = [1] * len(shape)
    for axis, size in zip(eqn.params["broadcast_dimensions"], x.shape, strict=True):
        aligned[axis] = size
    return [np.broadcast_to(x.reshape(aligned), shape)]


@rule("iota")
def _iota(writer: Writer, eqn: Equation) -> list[Scalars]:
    along, form = eqn.params["dimension"], _form(eqn)
    return [filled(form.shape, lambda i: writer.constant(i[along], form.dtype))]


MOVES |= {"reshape", "squeeze", "expand_dims", "broadcast_in_dim", "iota"}


def _form(eqn: Equation) -> Any:
    """Return the shape and dtype of the output of an equation."""
    return eqn.outvars[0].aval


@rule("pad")
def _pad(writer: Writer, eqn: Equation, x: Scalars, fill: Scalars) -> list[Scalars]:
    config = eqn.params["padding_config"]

    def at(place: tuple[int, ...]) -> Scalar:
        found = []
        for k, (low, _, inner), size in zip(place, config, x.shape, strict=True):
            index, between = divmod(k - low, inner + 1)
            if between or not 0 <= index < size:
                return fill[()]
            found.append(index)
        return x[tuple(found)]

    return [filled(_form(eqn).shape, at)]


@rule("bitcast_convert_type")
def _bitcast(writer: Writer, eqn: Equation, x: Scalars) -> list[Scalars]:
    form, name = _form(eqn), eqn.primitive.name
    if x.shape != form.shape:
        raise writer.refuse(f"makes numbers of another size, {form.dtype}")
    return [writer.elementwise(name, form.dtype, x, **eqn.params)]


_FOLDS = dict(sum="add", prod="mul", max="max", min="min", xor="xor", any="or")
_FOLDS |= {"or": "or", "and": "and", "all": "and"}


def _fold(writer: Writer, eqn: Equation) -> Callable[..., Scalar]:
    """Return the operation on two elements, from the end of the primitive's name."""
    name = eqn.primitive.name.removeprefix("cum").rpartition("_")[2]
    return ft.partial(writer.apply, _FOLDS[name])


def _rows(x: Scalars, axes: Sequence[int]) -> list[Scalars]:
    """Return the arrays along `axes`."""
    rest = [k for k in range(x.ndim) if k not in axes]
    count = math.prod(x.shape[k] for k in axes)
    rows = x.transpose([*axes, *rest]).reshape(count, *(x.shape[k] for k in rest))
    return [row if isinstance(row, np.ndarray) else single(row) for row in rows]


@rule("reduce_sum", "reduce_prod", "reduce_max", "reduce_min")
@rule("reduce_or", "reduce_and", "reduce_xor")
def _reduce(writer: Writer, eqn: Equation, x: Scalars) -> list[Scalars]:
    rows = _rows(x, eqn.params["axes"])
    if not rows:
        raise writer.refuse("reduces no numbers", "Leave out the empty array.")
    combine = ft.partial(each, _fold(writer, eqn))
    return [ft.reduce(combine, rows)]


@rule("cumsum", "cumprod", "cummax", "cummin")
def _cumulative(writer: Writer, eqn: Equation, x: Scalars) -> list[Scalars]:
    axis, order = eqn.params["axis"], -1 if eqn.params["reverse"] else 1
    rows = _rows(np.moveaxis(x, axis, 0), [0])[::order]
    sums = [*it.accumulate(rows, ft.partial(each, _fold(writer, eqn)))][::order]
    return [np.stack(sums, axis) if sums else x]


@rule("argmax", "argmin")
def _argmax(writer: Writer, eqn: Equation, x: Scalars) -> list[Scalars]:
    compare = jnp.greater if eqn.primitive.name == "argmax" else jnp.less
    number = eqn.params["index_dtype"].type

    def best(*rows: Any) -> Any:
        most, at = rows[0], jnp.full_like(rows[0], 0, number)
        for k, row in enumerate(rows[1:], 1):
            is_first_nan = (row != row) & (most == most)
            wins = compare(row, most) | is_first_nan
            most, at = jnp.where(wins, row, most), jnp.where(wins, number(k), at)
        return at

    return writer.inline(best, *_rows(x, eqn.params["axes"]))


@rule("dot_general")
def _dot_general(
    writer: Writer, eqn: Equation, x: Scalars, y: Scalars
) -> list[Scalars]:
    (x_sum, y_sum), (x_batch, y_batch) = eqn.params["dimension_numbers"]
    form = _form(eqn)

    def rows(z: Scalars, batch: Sequence[int], summed: Sequence[int]) -> Scalars:
        rest = [k for k in range(z.ndim) if k not in (*batch, *summed)]
        sizes = (math.prod(z.shape[k] for k in axes) for axes in (batch, rest, summed))
        rows = z.transpose([*batch, *rest, *summed]).reshape(*sizes)
        return each(lambda scalar: _cast(writer, scalar, form.dtype), rows)

    x, y = rows(x, x_batch, x_sum)[:, :, None], rows(y, y_batch, y_sum)[:, None]
    multiply, add = ("and", "or") if form.dtype == bool else ("mul", "add")
    products = _rows(each(ft.partial(writer.apply, multiply), x, y), [3])
    if not products:
        return [filled(form.shape, lambda _: writer.constant(0, form.dtype))]
    total = ft.reduce(ft.partial(each, ft.partial(writer.apply, add)), products)
    return [total.reshape(form.shape)]


def _cast(writer: Writer, scalar: Scalar, dtype: Any) -> Scalar:
    if scalar.dtype == dtype:
        return scalar
    return writer.apply("convert_element_type", scalar, dtype=dtype, new_dtype=dtype)


def _start(writer: Writer, scalar: Scalar) -> Scalar:
    """Return an index in a dtype that holds all places of an array."""
    if scalar.dtype.name in ("int32", "int64"):
        return scalar
    if scalar.dtype == "uint64":
        scalar = writer.apply("min", scalar, writer.constant(2**62, scalar.dtype))
    return _cast(writer, scalar, np.dtype("int64"))


def _all(writer: Writer, tests: Sequence[Scalar]) -> Scalar:
    return ft.reduce(ft.partial(writer.apply, "and"), tests, writer.constant(1, bool))


def _chosen(writer: Writer, test: Scalar, then: Scalars, otherwise: Scalars) -> Scalars:
    dtype = getattr(then.flat[0], "dtype", None) if then.size else None
    return writer.elementwise("select_n", dtype, single(test), otherwise, then)


Starts: TypeAlias = dict[int, Scalar]
"""The start of a window along the axes of an array where it is not 0."""


def _window(
    writer: Writer, x: Scalars, starts: Starts, sizes: Sequence[int]
) -> Scalars:
    """Return the window of an array that begins at `starts`, which are in range."""
    for axis, size in enumerate(sizes):
        rows = np.moveaxis(x, axis, 0)
        at = starts.get(axis, writer.constant(0, "int32"))
        places = range(len(rows) - size + 1) if at.known is None else [int(at.known)]
        windows = [np.moveaxis(rows[k : k + size], 0, axis) for k in places]
        x = windows[0]
        for k, window in enumerate(windows[1:], 1):
            x = _chosen(writer, writer.compare("eq", at, k), window, x)
    return x


def _write_window(
    writer: Writer, x: Scalars, update: Scalars, starts: Starts, combine: Any
) -> None:
    """Change a window of an array; if it is out of range, change nothing."""
    spans = []
    for axis, (n, size) in enumerate(zip(x.shape, update.shape, strict=True)):
        known = starts[axis].known if axis in starts else 0
        span = range(n - size + 1)
        spans.append(span if known is None else [k for k in span if k == int(known)])
    places = [*it.product(*spans)]
    before = x.copy()
    for place in places:
        tests = [
            writer.compare("eq", starts[axis], k)
            for axis, k in enumerate(place)
            if axis in starts and starts[axis].known is None
        ]
        # Without axes, a window is an element, which `...` keeps an array.
        window = (*map(_span, place, update.shape), ...)
        new = combine(before[window], update)
        if tests:
            new = _chosen(writer, _all(writer, tests), new, x[window])
        x[window] = new


def _span(start: int, size: int) -> slice:
    return slice(start, start + size)


@rule("dynamic_slice")
def _dynamic_slice(
    writer: Writer, eqn: Equation, x: Scalars, *starts: Scalars
) -> list[Scalars]:
    sizes = eqn.params["slice_sizes"]
    found = dict(enumerate(_start(writer, start[()]) for start in starts))
    return [_window(writer, x, _clamped(writer, found, x.shape, sizes), sizes)]


@rule("dynamic_update_slice")
def _dynamic_update_slice(
    writer: Writer, eqn: Equation, x: Scalars, update: Scalars, *starts: Scalars
) -> list[Scalars]:
    found = dict(enumerate(_start(writer, start[()]) for start in starts))
    found = _clamped(writer, found, x.shape, update.shape)
    out = x.copy()
    _write_window(writer, out, update, found, lambda old, new: new)
    return [out]


def _starts(
    writer: Writer,
    indices: Scalars,
    place: tuple[int, ...],
    axes: Sequence[int],
    batching: Iterable[tuple[int, int]],
) -> Starts:
    """Return the start of the window of a gather or scatter for a row of `indices`."""
    row = (_start(writer, s) for s in indices[(*place, ...)].flat)
    own = {axis: writer.constant(place[k], "int32") for axis, k in batching}
    return dict(zip(axes, row, strict=True)) | own


def _clamped(
    writer: Writer, starts: Starts, shape: Sequence[int], sizes: Sequence[int]
) -> Starts:
    """Return the starts that are nearest and whose window is inside of an array."""

    def inside(axis: int, start: Scalar) -> Scalar:
        most = shape[axis] - sizes[axis]
        low, high = (writer.constant(k, start.dtype) for k in (0, most))
        return writer.apply("clamp", low, start, high)

    return {axis: inside(axis, start) for axis, start in starts.items()}


@rule("gather")
def _gather(
    writer: Writer, eqn: Equation, x: Scalars, indices: Scalars
) -> list[Scalars]:
    params: Any = eqn.params
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    offsets, batching = numbers.offset_dims, numbers.operand_batching_dims
    pairs = [*zip(batching, numbers.start_indices_batching_dims, strict=True)]

    @ft.cache
    def window(batch: tuple[int, ...]) -> Scalars:
        starts = _starts(writer, indices, batch, numbers.start_index_map, pairs)
        near = _clamped(writer, starts, x.shape, sizes)
        out = _window(writer, x, near, sizes)
        out = out.squeeze((*numbers.collapsed_slice_dims, *batching))
        if "FILL" not in str(params["mode"]):
            return out
        # A start that is nearest to itself is inside.
        same = [writer.compare("eq", near[axis], k) for axis, k in starts.items()]
        fill = np.full(out.shape, _fill_value(eqn), _form(eqn).dtype)
        return _chosen(writer, _all(writer, same), out, writer.scalars(fill))

    def one(place: tuple[int, ...]) -> Any:
        batch = tuple(k for axis, k in enumerate(place) if axis not in offsets)
        return window(batch)[tuple(place[axis] for axis in offsets)]

    return [filled(_form(eqn).shape, one)]


def _fill_value(eqn: Equation) -> Any:
    """Return what JAX fills in for an index out of range."""
    dtype = _form(eqn).dtype
    if eqn.params["fill_value"] is not None:
        return eqn.params["fill_value"]
    if jnp.issubdtype(dtype, jnp.integer):
        return getattr(jnp.iinfo(dtype), "min" if dtype.kind == "i" else "max")
    return math.nan if jnp.issubdtype(dtype, jnp.floating) else True


_COMBINED = "add", "sub", "mul", "min", "max"


@rule("scatter", *(f"scatter{s}{name}" for name in _COMBINED for s in "-_"))
def _scatter(
    writer: Writer, eqn: Equation, x: Scalars, indices: Scalars, updates: Scalars
) -> list[Scalars]:
    params: Any = eqn.params
    numbers = params["dimension_numbers"]
    windows, batching = numbers.update_window_dims, numbers.operand_batching_dims
    outer = [k for k in range(updates.ndim) if k not in windows]
    updates = updates.transpose([*outer, *windows])
    pairs = [*zip(batching, numbers.scatter_indices_batching_dims, strict=True)]
    function, consts = params["update_jaxpr"], params["update_consts"]

    def one(*numbers: Scalar) -> Scalar:
        out = writer.run(function, [*map(single, numbers)], consts)
        return writer.scalars(out[0])[()]

    def combine(old: Scalars, new: Scalars) -> Scalars:
        # The function of `at[].apply` is there, too, under the name of `at[].set`.
        return new if function is None else each(one, old, new)

    out, axes = x.copy(), numbers.scatter_dims_to_operand_dims
    for batch in np.ndindex(*updates.shape[: len(outer)]):
        update = np.expand_dims(
            updates[(*batch, ...)], (*numbers.inserted_window_dims, *batching)
        )
        starts = _starts(writer, indices, batch, axes, pairs)
        if "CLIP" in str(params["mode"]):
            starts = _clamped(writer, starts, x.shape, update.shape)
        _write_window(writer, out, update, starts, combine)
    return [out]


# Primitives of Equinox, as they are for a point outside of `vmap`.


@rule("unvmap_any", "unvmap_all", "unvmap_max")
def _unvmap(writer: Writer, eqn: Equation, x: Scalars) -> list[Scalars]:
    return [single(ft.reduce(_fold(writer, eqn), x.flat))]


@rule("select_if_vmap")
def _select_if_vmap(
    writer: Writer, eqn: Equation, test: Scalars, then: Scalars, otherwise: Scalars
) -> list[Scalars]:
    return [np.broadcast_to(then, _form(eqn).shape)]


@rule("polynomial")
def _polynomial(writer: Writer, eqn: Equation, *inputs: Scalars) -> Sequence[Scalars]:
    """Evaluate a polynomial, whose lowest coefficient comes first."""

    def horner(x: Any, *coefficients: Any) -> Any:
        *others, total = coefficients
        for coefficient in reversed(others):
            total = total * x + coefficient
        return total

    return writer.inline(horner, *inputs)


@rule("maybe_set", "call_hi_primitive")
def _by_others(writer: Writer, eqn: Equation, *inputs: Scalars) -> list[Scalars]:
    """Write a primitive that is defined by others, as JAX 0.12 does `searchsorted`."""
    primitive: Any = eqn.primitive
    run = primitive.impl if primitive.name == "maybe_set" else primitive.to_lojax
    return writer.inline(lambda *xs: run(*xs, **eqn.params), *inputs)


@rule("nonbatchable", "nontraceable", "nondifferentiable", "nondifferentiable_backward")
@rule("optimization_barrier", "announce_transform", "pvary", "name", "random_clone")
def _as_is(writer: Writer, eqn: Equation, *inputs: Scalars) -> Sequence[Scalars]:
    return inputs


@rule("empty", "empty2")
def _empty(writer: Writer, eqn: Equation, *inputs: Scalars) -> list[Scalars]:
    form = _form(eqn)
    return [writer.scalars(np.zeros(form.shape, form.dtype))]


@rule("iota_2x32_shape")
def _iota_2x32_shape(writer: Writer, eqn: Equation) -> list[Scalars]:
    shape = eqn.params["shape"]
    count = np.arange(math.prod(shape), dtype=np.uint64).reshape(shape)
    halves = count >> np.uint64(32), count & np.uint64(0xFFFFFFFF)
    return [writer.scalars(half.astype(np.uint32)) for half in halves]
