"""Evaluate a function of a batch as a sum over parts of the batch."""

from collections.abc import Callable
from typing import Any, Literal, ParamSpec, SupportsIndex, TypeAlias, TypeGuard, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Int

from .._check import (
    check_callable,
    check_choice,
    check_dense,
    check_int,
    check_same,
    common_size,
)
from .._errors import type_error, value_error
from .._mesh_context import is_staged
from .._tree import as_arrays, leaf_text, leaves_with_names
from .._types import PyTree
from .on_mesh import InsideProgram
from .place import is_placeable, wraps_function

Inputs = ParamSpec("Inputs")
Output = TypeVar("Output")

_Part: TypeAlias = Callable[[int | Int[Array, ""], int], PyTree]
"""Returns the output of `fun` for a part of the batch, by its start and size."""

_SPARSE = (
    "Its values and indices cannot be sliced by rows: make it dense by `.todense()`."
)


def microbatch(
    fun: Callable[Inputs, Output],
    *,
    size: SupportsIndex,
    axis: int = 0,
    argnum: int = 0,
    reduce: Literal["sum", "mean"] = "sum",
) -> Callable[Inputs, Output]:
    """Evaluate a function on parts of a batch, and add up the outputs.

    Only one part's activations are in memory at a time, so the gradient of a large
    batch fits into memory: `microbatch(jax.value_and_grad(loss), size=8, argnum=1)`.
    The parts are consecutive slices of `size` entries, under one `jax.lax.scan`; if
    `size` does not divide the batch, the last part is shorter. Half-precision numbers
    are summed in float32.

    **Arguments:**

    - `fun`: a function whose output is a sum (or mean) over the batch.
    - `size`: the number of entries of the batch in each part, at least 1. (Keyword
        only.)
    - `axis`: the axis of the batch in each array. (Keyword only.)
    - `argnum`: the position of the batch among the positional arguments. Arrays in it
        are sliced; scalars and other leaves are passed to each part. (Keyword only.)
    - `reduce`: `"sum"`, or `"mean"` for the mean over the batch; the mean of integers
        is a float. (Keyword only.)

    **Returns:** a function with the arguments of `fun`. Python numbers in the output
    become arrays; other leaves come from the first part. Every call traces `fun`: use
    it under `jit`.

    **Shapes:** all arrays of the batch have the same size along `axis`. If an explicit
    mesh axis splits it, `size` must be divisible by the number of devices.

    **Raises:**

    - `ValueError` if arrays of the batch differ in size, an output cannot be summed, or
      `size` is below 1.
    - `StructureError` (a `ValueError`) if the output's shape depends on the size of
      the part, as it does for one output per example.

    **Laws:** it equals `fun` up to rounding, for every size, if `fun` is a sum (or
    mean) over the batch.

    !!! example

        >>> import eqx_pipe as ep, jax.numpy as jnp
        >>> total = ep.sharding.microbatch(lambda x: jnp.sum(x**2), size=3)
        >>> total(jnp.arange(8.0)).item()
        140.0
    """
    cure = "Give a function of arrays of one batch, such as a loss."
    check_callable("sharding.microbatch", "fun", fun, cure)
    check_int("sharding.microbatch", "size", size, 1)
    check_choice("sharding.microbatch", "reduce", reduce, ("sum", "mean"))
    step, mean = size.__index__(), reduce == "mean"

    @wraps_function(fun)
    def in_parts(*args: Inputs.args, **kwargs: Inputs.kwargs) -> Output:
        if not -len(args) <= argnum < len(args):
            raise type_error(
                "sharding.microbatch",
                f"there are {len(args)} positional arguments, but `argnum` is "
                f"{argnum}.",
                "Give the batch by position, or another `argnum`.",
            )
        where = argnum % len(args)
        batch = as_arrays(args[where])
        what = f"argument {where}"
        cure = (
            "Give arrays of one batch size; bind arguments that are not batches with "
            "a lambda."
        )
        check_dense("sharding.microbatch", what, batch, _SPARSE)
        split = eqx.filter(batch, _is_split)
        total = common_size("sharding.microbatch", what, split, axis, cure)

        def part(start: int | Int[Array, ""], size: int) -> PyTree:
            piece = jtu.tree_map(
                lambda leaf: (
                    jax.lax.dynamic_slice_in_dim(leaf, start, size, axis)
                    if _is_split(leaf)
                    else leaf
                ),
                batch,
            )
            replaced: Any = (*args[:where], piece, *args[where + 1 :])
            return as_arrays(fun(*replaced, **kwargs))

        return _total(part, total, min(step, total), mean)

    return in_parts


