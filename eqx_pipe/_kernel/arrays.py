"""Rules for primitives on arrays, whose elements are scalars of the program.

Moving elements leaves no trace in the program. A sum becomes additions in order, and an
element at a place that is known only when the kernel runs is selected from all places.
"""

import functools as ft
import itertools as it
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._jaxprs import Equation
from .scalars import MOVES, Scalar, Scalars, Writer, each, filled, rule, single

_MOST_PLACES = 4096


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
    dtype = eqn.params["index_dtype"]
    better = "gt" if eqn.primitive.name == "argmax" else "lt"

    def best(*column: Scalar) -> Scalar:
        most, at = column[0], writer.constant(0, dtype)
        for k, value in enumerate(column[1:], 1):
            wins = writer.compare(better, value, most)
            if value.dtype.kind == "f":  # the first NaN wins
                nan, number = (
                    writer.compare(how, v, v)
                    for how, v in (("ne", value), ("eq", most))
                )
                wins = writer.apply("or", wins, writer.apply("and", nan, number))
            most = writer.apply("select_n", wins, most, value, dtype=value.dtype)
            place = writer.constant(k, dtype)
            at = writer.apply("select_n", wins, at, place, dtype=dtype)
        return at

    return [each(best, *_rows(x, eqn.params["axes"]))]


@rule("dot_general")
def _dot_general(
    writer: Writer, eqn: Equation, x: Scalars, y: Scalars
) -> list[Scalars]:
    (x_sum, y_sum), (x_batch, y_batch) = eqn.params["dimension_numbers"]
    x_rest = [k for k in range(x.ndim) if k not in (*x_sum, *x_batch)]
    y_rest = [k for k in range(y.ndim) if k not in (*y_sum, *y_batch)]
    batch, rest = len(x_batch), len(x_batch) + len(x_rest)
    form = _form(eqn)
    multiply, add = ("and", "or") if form.dtype == bool else ("mul", "add")
    cast = ft.partial(_cast, writer, dtype=form.dtype)
    x = each(cast, x.transpose([*x_batch, *x_rest, *x_sum]))
    y = each(cast, y.transpose([*y_batch, *y_rest, *y_sum]))

    def one(place: tuple[int, ...]) -> Scalar:
        left = x[(*place[:rest], ...)].flat
        right = y[(*place[:batch], *place[rest:], ...)].flat
        products = [*map(ft.partial(writer.apply, multiply), left, right)]
        if not products:
            return writer.constant(0, form.dtype)
        return ft.reduce(ft.partial(writer.apply, add), products)

    return [filled(form.shape, one)]


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


def _clamped(writer: Writer, start: Scalar, most: int) -> Scalar:
    low, high = (writer.constant(k, start.dtype) for k in (0, most))
    return writer.apply("clamp", low, start, high)


def _chosen(writer: Writer, test: Scalar, then: Scalars, otherwise: Scalars) -> Scalars:
    dtype = getattr(then.flat[0], "dtype", None) if then.size else None
    return writer.elementwise("select_n", dtype, single(test), otherwise, then)


def _window(
    writer: Writer, x: Scalars, starts: dict[int, Scalar], sizes: Sequence[int]
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
    writer: Writer, x: Scalars, update: Scalars, starts: dict[int, Scalar], combine: Any
) -> None:
    """Change a window of an array; if it is out of range, change nothing."""
    spans = []
    for axis, (n, size) in enumerate(zip(x.shape, update.shape, strict=True)):
        known = starts[axis].known if axis in starts else 0
        span = range(n - size + 1)
        spans.append(span if known is None else [k for k in span if k == int(known)])
    places = [*it.product(*spans)]
    if len(places) * update.size > _MOST_PLACES:
        raise writer.refuse(
            f"changes {update.size} numbers at one of {len(places)} places, which all "
            "have to be written",
            "Use smaller arrays, or sweep `fn` itself.",
        )
    before = x.copy()
    for place in places:
        tests = [
            writer.compare("eq", starts[axis], k)
            for axis, k in enumerate(place)
            if axis in starts and starts[axis].known is None
        ]
        window = (*(slice(k, k + n) for k, n in zip(place, update.shape)), ...)  # noqa: B905
        new = combine(before[window], update)
        if tests:
            test = ft.reduce(ft.partial(writer.apply, "and"), tests)
            new = _chosen(writer, test, new, x[window])
        x[window] = new


@rule("dynamic_slice")
def _dynamic_slice(
    writer: Writer, eqn: Equation, x: Scalars, *starts: Scalars
) -> list[Scalars]:
    sizes = eqn.params["slice_sizes"]
    return [_window(writer, x, _in_range(writer, starts, x.shape, sizes), sizes)]


@rule("dynamic_update_slice")
def _dynamic_update_slice(
    writer: Writer, eqn: Equation, x: Scalars, update: Scalars, *starts: Scalars
) -> list[Scalars]:
    places = _in_range(writer, starts, x.shape, update.shape)
    out = x.copy()
    _write_window(writer, out, update, places, lambda old, new: new)
    return [out]


