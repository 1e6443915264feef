"""`Loader.scan`: many batches and what is done with them as one program."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._errors import StructureError, describe_value, message
from .._sharding.mesh import is_staged
from .._tree import as_arrays, differences
from .._types import PyTree
from .axis_types import is_explicit, with_auto_axes
from .cursor import Cursor, is_concrete
from .device_batch import device_batch, seam_of
from .order import Overrun, Place
from .programs import known as beside
from .settings import Settings

_MOST = 64


class _Numbers(Exception):
    """Some Python numbers of the carry changed in the step, to these dtypes."""

    def __init__(self, leaves: list[Any]):
        super().__init__("numbers changed")
        self.leaves = leaves


def scan(
    loader: Settings,
    step: Callable[..., Any],
    carry: PyTree,
    cursor: Cursor,
    length: int,
) -> tuple[PyTree, PyTree, Cursor]:
    """The carry and outputs of `length` steps, and the place behind them."""
    # Where no batch runs over into the next epoch, the program need not look out for
    # it. It must not depend on the place in any other way: the next call shall find it.
    count, size = loader.batch_size, len(loader.source)
    whole = is_concrete(cursor) and size % count == 0 == cursor.position % count
    overrun = "skip" if loader.drop_remainder or whole else "wrap"
    run = _scanned if is_staged() else _compiled
    own = loader
    if loader.sharding is not None and not _is_explicit(carry):
        loader = with_auto_axes(loader)
    known, key = _known_numbers(own, step, carry)
    while True:
        given = carry if known is None else _with_arrays(carry, known)
        try:
            return run(loader, step, given, cursor, length, overrun)
        except _Numbers as found:
            # A loss that starts as `0.0`, for instance. Numbers that a step leaves
            # alone, such as the rate of a `Dropout`, stay what they are.
            old = known or [None] * len(found.leaves)
            pairs = zip(old, found.leaves, strict=True)
            known = [a if b is None else b for a, b in pairs]
            if key is not None:
                numbers = beside(own).numbers
                if len(numbers) >= _MOST:
                    numbers.clear()
                numbers[key] = known


def _is_explicit(carry: PyTree) -> bool:
    """Whether the program has explicit axes, by its context or what it is given."""
    meshes: list[Any] = [jax.sharding.get_abstract_mesh()]
    arrays = [x for x in jtu.tree_leaves(carry) if isinstance(x, jax.Array)]
    meshes += [jax.typeof(x).sharding.mesh for x in arrays]
    return any(map(is_explicit, meshes))


def _known_numbers(loader: Any, step: Any, carry: PyTree) -> tuple[Any, Any]:
    """Which numbers of such a carry are arrays, if it was met, and how to find it."""
    leaves, structure = jtu.tree_flatten(carry)
    kinds = tuple(type(leaf) if _is_number(leaf) else None for leaf in leaves)
    key = step, structure, kinds, jnp.result_type(float).name
    try:
        return beside(loader).numbers.get(key), key
    except TypeError:  # a step or a field that has no hash
        return None, None


def _with_arrays(carry: PyTree, dtypes: list[Any]) -> PyTree:
    leaves, structure = jtu.tree_flatten(carry)
    pairs = zip(leaves, dtypes, strict=True)
    leaves = [a if dtype is None else jnp.asarray(a, dtype) for a, dtype in pairs]
    return jtu.tree_unflatten(structure, leaves)


def _scanned(
    loader: Settings,
    step: Callable[..., Any],
    carry: PyTree,
    cursor: Cursor,
    length: int,
    overrun: Overrun,
) -> tuple[PyTree, PyTree, Cursor]:
    words = jnp.asarray(cursor.words)
    place = Place(jnp.asarray(cursor.epochs), jnp.asarray(cursor.record)[0])
    arrays, rest = eqx.partition(carry, eqx.is_array)
    constants: list[Any] = []
    count, impl = loader.batch_size, cursor.kind
    seam = seam_of(loader, count, overrun)

    def body(state: Any, _: None) -> Any:
        arrays, place = state
        batch, place = device_batch(loader, impl, words, place, count, overrun, seam)
        before = eqx.combine(arrays, rest)
        pair = step(before, batch)
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise TypeError(
                message(
                    "Loader.scan",
                    f"`step` returned {describe_value(pair)}, no pair of carry and "
                    "output.",
                    "Write `step(carry, batch) -> (carry, output)`; the output may be "
                    "None.",
                )
            )
        after, output = pair
        _check_carry(before, after)
        outputs, constant = eqx.partition(as_arrays(output), eqx.is_array)
        constants.append(constant)
        return (eqx.filter(after, eqx.is_array), place), outputs

    (arrays, place), outputs = jax.lax.scan(body, (arrays, place), None, length)
    after = dataclasses.replace(cursor, epochs=place.epoch, record=place.record())
    return eqx.combine(arrays, rest), eqx.combine(outputs, constants[-1]), after


_compiled = eqx.filter_jit(_scanned)


def _check_carry(before: PyTree, after: PyTree) -> None:
    if jtu.tree_structure(before) == jtu.tree_structure(after):
        pairs = list(zip(jtu.tree_leaves(before), jtu.tree_leaves(after), strict=True))
        became = [_dtype_of_counter(a, b) for a, b in pairs]
        if any(dtype is not None for dtype in became):
            raise _Numbers(became)
        weak = [getattr(a, "weak_type", False) for a, _ in pairs]
        if any(weak):
            after = jtu.tree_unflatten(
                jtu.tree_structure(after),
                [
                    jnp.asarray(b, a.dtype) if w else b
                    for (a, b), w in zip(pairs, weak, strict=True)
                ],
            )
    lines = differences(before, after)
    if lines:
        listed = "".join(f"\n- {line}" for line in lines)
        raise StructureError(
            message(
                "Loader.scan",
                f"`step` does not return a carry like the one it got (first what it "
                f"got):{listed}\n",
                "A carry keeps its structure, shapes and dtypes; what differs from "
                "step to step is an output, or an array.",
            )
        )


def _dtype_of_counter(before: Any, after: Any) -> Any:
    """The dtype of what began as a Python number and is changed by the step, or None.

    It may have become an array, or another number: `count + 1`.
    """
    if not _is_number(before):
        return None
    if eqx.is_array(after) or isinstance(after, np.generic):
        return after.dtype
    same = type(before) is type(after) and (before == after or before != before)
    return None if same or not _is_number(after) else jnp.asarray(after).dtype


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, bool | int | float | complex) and not isinstance(
        leaf, np.generic
    )
