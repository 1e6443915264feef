"""`Loader.scan`: many batches and what is done with them as one program."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from .._errors import StructureError, describe_value, message
from .._sharding.mesh import is_staged
from .._tree import as_arrays, differences
from .cursor import Cursor, is_concrete
from .draw import Place, draw


class _Numbers(Exception):
    """Some Python numbers of the carry became arrays in the step."""

    def __init__(self, leaves: list[Any]):
        super().__init__("numbers became arrays")
        self.leaves = leaves


def scan(
    loader: Any, step: Callable[..., Any], carry: PyTree, cursor: Cursor, length: int
) -> tuple[PyTree, PyTree, Cursor]:
    """The carry and outputs of `length` steps, and the place behind them."""
    # A program for an epoch that holds all of them need not look out for its end.
    inside = is_concrete(cursor) and (
        cursor.position + length * loader.batch_size <= len(loader.source)
    )
    run = _scan if is_staged() else _compiled
    return run(loader, step, carry, cursor, length, inside)


def _scan(
    loader: Any,
    step: Callable[..., Any],
    carry: PyTree,
    cursor: Cursor,
    length: int,
    inside: bool,
) -> tuple[PyTree, PyTree, Cursor]:
    try:
        return _scanned(loader, step, carry, cursor, length, inside)
    except _Numbers as found:
        # A loss that starts as `0.0`, for instance. Numbers that a step leaves alone,
        # such as the rate of a `Dropout`, stay what they are.
        leaves, structure = jtu.tree_flatten(carry)
        pairs = zip(leaves, found.leaves, strict=True)
        leaves = [a if s is None else jnp.asarray(a, s.dtype) for a, s in pairs]
        carry = jtu.tree_unflatten(structure, leaves)
        return _scanned(loader, step, carry, cursor, length, inside)


_compiled = eqx.filter_jit(_scan)


def _scanned(
    loader: Any,
    step: Callable[..., Any],
    carry: PyTree,
    cursor: Cursor,
    length: int,
    inside: bool,
) -> tuple[PyTree, PyTree, Cursor]:
    words = jnp.asarray(cursor.words)
    key = jax.random.wrap_key_data(words, impl=cursor.kind)
    place = Place(jnp.asarray(cursor.epoch), jnp.asarray(cursor.record)[0])
    arrays, rest = eqx.partition(carry, eqx.is_array)
    constants: list[Any] = []

    def body(state: Any, _: None) -> Any:
        arrays, place = state
        batch, place = draw(loader, words, key, place, loader.batch_size, inside)
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
    record = jnp.stack([place.start, jnp.zeros_like(place.start)])
    after = dataclasses.replace(cursor, epoch=place.epoch, record=record)
    return eqx.combine(arrays, rest), eqx.combine(outputs, constants[-1]), after


def _check_carry(before: PyTree, after: PyTree) -> None:
    if jtu.tree_structure(before) == jtu.tree_structure(after):
        pairs = list(zip(jtu.tree_leaves(before), jtu.tree_leaves(after), strict=True))
        became = [
            b if isinstance(a, bool | int | float | complex) and _is_array(b) else None
            for a, b in pairs
        ]
        if any(b is not None for b in became):
            raise _Numbers([None if b is None else _Struct(b.dtype) for b in became])
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


@dataclasses.dataclass(frozen=True)
class _Struct:
    dtype: Any


def _is_array(leaf: Any) -> bool:
    return eqx.is_array(leaf) or isinstance(leaf, np.generic)
