"""A function of a batch as the sum over parts of the batch."""

import functools as ft
from collections.abc import Callable
from typing import Any, Literal, ParamSpec, SupportsIndex, TypeAlias, TypeGuard, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Int

from .._check import check_callable, check_choice, check_int
from .._errors import bullets, structure_error, type_error, value_error
from .._mesh_context import is_staged
from .._tree import as_arrays, differences, leaf_text, leaves_with_names
from .._types import PyTree
from .leaves import is_placeable
from .mesh import num_shards
from .submesh import INSIDE

Inputs = ParamSpec("Inputs")
Output = TypeVar("Output")

_Part: TypeAlias = Callable[[int | Int[Array, ""], int], PyTree]
"""What `fun` gives for the part of a batch from a start on, of some size."""


def microbatch(
    fun: Callable[Inputs, Output],
    *,
    size: SupportsIndex,
    axis: int = 0,
    argnum: int = 0,
    reduce: Literal["sum", "mean"] = "sum",
) -> Callable[Inputs, Output]:
    """Computes a function of a batch part by part, and adds up what comes out.

    One part is in memory at a time, so a gradient of a large batch fits where its
    activations would not: `microbatch(jax.value_and_grad(loss), size=8, argnum=1)`.
    The parts are slices of `size` in order, under one `jax.lax.scan`; if `size` does
    not divide the batch, a shorter one comes last. Sums of half-precision numbers are
    kept in float32.

    **Arguments:**

    - `fun`: a function whose output is a sum (or mean) over the batch.
    - `size`: how many entries of the batch a part has, at least 1. (Keyword only.)
    - `axis`: the axis of the batch in each array. (Keyword only.)
    - `argnum`: which positional argument is the batch. Of it, arrays are sliced;
        scalars and other leaves are given to each part. (Keyword only.)
    - `reduce`: `"sum"`, or `"mean"` for the mean over the batch. (Keyword only.)

    **Returns:** a function with the arguments of `fun`. Numbers in the output count as
    arrays; other leaves are those of the first part. It is traced at each call: put it
    under `jit`.

    **Shapes:** all arrays of the batch agree in size along `axis`.

    **Raises:**

    - `ValueError` if arrays of the batch disagree in size, or an output cannot be
      summed.
    - `StructureError` (a `ValueError`) if the output's shape depends on the size of
      the part, as it does for one output per example.

    **Laws:** it is `fun` up to rounding, for every size, if `fun` is a sum (or mean)
    over the batch.

    !!! example

        >>> import eqx_pipe as ep, jax.numpy as jnp
        >>> total = ep.sharding.microbatch(lambda x: jnp.sum(x**2), size=3)
        >>> total(jnp.arange(8.0)).item()
        140.0
    """
    check_callable("sharding.microbatch", "fun", fun)
    check_int("sharding.microbatch", "size", size, 1)
    for name, value in (("axis", axis), ("argnum", argnum)):
        # Negative ones count from the end.
        check_int("sharding.microbatch", name, value, -(2**31))
    check_choice("sharding.microbatch", "reduce", reduce, ("sum", "mean"))
    step, mean = size.__index__(), reduce == "mean"

    @ft.wraps(fun)
    def in_parts(*args: Inputs.args, **kwargs: Inputs.kwargs) -> Output:
        where = _position(args, argnum)
        batch = as_arrays(args[where])
        total = _length(batch, axis, where)
        batch = jtu.tree_map(lambda leaf: _sliceable(leaf, axis, step, total), batch)

        def part(start: int | Int[Array, ""], size: int) -> PyTree:
            piece = jtu.tree_map(
                lambda leaf: (
                    jax.lax.dynamic_slice_in_dim(leaf, start, size, axis)
                    if _is_split(leaf)
                    else leaf
                ),
                batch,
            )
            given: Any = (*args[:where], piece, *args[where + 1 :])
            return as_arrays(fun(*given, **kwargs))

        return part(0, total) if total <= step else _total(part, total, step, mean)

    return in_parts


def _total(part: _Part, total: int, step: int, mean: bool) -> PyTree:
    """The sum (or mean) of what the parts give."""
    count, rest = divmod(total, step)
    try:
        first = eqx.filter_eval_shape(lambda: part(0, step))
        compiled = True
    except ValueError as error:
        if is_staged() or INSIDE not in vars(error):
            raise
        # A stage of `on` cannot stand in a compiled loop. In a plain one, all calls
        # are dispatched before the first has to be finished.
        first, compiled = part(0, step), False
    arrays, static = eqx.partition(first, is_placeable)
    _check_numbers(arrays, "mean" if mean else "sum")
    if compiled and not rest and any(step in x.shape for x in jtu.tree_leaves(arrays)):
        _check_size_free(arrays, part, step)

    def add(sums: PyTree, start: int | Int[Array, ""], size: int) -> PyTree:
        out = eqx.filter(part(start, size), eqx.is_array)
        _check_same(arrays, out)
        weight = size / total if mean else None
        return jtu.tree_map(lambda s, a: s + _wide(a, weight), sums, out)

    if compiled:
        sums = jtu.tree_map(
            lambda a: jnp.zeros(a.shape, _wide_dtype(a.dtype, mean)), arrays
        )
        starts = jnp.arange(count) * step
        sums, _ = jax.lax.scan(lambda s, i: (add(s, i, step), None), sums, starts)
    else:
        weight = step / total if mean else None
        sums = jtu.tree_map(lambda a: _wide(a, weight), arrays)
        for i in range(1, count):
            sums = add(sums, i * step, step)
    # By a program of its own behind the loop: padded to a whole part, `fun` would see
    # rows that nobody gave.
    if rest:
        sums = add(sums, count * step, rest)
    sums = jtu.tree_map(lambda s, a: _narrow(s, a.dtype), sums, arrays)
    return eqx.combine(sums, static)


