"""From records to a batch: the two pipelines of a loader, each with its keys."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, UInt32

from .._errors import structure_error
from .._keys import fold
from .._stage import Identity, Scope, enter
from .._tree import as_arrays, leaf_text, leaves_with_names
from .._types import Key, PyTree, StageLike
from .order import Selection

_Numbers = Array | np.ndarray
_Epoch = UInt32[_Numbers, ""]


def are_identity(*pipes: StageLike) -> bool:
    """Whether records are a batch as they stand, and nothing is drawn."""
    return all(isinstance(pipe, Identity | eqx.nn.Identity) for pipe in pipes)


def run_pipes(
    pipe: StageLike,
    batch_pipe: StageLike,
    key: Key,
    selection: Selection,
    records: PyTree,
) -> PyTree:
    """The batch made of some records."""
    if not isinstance(pipe, Identity):
        records = _each(pipe, _named(key, "pipe"), selection, records)
    if isinstance(batch_pipe, Identity):
        return records
    epoch = selection.epoch if selection.epoch.ndim == 0 else selection.epoch[0]
    own = jr.fold_in(_named(key, "batch_pipe"), epoch)
    return _run("batch_pipe", batch_pipe, own, selection.offset, records)


def _named(key: Key, name: str) -> Key:
    named = fold(key, name)
    assert named is not None
    return named


def _run(
    name: str, stage: StageLike, key: Key, words: UInt32[_Numbers, " words"], x: PyTree
) -> PyTree:
    """A stage with the key of a record, or of a batch, of the number in `words`."""
    *high, low = words
    for word in high:
        key = jr.fold_in(key, word)
    y, _ = enter(Scope(key), name, stage, x, state=None, index=low)
    return _only_arrays(name, y)


def _each(pipe: StageLike, key: Key, selection: Selection, records: PyTree) -> PyTree:
    """Every record through `pipe`, each with a key of its own."""
    key_of = _keys_of_epochs(key, selection)

    def one(record: PyTree, words: UInt32[_Numbers, " words"], epoch: _Epoch) -> PyTree:
        return _run("pipe", pipe, key_of(epoch), words, record)

    epochs = None if selection.epoch.ndim == 0 else 0
    mapped = jax.vmap(one, in_axes=(0, 1, epochs))
    return mapped(records, selection.ids, selection.epoch)


def _keys_of_epochs(key: Key, selection: Selection) -> Callable[[_Epoch], Key]:
    """The key of an epoch, drawn for each record only where that cannot be helped."""
    if selection.epoch.ndim == 0:
        shared = jr.fold_in(key, selection.epoch)
        return lambda epoch: shared
    ends = selection.ends
    if ends is None:
        return lambda epoch: jr.fold_in(key, epoch)
    first, last = jr.fold_in(key, ends[0]), jr.fold_in(key, ends[1])
    return lambda epoch: jnp.where(epoch == ends[0], first, last)


def _only_arrays(argument: str, y: PyTree) -> PyTree:
    y = as_arrays(y)
    for name, leaf in leaves_with_names(y):
        if not eqx.is_array(leaf):
            place = f" at `.{name}`" if name else ""
            raise structure_error(
                "data.Loader",
                f"the output of `{argument}`{place} is {leaf_text(leaf)}.",
                "A batch holds arrays and numbers only. Leave the rest out.",
            )
    return y
