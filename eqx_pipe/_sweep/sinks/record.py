"""The record of a store, and its arrays, as a sweep wants them."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from ..._store.layout import Variable
from ..._store.record import COUNT, check_record, damaged
from ..._store.store import Store

_SWEEP = {
    "space": {str: str},
    "key": str,
    "function": {
        "text": str,
        "operations": {str: int},
        "constants": [str],
        "outputs": str,
        "structure": str,
    },
    "alone": {"point": str, "program": str},
    "jax": str,
    "batch_size": COUNT,
}

_REDUCE = {"reduce": {"reducers": str, "states": str, "text": str}}


def check_sweep(store: Store) -> None:
    """Raises a `ValueError` unless the record says what a sweep's does."""
    reduced = _REDUCE if "reduce" in store.record else {}
    check_record("sweep", store.path, store.record, {**_SWEEP, **reduced})


def check_batch_size(store: Store, size: int) -> None:
    """Raises a `ValueError` unless the batch size is that of a sweep of `size` points.

    A larger one would be computed all the same, with lanes for nothing.
    """
    schema = {"batch_size": range(1, size + 1)}
    check_record("sweep", store.path, store.record, schema)


@runtime_checkable
class Shape(Protocol):
    """The names and shapes of what is computed."""

    @property
    def lengths(self) -> tuple[int, ...]: ...
    @property
    def variables(self) -> Sequence[Variable]: ...
    @property
    def status(self) -> str: ...


def check_room(store: Store, computed: Shape) -> None:
    """Raises a `ValueError` unless the store has a place for what is computed."""
    lengths, variables = computed.lengths, computed.variables
    names = [*(variable.name for variable in variables), computed.status]
    kept = [*store.record["variables"], store.record["status"]]
    if kept != names:
        raise damaged("sweep", store.path, f"its arrays are {kept}, and not {names}")
    if store.chunks.lengths != lengths:
        kept = list(store.chunks.lengths)
        what = f"`lengths` is {kept}, and not {list(lengths)}"
        raise damaged("sweep", store.path, what)
    for array, variable in zip(store.arrays, variables, strict=True):
        inner = tuple(array.shape[len(lengths) :])
        if (array.dtype, inner) != (variable.dtype, tuple(variable.inner)):
            what = (
                f"`{variable.name}` keeps {array.dtype}{list(inner)} for each, and not "
                f"{variable.dtype}{list(variable.inner)}"
            )
            raise damaged("sweep", store.path, what)