def _position(args: tuple[PyTree, ...], argnum: int) -> int:
    if not -len(args) <= argnum < len(args):
        raise type_error(
            "sharding.microbatch",
            f"there are {len(args)} positional arguments, and `argnum` is {argnum}.",
            "Give the batch by position, or another `argnum`.",
        )
    return argnum % len(args)


def _is_split(leaf: Any) -> TypeGuard[Array]:
    return eqx.is_array(leaf) and leaf.ndim > 0


def _length(batch: PyTree, axis: int, argnum: int) -> int:
    """The common size of the batch's arrays."""
    sizes = {}
    for name, leaf in leaves_with_names(batch):
        if _is_split(leaf):
            fits = -leaf.ndim <= axis < leaf.ndim
            sizes[name] = leaf.shape[axis] if fits else leaf_text(leaf)
    if len(set(sizes.values())) == 1 and not isinstance([*sizes.values()][0], str):
        return [*sizes.values()][0]
    listed = bullets(f"`{name}`: {size}" for name, size in sizes.items())
    raise value_error(
        "sharding.microbatch",
        f"the arrays of argument {argnum} have no common size along axis {axis}"
        + (f":{listed}" if sizes else "; there are none."),
        "Give arrays of one batch size; bind what is no batch with a lambda.",
    )


def _check_numbers(arrays: PyTree, reduce: str) -> None:
    for name, leaf in leaves_with_names(arrays):
        if not jnp.issubdtype(leaf.dtype, jnp.number):
            place = f"`{name}` of the output" if name else "the output"
            raise value_error(
                "sharding.microbatch",
                f"{place} is {leaf_text(leaf)}, of which there is no {reduce}.",
                "Return numbers; count with `.astype(int)`.",
            )


def _check_same(struct: PyTree, out: PyTree) -> None:
    lines = differences(struct, out)
    if lines:
        raise structure_error(
            "sharding.microbatch",
            "the output depends on the size of the part; first that of a full "
            f"part, then that of another:{bullets(lines)}",
            "Return a sum or mean over the batch, not one value per example.",
        )


def _check_size_free(arrays: PyTree, part: _Part, step: int) -> None:
    """Raises if parts of another size give another shape: one value per example.

    With a shorter part at the end this shows anyway.
    """
    try:
        other = eqx.filter_eval_shape(lambda: part(0, step - 1 if step > 1 else 2))
    except Exception:  # the function wants this very size
        return
    _check_same(arrays, eqx.filter(other, is_placeable))


def _sliceable(leaf: object, axis: int, step: int, total: int) -> object:
    """An array whose type says that it is split so that slices would not fit, whole.

    JAX refuses a slice of an axis that is split, by explicit axes of a mesh, into parts
    that do not divide the slice.
    """
    if not _is_split(leaf):
        return leaf
    # An array knows its devices, a traced one only the mesh's shape.
    traced = isinstance(leaf, Tracer)
    sharding = jax.typeof(leaf).sharding if traced else leaf.sharding
    if not isinstance(sharding, NamedSharding):
        return leaf
    if AxisType.Explicit not in sharding.mesh.axis_types:
        return leaf
    entries = list(sharding.spec) + [None] * (leaf.ndim - len(sharding.spec))
    parts = num_shards(sharding.mesh, entries[axis])
    if step % parts == 0 and total % step % parts == 0:
        return leaf
    entries[axis] = None
    return jax.sharding.reshard(leaf, NamedSharding(sharding.mesh, P(*entries)))


def _wide_dtype(dtype: np.dtype, mean: bool) -> np.dtype:
    """Where sums are kept: half precision is too short for them."""
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.result_type(float) if mean else dtype
    return jnp.dtype(jnp.float32) if jnp.finfo(dtype).bits < 32 else dtype


def _wide(a: Array, weight: float | None) -> Array:
    a = a.astype(_wide_dtype(a.dtype, weight is not None))
    return a if weight is None else a * weight


def _narrow(a: Array, dtype: np.dtype) -> Array:
    return a if jnp.issubdtype(dtype, jnp.integer) else a.astype(dtype)
