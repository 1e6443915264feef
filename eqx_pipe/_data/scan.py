"""`Loader.scan`: many batches and their steps as one program."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from .._check import check_same
from .._errors import describe_value, type_error
from .._mesh_context import is_explicit, is_staged, with_axis_types
from .._tree import as_arrays
from .._types import PyTree
from .batch import device_batch, seam_of
from .cursor import Cursor, is_concrete
from .selection import Overrun, Place

if TYPE_CHECKING:
    from .loader import Loader
else:
    Loader = Any

_OTHER = (
    "the carry that `step` returns differs from the carry that it got; first what it "
    "got, then what it returned"
)
_KEEP = (
    "Keep the structure, shapes and dtypes of the carry, for instance `0.0` instead of "
    "`0`; return values that differ from step to step as outputs, or make them arrays."
)


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
    if loader.sharding is not None and not _is_explicit(carry):
        loader = with_axis_types(loader)
    # Inside a user's program the loop is inlined: a nested `jit` would copy the source.
    run = _scanned if is_staged() else _compiled
    return run(loader, step, cursor, length, overrun, _with_arrays(carry))


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
        after, output = _with_arrays(pair[0]), pair[1]
        check_same("data.Loader.scan", _OTHER, before, after, _KEEP)
        outputs, constant = eqx.partition(as_arrays(output), eqx.is_array)
        # A loop returns only arrays; other outputs of a step are returned this way.
        constants.append(constant)
        return (eqx.filter(after, eqx.is_array), place), outputs

    (arrays, place), outputs = jax.lax.scan(body, (arrays, place), None, length)
    after = dataclasses.replace(cursor, epochs=place.epoch, record=place.record())
    return eqx.combine(arrays, rest), eqx.combine(outputs, constants[-1]), after


_compiled = eqx.filter_jit(_scanned)


def _with_arrays(carry: PyTree) -> PyTree:
    """Return a carry with arrays in place of Python numbers, as in `lax.scan`.

    Numbers in Modules, such as the rate of a `Dropout`, stay: code may branch on them.
    """

    def one(leaf: Any) -> Any:
        number = isinstance(leaf, bool | int | float | complex)
        if not number or isinstance(leaf, np.generic):
            return leaf
        # Not weakly typed: the next call gets the arrays that this one returned, and
        # must find the same program.
        return jnp.asarray(leaf, jnp.result_type(type(leaf)))

    return jtu.tree_map(one, carry, is_leaf=lambda x: isinstance(x, eqx.Module))