def _total(part: _Part, total: int, step: int, mean: bool) -> PyTree:
    """Return the sum (or mean) of the outputs for all parts."""
    # An empty batch is one part, too.
    count, rest = divmod(total, step) if total else (1, 0)
    first = _struct(part, step) if count > 1 else None
    looped = first is not None
    first = first if looped else part(0, step)
    arrays, static = eqx.partition(first, is_placeable)
    _check_numbers(arrays, "mean" if mean else "sum")
    if looped and not rest and any(step in x.shape for x in jtu.tree_leaves(arrays)):
        _check_size_free(arrays, part, step)

    def add(sums: PyTree, start: int | Int[Array, ""], size: int) -> PyTree:
        out = eqx.filter(part(start, size), eqx.is_array)
        _check_same(arrays, out)
        return jtu.tree_map(jnp.add, sums, _weighted(out, size / total, mean))

    if looped:
        sums = jtu.tree_map(
            lambda a: jnp.zeros(a.shape, _wide_dtype(a.dtype, mean)), arrays
        )
        starts = jnp.arange(count) * step
        sums, _ = jax.lax.scan(lambda s, i: (add(s, i, step), None), sums, starts)
    else:
        sums = _weighted(arrays, step / total if total else 1.0, mean)
        for i in range(1, count):
            sums = add(sums, i * step, step)
    # A separate call after the loop: if the rest were padded to a whole part, `fun`
    # would see rows that are not in the batch.
    if rest:
        sums = add(sums, count * step, rest)
    sums = jtu.tree_map(lambda s, a: _narrow(s, a.dtype), sums, arrays)
    return eqx.combine(sums, static)


def _struct(part: _Part, step: int) -> PyTree:
    """Return the struct of the output for a part, or None if no loop can compute it.

    A stage of `on` cannot run in a compiled loop. A Python loop dispatches all calls
    before the first has finished.
    """
    try:
        return eqx.filter_eval_shape(lambda: (part(0, step),))[0]
    except InsideProgram:
        if is_staged():
            raise
        return None


def _is_split(leaf: Any) -> TypeGuard[Array]:
    return eqx.is_array(leaf) and leaf.ndim > 0


def _check_numbers(arrays: PyTree, reduce: str) -> None:
    for name, leaf in leaves_with_names(arrays):
        if not jnp.issubdtype(leaf.dtype, jnp.number):
            output = f"`{name}` of the output" if name else "the output"
            raise value_error(
                "sharding.microbatch",
                f"{output} is {leaf_text(leaf)}, which has no {reduce}.",
                "Return numbers; count with `.astype(int)`.",
            )


def _check_same(struct: PyTree, out: PyTree) -> None:
    check_same(
        "sharding.microbatch",
        "the output depends on the size of the part; first that of a full part, then "
        "that of another",
        struct,
        out,
        "Return a sum or mean over the batch, not one value per example.",
    )


def _check_size_free(arrays: PyTree, part: _Part, step: int) -> None:
    """Raise if the output's shape depends on the part's size: one value per example.

    With a shorter last part this is detected anyway.
    """
    try:
        other = eqx.filter_eval_shape(lambda: part(0, step - 1 if step > 1 else 2))
    except Exception:  # the function works only with this size
        return
    _check_same(arrays, eqx.filter(other, is_placeable))


def _wide_dtype(dtype: np.dtype, mean: bool) -> np.dtype:
    """Return the dtype of sums: float32 for half precision."""
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.result_type(float) if mean else dtype
    return jnp.dtype(jnp.float32) if jnp.finfo(dtype).bits < 32 else dtype


def _weighted(out: PyTree, weight: float, mean: bool) -> PyTree:
    """Return the outputs of a part as a summand, weighted for a mean."""

    def one(a: Array) -> Array:
        a = a.astype(_wide_dtype(a.dtype, mean))
        return a * weight if mean else a

    return jtu.tree_map(one, out)


def _narrow(a: Array, dtype: np.dtype) -> Array:
    return a if jnp.issubdtype(dtype, jnp.integer) else a.astype(dtype)
