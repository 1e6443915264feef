"""`Loader.scan`: many batches and their steps as one program."""

import dataclasses
import functools as ft
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._cache import LRUCache
from .._errors import bullets, describe_value, structure_error, type_error
from .._jit import known
from .._mesh_context import is_explicit, is_staged, with_axis_types
from .._tree import as_arrays, differences
from .._types import PyTree
from .batch import device_batch, seam_of
from .cursor import Cursor, is_concrete
from .selection import Overrun, Place

if TYPE_CHECKING:
    from .loader import Loader
else:
    Loader = Any

_Result = TypeVar("_Result")


def scan(
    loader: Loader,
    step: Callable[..., tuple[PyTree, PyTree]],
    carry: PyTree,
    cursor: Cursor,
    length: int,
) -> tuple[PyTree, PyTree, Cursor]:
    """Return the carry and outputs of `length` steps, and the cursor after them."""
    # If no batch crosses the end of the epoch, the program need not handle that. It
    # must not depend on the position in any other way, so that the next call reuses it.
    count, size = loader.batch_size, len(loader.source)
    whole = is_concrete(cursor) and size % count == 0 == cursor.position % count
    overrun = "skip" if loader.drop_remainder or whole else "wrap"
    memory = known(loader).counters
    if loader.sharding is not None and not _is_explicit(carry):
        loader = with_axis_types(loader)
    # Inside a user's program the loop is inlined: a nested `jit` would copy the source.
    run = _scanned if is_staged() else _compiled
    run = ft.partial(run, loader, step, cursor, length, overrun)
    return _with_counters(run, carry, step, memory)


def _is_explicit(carry: PyTree) -> bool:
    """Return whether the program has explicit axes, by its context or its inputs."""
    meshes: list[Any] = [jax.sharding.get_abstract_mesh()]
    arrays = [x for x in jtu.tree_leaves(carry) if isinstance(x, jax.Array)]
    meshes += [jax.typeof(x).sharding.mesh for x in arrays]
    return any(map(is_explicit, meshes))


def _scanned(
    loader: Loader,
    step: Callable[..., tuple[PyTree, PyTree]],
    cursor: Cursor,
    length: int,
    overrun: Overrun,
    carry: PyTree,
) -> tuple[PyTree, PyTree, Cursor]:
    words = jnp.asarray(cursor.words)
    place = Place.of(cursor.epochs, cursor.record)
    arrays, rest = eqx.partition(carry, eqx.is_array)
    constants: list[Any] = []
    count, impl = loader.batch_size, cursor.kind
    seam = seam_of(loader, count, overrun)

    def body(state: Any, _: None) -> Any:
        arrays, place = state
        batch, place = device_batch(loader, impl, count, overrun, words, place, seam)
        before = eqx.combine(arrays, rest)
        pair = step(before, batch)
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise type_error(
                "data.Loader.scan",
                f"`step` returned {describe_value(pair)}, not a pair of carry and "
                "output.",
                "Write `step(carry, batch) -> (carry, output)`; the output may be "
                "None.",
            )
        after, output = pair
        _check_carry(before, after)
        outputs, constant = eqx.partition(as_arrays(output), eqx.is_array)
        # A loop returns only arrays; other outputs of a step are returned this way.
        constants.append(constant)
        return (eqx.filter(after, eqx.is_array), place), outputs

    (arrays, place), outputs = jax.lax.scan(body, (arrays, place), None, length)
    after = dataclasses.replace(cursor, epochs=place.epoch, record=place.record())
    return eqx.combine(arrays, rest), eqx.combine(outputs, constants[-1]), after


_compiled = eqx.filter_jit(_scanned)


def _check_carry(before: PyTree, after: PyTree) -> None:
    structure = jtu.tree_structure(after)
    if jtu.tree_structure(before) == structure:
        _check_counters(before, after)
        pairs = zip(jtu.tree_leaves(before), jtu.tree_leaves(after), strict=True)
        # `lax.scan` itself promotes a weak dtype to the one that the step returns.
        weak = [
            jnp.asarray(b, a.dtype) if getattr(a, "weak_type", False) else b
            for a, b in pairs
        ]
        after = jtu.tree_unflatten(structure, weak)
    lines = differences(before, after)
    if lines:
        raise structure_error(
            "data.Loader.scan",
            "the carry that `step` returns differs from the carry that it got; first "
            "what it got, then what it returned:" + bullets(lines),
            "Keep the structure, shapes and dtypes of the carry; make values that "
            "differ from step to step outputs, or arrays.",
        )


# Python numbers in the carry that a step changes, such as a loss that starts as `0.0`,
# become arrays. Numbers that it does not change, such as the rate of a `Dropout`, stay
# Python numbers, since code may branch on them. Only tracing the step shows which
# numbers change, so it is traced once more, and the result is cached.


class _NumbersChanged(Exception):
    """The step changes Python numbers of the carry, to these dtypes."""

    def __init__(self, dtypes: list[np.dtype | None]):
        super().__init__("numbers changed")
        self.dtypes = dtypes


def _with_counters(
    run: Callable[[PyTree], _Result],
    carry: PyTree,
    step: Callable[..., object],
    memory: LRUCache,
) -> _Result:
    """Run with arrays in the carry for the numbers that `step` changes.

    `run` calls `_check_counters` while it is traced.
    """
    leaves, structure = jtu.tree_flatten(carry)
    kinds = tuple(type(leaf) if _is_number(leaf) else None for leaf in leaves)
    key = step, structure, kinds, jnp.result_type(float).name
    try:
        known = memory.get(key)
    except TypeError:  # a step or a field without a hash
        key = known = None
    known = known or [None] * len(leaves)
    while True:
        pairs = zip(leaves, known, strict=True)
        given = [a if dtype is None else jnp.asarray(a, dtype) for a, dtype in pairs]
        try:
            return run(jtu.tree_unflatten(structure, given))
        except _NumbersChanged as found:
            # Replacing some numbers by arrays may make others change.
            known = [a or b for a, b in zip(known, found.dtypes, strict=True)]
            if key is not None:
                memory.put(key, known)


def _check_counters(before: PyTree, after: PyTree) -> None:
    """Raise `_NumbersChanged` if numbers of a carry differ after a step."""
    pairs = zip(jtu.tree_leaves(before), jtu.tree_leaves(after), strict=True)
    found = [_dtype_of_counter(a, b) for a, b in pairs]
    if any(dtype is not None for dtype in found):
        raise _NumbersChanged(found)


def _dtype_of_counter(before: Any, after: Any) -> np.dtype | None:
    """Return the dtype of a Python number that the step changes, or None.

    It may have become an array, or another number: `count + 1`.
    """
    if not _is_number(before):
        return None
    if eqx.is_array(after) or isinstance(after, np.generic):
        return after.dtype
    # A NaN that the step does not change counts as equal, though it is not equal to
    # itself.
    same = type(before) is type(after) and (before == after or before != before)
    return None if same or not _is_number(after) else jnp.asarray(after).dtype


def _is_number(leaf: object) -> bool:
    numbers = bool | int | float | complex
    return isinstance(leaf, numbers) and not isinstance(leaf, np.generic)