def _in_range(
    writer: Writer,
    starts: Sequence[Scalars],
    shape: Sequence[int],
    sizes: Sequence[int],
) -> dict[int, Scalar]:
    """Return the start along each axis, so that the window is inside."""
    return {
        axis: _clamped(writer, _start(writer, start[()]), n - size)
        for axis, (start, n, size) in enumerate(zip(starts, shape, sizes, strict=True))
    }


_COMBINED = "add", "sub", "mul", "min", "max"


class _Indices:
    """The places of the windows of a gather or scatter, for each element of a batch."""

    def __init__(
        self,
        writer: Writer,
        array: Scalars,
        axes: Sequence[int],
        batching: Sequence[tuple[int, int]],
    ):
        self.writer, self.array = writer, array
        self.axes, self.batching = axes, batching

    def starts(self, batch: tuple[int, ...]) -> dict[int, Scalar]:
        """Return the start along each axis."""
        row = [_start(self.writer, s) for s in self.array[(*batch, ...)].flat]
        of_batch = {
            axis: self.writer.constant(batch[position], "int32")
            for axis, position in self.batching
        }
        return dict(zip(self.axes, row, strict=True)) | of_batch

    def clamped(self, batch: tuple[int, ...], most: Sequence[int]) -> dict[int, Scalar]:
        """Return starts in range."""
        pairs = self.starts(batch).items()
        return {axis: _clamped(self.writer, s, most[axis]) for axis, s in pairs}

    def are_inside(self, batch: tuple[int, ...], most: Sequence[int]) -> Scalar:
        """Return whether the window is inside of an array."""
        test = self.writer.constant(True, bool)
        for axis, start in self.starts(batch).items():
            for how, end in (("ge", 0), ("le", most[axis])):
                other = self.writer.compare(how, start, end)
                test = self.writer.apply("and", test, other)
        return test


@rule("gather")
def _gather(
    writer: Writer, eqn: Equation, x: Scalars, indices: Scalars
) -> list[Scalars]:
    params: Any = eqn.params
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    offsets, batching = numbers.offset_dims, numbers.operand_batching_dims
    dropped = (*numbers.collapsed_slice_dims, *batching)
    most = [n - size for n, size in zip(x.shape, sizes, strict=True)]
    pairs = [*zip(batching, numbers.start_indices_batching_dims, strict=True)]
    places = _Indices(writer, indices, numbers.start_index_map, pairs)

    @ft.cache
    def window(batch: tuple[int, ...]) -> Scalars:
        out = _window(writer, x, places.clamped(batch, most), sizes)
        out = out.squeeze(dropped)
        if "FILL" not in str(params["mode"]):
            return out
        fill = np.full(out.shape, _fill_value(eqn), _form(eqn).dtype)
        inside = places.are_inside(batch, most)
        return _chosen(writer, inside, out, writer.scalars(fill))

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


@rule("scatter", *(f"scatter{s}{name}" for name in _COMBINED for s in "-_"))
def _scatter(
    writer: Writer, eqn: Equation, x: Scalars, indices: Scalars, updates: Scalars
) -> list[Scalars]:
    params: Any = eqn.params
    numbers = params["dimension_numbers"]
    windows, batching = numbers.update_window_dims, numbers.operand_batching_dims
    dropped = (*numbers.inserted_window_dims, *batching)
    outer = [k for k in range(updates.ndim) if k not in windows]
    updates = updates.transpose([*outer, *windows])
    pairs = [*zip(batching, numbers.scatter_indices_batching_dims, strict=True)]
    axes = numbers.scatter_dims_to_operand_dims
    places = _Indices(writer, indices, axes, pairs)
    name = eqn.primitive.name.replace("-", "_").removeprefix("scatter").strip("_")

    def combine(old: Scalars, new: Scalars) -> Scalars:
        return each(ft.partial(writer.apply, name), old, new) if name else new

    out = x.copy()
    for batch in np.ndindex(*updates.shape[: len(outer)]):
        update = np.expand_dims(updates[(*batch, ...)], dropped)
        starts = places.starts(batch)
        if "CLIP" in str(params["mode"]):
            most = np.subtract(x.shape, update.shape).tolist()
            starts = places.clamped(batch, most)
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


@rule("maybe_set")
def _maybe_set(writer: Writer, eqn: Equation, *inputs: Scalars) -> list[Scalars]:
    primitive: Any = eqn.primitive
    return writer.inline(lambda *xs: primitive.impl(*xs, **eqn.params), *inputs)


@rule("call_hi_primitive")
def _call_hi_primitive(
    writer: Writer, eqn: Equation, *inputs: Scalars
) -> list[Scalars]:
    """Write a primitive that JAX 0.12 defines by others, such as `searchsorted`."""
    primitive: Any = eqn.primitive
    return writer.inline(lambda *xs: primitive.to_lojax(*xs, **eqn.params), *inputs)


@rule("nonbatchable", "nontraceable", "nondifferentiable", "nondifferentiable_backward")
@rule("optimization_barrier", "announce_transform", "pvary", "name")
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
