"""What can be wrong with a store: its record, its arrays, its points, the disk."""

import contextlib
import errno
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ..._errors import SweepError, message
from ..._store.layout import COUNT, Variable, check_record, damaged
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


def check_room(
    store: Store, lengths: tuple[int, ...], variables: Sequence[Variable], status: str
) -> None:
    """Raises a `ValueError` unless the store has a place for what is computed."""
    names = [*(variable.name for variable in variables), status]
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


def refuse_failed(path: Path, failed: np.ndarray) -> None:
    """Raises a `SweepError` if there are points in a store that have failed."""
    if not len(failed):
        return
    shown = ", ".join(map(str, failed[:5])) + (", ..." if len(failed) > 5 else "")
    what = f"point {shown}" if len(failed) == 1 else f"{len(failed):,} points ({shown})"
    raise SweepError(
        message(
            "sweep",
            f'the store `{path}` was filled with `on_error="isolate"`, and `fn` '
            f"failed at {what}.",
            'Go on with `on_error="isolate"`, which keeps the other points, or call '
            f"`fn(space.point({failed[0]}))` to see the error. "
            "A mended `fn` is another function, which needs another path.",
        ),
        failed.tolist(),
    )


@contextlib.contextmanager
def continuing(path: Path, what: str) -> Iterator[None]:
    """Says what to do when the disk does not do what it should."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        cure = "Make room there" if full else "See that the folder can be written to"
        raise SweepError(
            message(
                "sweep",
                f"the store `{path}` could not {what}: {error}.",
                f"{cure}, then call the same sweep again. Chunks that are finished are "
                "kept.",
            )
        ) from error
